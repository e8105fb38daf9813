"""The conformance kit passes good stores and names what a bad one breaks."""

import itertools
from pathlib import Path

import pytest

from rolltape.record import TokenEntry
from rolltape.store import TokenCaptureStore, TokenSink, TokenSource
from rolltape.store.memory import MemoryStore
from rolltape.testing.contracts import run_store_contract, run_transport_contract


async def test_the_reference_keeps_the_contract() -> None:
    await run_store_contract(lambda: MemoryStore(settle_seconds=0.1))


async def test_the_sqlite_store_keeps_the_contract(tmp_path: Path) -> None:
    numbers = itertools.count()
    await run_store_contract(lambda: TokenCaptureStore(tmp_path / str(next(numbers)), settle_seconds=0.1))


async def test_sink_and_source_share_nothing_but_the_directory(tmp_path: Path) -> None:
    numbers = itertools.count()

    async def make_pair() -> tuple[TokenSink, TokenSource]:
        folder = tmp_path / str(next(numbers))
        return TokenCaptureStore(folder), TokenCaptureStore(folder, settle_seconds=0.1)

    await run_transport_contract(make_pair)


async def test_a_store_that_overwrites_is_named() -> None:
    class Overwriting(MemoryStore):
        async def put(self, entry: TokenEntry) -> None:
            self._rollouts.pop(entry.rollout_id, None)
            await super().put(entry)

    with pytest.raises(AssertionError, match="check_marked_entries_come_back_exactly"):
        await run_store_contract(lambda: Overwriting(settle_seconds=0.1))
