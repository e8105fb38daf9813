"""The default store: one SQLite file in a directory.

store      the directory, its writer and its readers
writer     one thread, group commit
schema     tables and settings
verify     is everything what was put there?

What is put and read is told in `store.tables`.
"""

from rolltape.store.sqlite.store import TokenCaptureStore
from rolltape.store.sqlite.verify import VerifyReport, verify

__all__ = ["TokenCaptureStore", "VerifyReport", "verify"]
