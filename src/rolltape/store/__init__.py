"""Stores: where token entries are durable before anyone acts on them. The contract is told in `contract`.

`TokenCaptureStore` is the default, a directory with one SQLite file; `memory.MemoryStore` is the reference that says
in the fewest words what every store does; `relay.Relay` puts a foreign sink in the place of a store.
"""

from rolltape.store.contract import (
    RETENTION_SECONDS,
    CallSink,
    CaptureStore,
    LineageMatch,
    LineageStore,
    PolicyState,
    RetainingStore,
    RolloutBook,
    RolloutState,
    Swept,
    TokenSink,
    TokenSource,
)
from rolltape.store.sqlite import TokenCaptureStore

__all__ = [
    "RETENTION_SECONDS",
    "CallSink",
    "CaptureStore",
    "LineageMatch",
    "LineageStore",
    "PolicyState",
    "RetainingStore",
    "RolloutBook",
    "RolloutState",
    "Swept",
    "TokenCaptureStore",
    "TokenSink",
    "TokenSource",
]
