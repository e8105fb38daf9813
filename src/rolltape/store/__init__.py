"""Stores: where token entries are durable before anyone acts on them. The contract is told in `contract`.

`TokenCaptureStore` is the default, a directory with one SQLite file; `memory.MemoryStore` is the reference that says
in the fewest words what every store does.
"""

from rolltape.store.contract import (
    CaptureStore,
    LineageMatch,
    LineageStore,
    PolicyState,
    RolloutState,
    TokenSink,
    TokenSource,
)
from rolltape.store.sqlite import TokenCaptureStore

__all__ = [
    "CaptureStore",
    "LineageMatch",
    "LineageStore",
    "PolicyState",
    "RolloutState",
    "TokenCaptureStore",
    "TokenSink",
    "TokenSource",
]
