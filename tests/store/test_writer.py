"""Group commit as its callers see it."""

import asyncio
import time
from pathlib import Path

import pytest

from rolltape.record import Delivery
from rolltape.store import TokenCaptureStore
from rolltape.store.tables import grouping
from rolltape.testing.contracts import entry


async def delivery_of(store: TokenCaptureStore) -> Delivery:
    snapshot = await store.read("R")
    assert snapshot is not None
    return snapshot.entries[0].delivery


async def test_a_delivery_note_rides_on_the_next_batch(store: TokenCaptureStore) -> None:
    await store.put(entry("k1", [1], [60, 2]))
    batches = store._writer.batches
    await store.settle_delivery("R", "k1", Delivery.DELIVERED)
    await store.put(entry("k2", [1], [61, 2]))
    assert await delivery_of(store) is Delivery.DELIVERED
    assert store._writer.batches == batches + 1


async def test_a_delivery_note_is_written_though_nothing_follows(store: TokenCaptureStore) -> None:
    await store.put(entry("k1", [1], [60, 2]))
    await store.settle_delivery("R", "k1", Delivery.UNDELIVERED)
    assert await delivery_of(store) is Delivery.UNKNOWN
    await asyncio.sleep(grouping.LAZY_SECONDS + 0.1)
    assert await delivery_of(store) is Delivery.UNDELIVERED


async def test_a_delivery_note_is_written_by_close(tmp_path: Path) -> None:
    async with TokenCaptureStore(tmp_path) as store:
        await store.put(entry("k1", [1], [60, 2]))
        await store.settle_delivery("R", "k1", Delivery.DELIVERED)
    async with TokenCaptureStore(tmp_path) as store:
        assert await delivery_of(store) is Delivery.DELIVERED


async def test_a_put_whose_caller_left_is_stored_all_the_same(store: TokenCaptureStore) -> None:
    putting = asyncio.ensure_future(store.put(entry("k1", [1], [60, 2])))
    await asyncio.sleep(0)
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    assert len((await store.freeze("R")).entries) == 1


def test_one_store_serves_several_event_loops(tmp_path: Path) -> None:
    store = TokenCaptureStore(tmp_path)
    for number in range(3):
        asyncio.run(store.put(entry(f"k{number}", [1], [number])))
    assert len(asyncio.run(store.freeze("R")).entries) == 3
    asyncio.run(store.close())


async def test_a_freeze_waits_once_for_a_call_that_never_ends(tmp_path: Path) -> None:
    async with TokenCaptureStore(tmp_path, settle_seconds=1.0) as store:
        await store.begin_call("R", "k1")
        start = time.monotonic()
        first = await store.freeze("R")
        waited = time.monotonic() - start
        second = await store.freeze("R")
        again = time.monotonic() - start - waited
    assert waited >= 1.0
    assert again < waited
    assert (first.incomplete_reasons, first.snapshot_id) == (second.incomplete_reasons, second.snapshot_id)
