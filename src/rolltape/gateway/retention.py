"""The gateway removes in the background what retention lets go of: a few rollouts at a time, between puts."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rolltape.config import Retention
from rolltape.errors import StoreError
from rolltape.store import CaptureStore, RetainingStore

log = logging.getLogger("rolltape.gateway")

_BATCH = 8
"""Rollouts in one transaction: a put waits for one such at most."""
_PAUSE_SECONDS = 0.05
_EVERY_SECONDS = 600.0
_AT_ONCE_SECONDS = 1.0
"""How soon "at once" is."""
_DAY_SECONDS = 86_400.0


@asynccontextmanager
async def sweeping(store: CaptureStore, rule: Retention) -> AsyncIterator[None]:
    """Sweep while the body runs; a store that another's transport stands for keeps its own rule."""
    if not isinstance(store, RetainingStore):
        yield
        return
    task = asyncio.create_task(_sweep_for_ever(store, rule))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _sweep_for_ever(store: RetainingStore, rule: Retention) -> None:
    pause = _EVERY_SECONDS if rule.days else _AT_ONCE_SECONDS
    while True:
        try:
            await sweep_once(store, rule)
        except StoreError as error:
            log.warning("retention: nothing was removed: %s", error.message)
        await asyncio.sleep(pause)


async def sweep_once(store: RetainingStore, rule: Retention) -> int:
    """Remove all that has to go, in batches; returns how many rollouts that were."""
    removed = size = 0
    more = True
    while more:
        swept = await store.sweep(rule.days * _DAY_SECONDS, quota_bytes=rule.quota_bytes, limit=_BATCH)
        removed, size, more = removed + len(swept.rollout_ids), size + swept.bytes, swept.more
        if more:
            await asyncio.sleep(_PAUSE_SECONDS)
    if removed:
        log.info("retention: removed the evidence of %d rollouts, %d bytes", removed, size)
    return removed
