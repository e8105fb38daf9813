"""The store for several nodes: a PostgreSQL database that every gateway and every trainer can reach.

store      the database, its writer and its reader
writer     one thread, group commit
foresight  what a batch will ask, asked at once
session    one connection
schema     tables and settings

What is put and read is told in `store.tables`.
"""

from rolltape.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
