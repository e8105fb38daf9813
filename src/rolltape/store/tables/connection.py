"""What the rules ask of a database: statements in the common part of the SQL dialects, with `?` for each value."""

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

DAMAGED = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite raises of a damaged file; its message may quote bytes that are no text."""


class Cursor(Protocol):
    """The rows of a statement, as tuples."""

    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """A database within a transaction, or a reader outside of one.

    `row_lock` ends a SELECT whose row nobody else may change before the transaction ends; "" where the transaction
    holds everything anyhow. `begin_view` begins a transaction whose reads all see one state.
    """

    @property
    def row_lock(self) -> str: ...
    @property
    def begin_view(self) -> str: ...
    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Cursor: ...
