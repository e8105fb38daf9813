"""Where token entries go: the file store, a sink of somebody else's, or nowhere. Decided once, at start-up."""

import logging
from collections.abc import Mapping

from rolltape import registry
from rolltape.config import ServeConfig, TokenIdCapture
from rolltape.foreign import ForeignClass, build
from rolltape.store import CaptureStore
from rolltape.store.relay import LINEAGE_METHODS, OFFERED, SINK_METHODS, Hired, Relay

log = logging.getLogger("rolltape.gateway")


async def open_store(config: ServeConfig) -> CaptureStore:
    """What this gateway records to; closed by whoever opened it. Raises `ConfigError`, and logs what looks wrong."""
    for warning in config.warnings():
        log.warning(warning)
    block = config.token_id_capture
    if not config.capturing:
        return Relay(None, why="nothing is captured: token_id_capture.enabled is false")
    if block is not None and block.sink is not None:
        return await _foreign(block, block.sink)
    store: CaptureStore = registry.load("store", "sqlite")(
        config.dir, texts=config.texts, settle_seconds=config.limits.settle_seconds
    )
    return store


async def _foreign(block: TokenIdCapture, path: str) -> CaptureStore:
    """The sink behind a relay; a class that is a whole store is one."""
    sink = await _hire(ForeignClass("token_id_capture.sink", path, block.sink_kwargs), SINK_METHODS)
    if block.lineage_store is None and isinstance(sink.it, CaptureStore):
        return sink.it
    why = f"it writes to {path} and reads nothing back; ask the TokenSource of that transport"
    relay = Relay(sink, why=why)
    if block.lineage_store is not None:
        named = ForeignClass("token_id_capture.lineage_store", block.lineage_store, block.lineage_store_kwargs)
        try:
            relay.lineage = await _hire(named, LINEAGE_METHODS)
        except BaseException:
            await relay.close()
            raise
    return relay


async def _hire(named: ForeignClass, required: Mapping[str, str]) -> Hired:
    built = await build(named, required=required, optional=OFFERED)
    return Hired(built, named.path, named.scrub)
