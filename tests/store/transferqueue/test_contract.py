"""The contract, on a real TransferQueue: one store, sink and source apart, and many at once."""

import asyncio
import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from rolltape import registry
from rolltape.errors import ConflictError, FrozenError, RetiredError, StoreError
from rolltape.record import Delivery
from rolltape.store import CaptureStore, LineageMatch
from rolltape.store.transferqueue import TransferQueueStore
from rolltape.store.transferqueue.events import key
from rolltape.testing.contracts import entry, run_store_contract, run_transport_contract
from rolltape.tokens import token_ids

from .cluster import Cluster
from .conftest import Make

pytestmark = pytest.mark.real


async def test_it_keeps_the_contract_of_a_store(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    numbers = itertools.count()

    def made() -> TransferQueueStore:
        number = next(numbers)
        return TransferQueueStore(tmp_path / str(number), namespace=f"{namespace}-{number}", settle_seconds=0.2)

    await run_store_contract(made)


async def test_it_keeps_the_contract_of_a_transport_with_sink_and_source_apart(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    numbers = itertools.count()

    def pair() -> tuple[TransferQueueStore, TransferQueueStore]:
        number = next(numbers)
        place = f"{namespace}-{number}"
        sink = TransferQueueStore(tmp_path / str(number), namespace=place)
        return sink, TransferQueueStore(namespace=place, settle_seconds=0.2)

    await run_transport_contract(pair)


def test_it_is_found_by_name() -> None:
    assert registry.load("store", "transferqueue") is TransferQueueStore


def test_an_address_where_no_cluster_answers_is_refused_at_once() -> None:
    """In a process of its own: this one is connected, and then no address is asked for."""
    opening = (
        "from rolltape.errors import StoreError\n"
        "from rolltape.store.transferqueue import TransferQueueStore\n"
        "try: TransferQueueStore(address='127.0.0.1:1')\n"
        "except StoreError as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", opening], capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout.startswith("no Ray cluster answers at 127.0.0.1:1\n\nhint: give `address`")


async def test_gateways_that_write_one_rollout_continue_each_other(make: Make) -> None:
    async with make("a") as a, make("b") as b, make(None) as trainer:
        sequence = [1]
        for number in range(20):
            one = entry(f"k{number}", [*sequence, number], [60, 2])
            await (a, b)[number % 2].put(one)
            sequence = one.sequence.tolist()
        assert await b.resolve("R", token_ids([*sequence, 5])) == LineageMatch("k19", len(sequence))
        snapshot = await trainer.freeze("R")
    assert [one.parent_call_id for one in snapshot.entries] == [None, *(f"k{number}" for number in range(19))]
    assert [one.step_index for one in snapshot.entries] == list(range(20))
    assert not snapshot.incomplete


async def test_gateways_that_write_the_same_rollouts_at_once_number_every_call(make: Make) -> None:
    async def write(store: CaptureStore, node: str, rollout: int) -> None:
        for number in range(4):
            await store.begin_call(f"R{rollout}", f"{node}{number}")
            await store.put(entry(f"{node}{number}", [rollout, number], [60, 2], rollout_id=f"R{rollout}"))

    async with make("a") as a, make("b") as b, make(None) as trainer:
        await asyncio.gather(*(write(store, node, n) for node, store in {"a": a, "b": b}.items() for n in range(8)))
        for rollout in range(8):
            snapshot = await trainer.freeze(f"R{rollout}")
            assert sorted(one.step_index for one in snapshot.entries if one.step_index is not None) == list(range(8))
            assert (snapshot.version, snapshot.incomplete) == (9, False)


async def test_one_id_with_two_payloads_from_two_gateways_has_one_winner_for_every_reader(make: Make) -> None:
    async with make("a") as a, make("b") as b:
        for number in range(10):
            rollout_id = f"R{number}"
            puts = (entry("k1", [1], [60 + n, 2], rollout_id=rollout_id) for n in range(2))
            done = await asyncio.gather(
                *(store.put(one) for store, one in zip((a, b), puts, strict=True)), return_exceptions=True
            )
            assert sorted(type(one).__name__ for one in done) == ["ConflictError", "NoneType"]
            winner = 60 + [type(one) for one in done].index(type(None))
            for reader in (a, b):
                snapshot = await reader.freeze(rollout_id)
                assert [one.generation_token_ids.tolist() for one in snapshot.entries] == [[winner, 2]]
                assert snapshot.incomplete_reasons == ("k1: put again with another payload; the first is kept",)


async def test_a_late_entry_and_a_drop_that_race_never_both_win(make: Make) -> None:
    outcomes = set()
    async with make("a") as gateway, make(None) as trainer:
        for number in range(40):
            rollout_id = f"R{number}"
            await gateway.put(entry("k1", [1], [60, 2], rollout_id=rollout_id))
            seen = await trainer.freeze(rollout_id)

            async def put_late(rollout_id: str = rollout_id, delay: float = number % 10 / 2000) -> None:
                await asyncio.sleep(delay)
                await gateway.put(entry("k2", [1], [61, 2], rollout_id=rollout_id))

            async def drop_late(rollout_id: str = rollout_id, delay: float = (40 - number) // 10 / 500) -> bool:
                await asyncio.sleep(delay)
                return await trainer.drop(rollout_id, snapshot_id=seen.snapshot_id, version=seen.version)  # noqa: B023

            dropped, put = await asyncio.gather(drop_late(), put_late(), return_exceptions=True)
            assert (dropped, type(put)) in [(True, RetiredError), (False, type(None))]
            outcomes.add(dropped)
            if not dropped:
                now = await trainer.freeze(rollout_id)
                assert [one.model_call_id for one in now.entries] == ["k1", "k2"], "the late entry survives"
                assert await trainer.drop(rollout_id, snapshot_id=now.snapshot_id, version=now.version)
    assert outcomes == {True, False}, "the delays are meant to let each side win"


async def test_of_two_consumers_only_one_drops(make: Make) -> None:
    async with make("a") as gateway, make(None) as one, make(None) as other:
        await gateway.put(entry("k1", [1], [60, 2]))
        seen = await one.freeze("R")
        drops = (store.drop("R", snapshot_id=seen.snapshot_id, version=seen.version) for store in (one, other))
        assert sorted(await asyncio.gather(*drops)) == [False, True]


async def test_a_freeze_and_calls_that_begin_at_once_agree_on_which_began(make: Make) -> None:
    async with make("a") as gateway, make(None, settle_seconds=0) as trainer:
        for number in range(10):
            rollout_id = f"R{number}"
            begins = [gateway.begin_call(rollout_id, f"k{i}") for i in range(6)]
            snapshot, *done = await asyncio.gather(trainer.freeze(rollout_id), *begins, return_exceptions=True)
            assert {type(one) for one in done} <= {type(None), FrozenError}
            state = await trainer.rollout(rollout_id)
            assert state is not None
            assert state.n_open_calls == sum(one is None for one in done)
            assert not isinstance(snapshot, BaseException)


async def test_only_one_of_two_nodes_creates_a_rollout(make: Make) -> None:
    async with make("a") as a, make("b") as b:
        for number in range(10):
            done = await asyncio.gather(
                a.create_rollout(f"R{number}", {"node": "a"}),
                b.create_rollout(f"R{number}", {"node": "b"}),
                return_exceptions=True,
            )
            assert sorted(type(one).__name__ for one in done) == ["ConflictError", "NoneType"]
            state = await b.rollout(f"R{number}")
            assert state is not None
            assert state.labels == {"node": "ab"[[type(one) for one in done].index(type(None))]}


async def test_a_rollout_that_nobody_has_heard_of_is_not_taken_for_one_without_calls(make: Make) -> None:
    async with make("a") as gateway, make(None) as trainer:
        await gateway.create_rollout("announced")
        empty, unknown = await trainer.freeze("announced"), await trainer.freeze("unheard of")
    assert (empty.entries, empty.incomplete) == ((), False)
    assert (unknown.entries, unknown.incomplete) == ((), True)
    assert "never heard of" in unknown.incomplete_reasons[0]


async def test_a_drop_clears_the_queue_and_leaves_the_journal_to_people(make: Make, namespace: str) -> None:
    async with make("a") as gateway, make(None) as trainer:
        await gateway.put(entry("k1", [1], [60, 2], request_text=b"{}"))
        await gateway.settle_delivery("R", "k1", Delivery.DELIVERED)
        seen = await trainer.freeze("R")
        assert await trainer.drop("R", snapshot_id=seen.snapshot_id, version=seen.version)
        left = await trainer._queue.run(trainer._queue.listing(f"{namespace}:rollout:R"))
        assert all(spelled.startswith(('["fence"', '["retire"')) for spelled in left)
        state, kept = await gateway.rollout("R"), await gateway.read("R", texts=True)
        assert await trainer.read("R") is None
        with pytest.raises(RetiredError):
            await gateway.begin_call("R", "k2")
    assert state is not None
    assert (state.n_entries, state.generated_tokens, state.version, state.snapshot_id) == (1, 2, 2, seen.snapshot_id)
    assert kept is not None
    assert kept.entries[0].request_text == b"{}"


async def test_data_that_the_queue_lost_is_named_and_masks(make: Make, namespace: str) -> None:
    async with make("a") as gateway, make(None) as trainer:
        await gateway.put(entry("k1", [1], [60, 2]))
        await gateway.put(entry("k2", [1], [61, 2]))
        view = await trainer._queue.run(trainer._view("R"))
        data = key("data", "k1", view.entries["k1"].digest)
        await trainer._queue.run(trainer._queue.clear(f"{namespace}:rollout:R", [data]))
        snapshot = await trainer.freeze("R")
    assert [one.model_call_id for one in snapshot.entries] == ["k2"]
    assert snapshot.incomplete_reasons == ("k1: damaged: the queue lost its data",)


async def test_what_cannot_be_stored_is_marked_and_its_neighbours_are_not_harmed(make: Make) -> None:
    async with make("a") as gateway, make(None) as trainer:
        bad = entry("bad", [1], [60, 2], extra={"what": object()})
        good = [entry(f"k{i}", [1, i], [60, 2]) for i in range(3)]
        done = await asyncio.gather(*(gateway.put(one) for one in [bad, *good]), return_exceptions=True)
        snapshot = await trainer.freeze("R")
    assert [isinstance(one, StoreError) for one in done] == [True, False, False, False]
    assert sorted(one.model_call_id for one in snapshot.entries) == ["k0", "k1", "k2"]
    assert snapshot.incomplete_reasons == ("bad: its put failed",)


async def test_texts_may_be_left_out(make: Make) -> None:
    async with make("a", texts=False) as store:
        await store.put(entry("k1", [1], [60, 2], request_text=b"{}", output_items=({"type": "message"},)))
        snapshot = await store.read("R", texts=True)
    assert snapshot is not None
    assert (snapshot.entries[0].request_text, snapshot.entries[0].output_items) == (None, ())


async def test_calls_are_never_written_without_a_journal(make: Make) -> None:
    async with make(None) as trainer:
        for doing in (trainer.begin_call("R", "k1"), trainer.put(entry("k1", [1], [60, 2]))):
            with pytest.raises(StoreError, match="journal first"):
                await doing
        assert await trainer.rollouts() == []


async def test_a_closed_store_says_so(make: Make) -> None:
    store = make("a")
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.put(entry("k1", [1], [60, 2]))
    with pytest.raises(StoreError, match="closed"):
        await store.freeze("R")


async def test_a_conflict_is_one_for_a_repeat_from_another_gateway_too(make: Make) -> None:
    async with make("a") as a, make("b") as b:
        one = entry("k1", [1], [60, 2])
        await a.put(one)
        await b.put(one)
        with pytest.raises(ConflictError):
            await b.put(entry("k1", [1], [61, 2]))
        assert (await a.freeze("R")).version == 3
