"""The default store: one SQLite file in a directory.

store      the async methods
writer     one thread, group commit
rollouts   state, fences, marks, outcomes, snapshots
entries    putting: what is new is stored, the rest is a reference
lineage    which stored sequence a prompt continues
reading    rows back to entries, every digest derived again
texts      requests and output items, apart from the tokens
codec      entries to columns and back
schema     tables and settings
verify     is everything what was put there?
"""

from rolltape.store.sqlite.store import TokenCaptureStore
from rolltape.store.sqlite.verify import VerifyReport, verify

__all__ = ["TokenCaptureStore", "VerifyReport", "verify"]
