"""Does a store keep the contract? Checks that any project can run under any test runner.

    from rolltape.testing.contracts import run_store_contract

    async def test_my_store_keeps_the_contract(tmp_path):
        numbers = itertools.count()
        await run_store_contract(lambda: MyStore(tmp_path / str(next(numbers)), settle_seconds=0.2))

Every check gets a fresh store, made with a settle time under a second. A broken rule raises `AssertionError` that
names the check. A transport of two objects, a sink in the model server and a source in the trainer, is checked with
`run_transport_contract`.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from rolltape import tokens
from rolltape.errors import ConflictError, FrozenError, RetiredError, StoreError
from rolltape.record import Delivery, TokenCaptureSnapshot, TokenEntry
from rolltape.store import CaptureStore, LineageMatch, PolicyState, RetainingStore, TokenSink, TokenSource

Pair: TypeAlias = tuple[TokenSink, TokenSource]


def entry(call_id: str, prompt: Sequence[int], generation: Sequence[int], **fields: Any) -> TokenEntry:
    """A valid entry of rollout R with log-probs -0.1, -0.2, ..."""
    given = {
        "rollout_id": "R",
        "model_call_id": call_id,
        "prompt_token_ids": prompt,
        "generation_token_ids": generation,
        "generation_log_probs": [-0.1 * (i + 1) for i in range(len(generation))],
        "model": "m",
        "finish_reason": "stop",
    }
    return TokenEntry(**(given | fields))


def assert_same(got: TokenEntry, wanted: TokenEntry, *, apart_from: Sequence[str] = ()) -> None:
    """Every field is equal, arrays bit for bit (NaN equals itself)."""
    filled = {"step_index", "parent_call_id", "common_prefix_len", "prompt_digest"}
    for name in TokenEntry.__slots__:
        a, b = getattr(got, name), getattr(wanted, name)
        if name in apart_from or (name in filled and b is None):
            continue
        if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
            a, b = _bits(a), _bits(b)
        assert a == b, f"{name} of {wanted.model_call_id} is {a!r}, not {b!r}"


# The transport: sink and source


async def check_an_entry_comes_back_exactly(sink: TokenSink, source: TokenSource) -> None:
    full = entry(
        "k1",
        [1, 2, 3],
        [60, 2],
        log_prob_kind="raw",
        log_prob_spans=((0, 1, "grammar_masked"),),
        error="none",
        created_at=1.5,
        started_at=0.5,
        policy_version="7",
        policy_spans=((0, 2, "7"),),
        sampling_asked={"temperature": 0.2, "stop": ["a", "b"]},
        sampling_applied={"temperature": 1.0},
        response_id="chatcmpl-k1",
        kind="agent",
        headers={"x-session": "s"},
        media=({"sha256": "0"},),
        extra={"foreign": {"deep": [1, None, True]}},
    )
    await sink.put(full)
    assert_same(_only(await source.freeze("R")), full)


async def check_marked_entries_come_back_exactly(sink: TokenSink, source: TokenSource) -> None:
    marked = [
        entry("nan", [1], [60, 2], generation_log_probs=[float("nan"), -0.1]),
        entry("inf", [1], [60, 61, 2], generation_log_probs=[-0.1, float("-inf"), None]),
        entry("short", [1], [60, 61, 2], generation_log_probs=[-0.1]),
        entry("none", [1], [60, 2], generation_log_probs=[]),
        entry("failed", [1], [], outcome="failed", error="the engine died"),
    ]
    for one in marked:
        await sink.put(one)
    got = _by_id(await source.freeze("R"))
    for one in marked:
        assert_same(got[one.model_call_id], one)
        assert got[one.model_call_id].faults == one.faults


async def check_a_repeat_is_a_no_op_and_a_conflict_is_marked(sink: TokenSink, source: TokenSource) -> None:
    await sink.put(entry("k1", [1, 10], [60, 2]))
    await sink.put(entry("k1", [1, 10], [60, 2]))
    await _raises(ConflictError, sink.put(entry("k1", [1, 10], [60, 61, 2])))
    snapshot = await source.freeze("R")
    assert _only(snapshot).generation_token_ids.tolist() == [60, 2]
    assert snapshot.incomplete, "a conflict is lost evidence and must make the rollout incomplete"


async def check_a_freeze_is_idempotent(sink: TokenSink, source: TokenSource) -> None:
    await sink.put(entry("k1", [1], [60, 2]))
    first, second = await source.freeze("R"), await source.freeze("R")
    assert (first.snapshot_id, first.version) == (second.snapshot_id, second.version)
    assert not first.incomplete


async def check_a_late_entry_outdates_the_snapshot(sink: TokenSink, source: TokenSource) -> None:
    await sink.put(entry("k1", [1], [60, 2]))
    seen = await source.freeze("R")
    await sink.put(entry("k2", [1, 60, 2, 5], [61, 2]))
    dropped = await source.drop("R", snapshot_id=seen.snapshot_id, version=seen.version)
    assert not dropped, "a snapshot that did not see an entry must not retire it"
    now = await source.freeze("R")
    assert sorted(_by_id(now)) == ["k1", "k2"]
    assert now.version > seen.version
    assert now.snapshot_id != seen.snapshot_id


async def check_a_mark_makes_it_incomplete_at_any_time(sink: TokenSink, source: TokenSource) -> None:
    await sink.put(entry("k1", [1], [60, 2]))
    before = await source.freeze("R")
    await sink.mark_incomplete("R", "k2")
    after = await source.freeze("R")
    assert (before.incomplete, after.incomplete) == (False, True)
    assert after.version > before.version
    await sink.mark_incomplete("unheard of")
    assert (await source.freeze("unheard of")).incomplete


async def check_doubtful_ids_make_it_incomplete(sink: TokenSink, source: TokenSource) -> None:
    await sink.put(entry("k1", [], [60, 2]))
    snapshot = await source.freeze("R")
    assert snapshot.incomplete
    assert _only(snapshot).faults


async def check_rollouts_do_not_mix(sink: TokenSink, source: TokenSource) -> None:
    puts = [entry(f"k{i}", [1, i], [60, 2], rollout_id=f"R{i % 4}") for i in range(32)]
    await asyncio.gather(*(sink.put(one) for one in puts))
    for number in range(4):
        got = _by_id(await source.freeze(f"R{number}"))
        assert sorted(got) == sorted(f"k{i}" for i in range(number, 32, 4))


async def check_close_is_idempotent(sink: TokenSink, source: TokenSource) -> None:
    await sink.close()
    await sink.close()
    await source.close()
    await source.close()


# What a full store adds


async def check_an_open_call_makes_it_incomplete(store: CaptureStore) -> None:
    await store.begin_call("R", "k1")
    await store.begin_call("R", "k2")
    await store.put(entry("k2", [1], [60, 2]))
    snapshot = await store.freeze("R")
    assert snapshot.incomplete
    assert any("k1" in reason for reason in snapshot.incomplete_reasons), snapshot.incomplete_reasons


async def check_a_freeze_waits_for_a_call_in_flight(store: CaptureStore) -> None:
    await store.begin_call("R", "k1")
    freezing = asyncio.ensure_future(store.freeze("R"))
    await asyncio.sleep(0.05)
    await store.put(entry("k1", [1], [60, 2]))
    snapshot = await freezing
    assert not snapshot.incomplete
    assert _only(snapshot).model_call_id == "k1"


async def check_no_call_begins_after_a_freeze(store: CaptureStore) -> None:
    await store.freeze("R")
    await _raises(FrozenError, store.begin_call("R", "k1"))
    assert not (await store.freeze("R")).entries


async def check_drop_retires_exactly_the_frozen_state(store: CaptureStore) -> None:
    await store.put(entry("k1", [1], [60, 2]))
    assert not await store.drop("R", snapshot_id="", version=0), "only a frozen rollout can be dropped"
    seen = await store.freeze("R")
    assert not await store.drop("R", snapshot_id=seen.snapshot_id, version=seen.version + 1)
    assert not await store.drop("R", snapshot_id="another", version=seen.version)
    assert await store.drop("R", snapshot_id=seen.snapshot_id, version=seen.version)
    assert not await store.drop("R", snapshot_id=seen.snapshot_id, version=seen.version)
    await _raises(RetiredError, store.freeze("R"))
    await _raises(RetiredError, store.begin_call("R", "k2"))
    await _raises(RetiredError, store.put(entry("k2", [1], [61, 2])))
    kept = await store.read("R")
    assert kept is not None, "what a dropped rollout held stays readable until retention removes it"
    assert _only(kept).model_call_id == "k1"


async def check_the_place_of_a_call_is_filled_in(store: CaptureStore) -> None:
    await store.begin_call("R", "k1")
    await store.begin_call("R", "k2")
    await store.begin_call("R", "k3")
    await store.put(entry("k1", [1, 2], [60, 2]))
    await store.put(entry("k3", [1, 2, 60, 9], [62]))
    await store.put(entry("k2", [1, 2, 60, 2, 5], [61, 2]))
    got = _by_id(await store.freeze("R"))
    places = {key: (one.step_index, one.parent_call_id, one.common_prefix_len) for key, one in got.items()}
    assert places == {"k1": (0, None, 0), "k2": (1, "k1", 4), "k3": (2, None, 3)}, places
    for one in got.values():
        assert one.prompt_digest == tokens.digest(one.prompt_token_ids)


async def check_delivery_is_noted_before_a_freeze(store: CaptureStore) -> None:
    await store.put(entry("k1", [1], [60, 2]))
    await store.settle_delivery("R", "k1", Delivery.UNDELIVERED)
    snapshot = await store.freeze("R")
    assert _only(snapshot).delivery is Delivery.UNDELIVERED
    await store.put(entry("k1", [1], [60, 2]))
    assert (await store.freeze("R")).version == snapshot.version, "delivery is no part of the payload"


async def check_texts_come_with_read_alone(store: CaptureStore) -> None:
    for number, text in enumerate([b'{"messages":[1]}', b'{"messages":[1,2,3]}', b""]):
        items = ({"type": "message", "text": f"reply {number}"},)
        await store.put(entry(f"k{number}", [1, number], [60, 2], request_text=text or None, output_items=items))
    frozen, read = _by_id(await store.freeze("R")), await store.read("R", texts=True)
    assert read is not None
    texts = {key: one.request_text for key, one in _by_id(read).items()}
    assert texts == {"k0": b'{"messages":[1]}', "k1": b'{"messages":[1,2,3]}', "k2": None}, texts
    assert all(one.request_text is None for one in frozen.values())
    assert frozen["k1"].output_items == ({"type": "message", "text": "reply 1"},)


async def check_two_attempts_never_share_an_id(store: CaptureStore) -> None:
    await store.create_rollout("R", {"task": "t1"})
    await _raises(ConflictError, store.create_rollout("R"))
    await store.put(entry("k1", [1], [60, 2], rollout_id="S"))
    await _raises(ConflictError, store.create_rollout("S"))
    state = await store.rollout("R")
    assert state is not None
    assert state.labels == {"task": "t1"}


async def check_the_listing_tells_the_state(store: CaptureStore) -> None:
    await store.create_rollout("A")
    await store.begin_call("R", "k1")
    await store.put(entry("k2", [1], [60, 2]))
    await store.set_outcome("R", reward=0.5, ending="finished", labels={"group": 1})
    states = {state.rollout_id: state for state in await store.rollouts()}
    assert list(states) == ["A", "R"]
    got = states["R"]
    assert (got.n_entries, got.n_open_calls, got.generated_tokens, got.frozen) == (1, 1, 2, False)
    assert (got.reward, got.ending, got.labels, got.incomplete) == (0.5, "finished", {"group": 1}, False)
    snapshot = await store.freeze("R")
    assert snapshot.outcome == {"reward": 0.5, "ending": "finished", "labels": {"group": 1}}
    frozen = await store.rollout("R")
    assert frozen is not None
    assert (frozen.frozen, frozen.incomplete, frozen.snapshot_id) == (True, True, snapshot.snapshot_id)
    assert await store.rollout("unheard of") is None
    assert await store.read("unheard of") is None


async def check_a_reward_is_a_number_or_none(store: CaptureStore) -> None:
    await store.set_outcome("R", reward=None, ending="crashed", labels={})
    await _raises(StoreError, store.set_outcome("R", reward=float("nan"), ending=None, labels={}))
    state = await store.rollout("R")
    assert state is not None
    assert (state.reward, state.ending) == (None, "crashed")


async def check_the_policy_is_kept(store: CaptureStore) -> None:
    assert await store.policy() == PolicyState()
    await store.set_policy(PolicyState("8", "paused"))
    assert await store.policy() == PolicyState("8", "paused")


async def check_lineage_finds_the_longest_exact_prefix(store: CaptureStore) -> None:
    def ids(*values: int) -> tokens.IntArray:
        return tokens.token_ids(values)

    await store.put(entry("k1", [1, 2], [60, 2]))
    await store.record("R", "foreign", ids(1, 2, 60, 2, 7, 8))
    await store.record("R", "k1", ids(1, 2, 60, 2))
    assert await store.resolve("R", ids(1, 2, 60, 2, 7, 8, 9)) == LineageMatch("foreign", 6)
    assert await store.resolve("R", ids(1, 2, 60, 2, 7)) == LineageMatch("k1", 4)
    assert await store.resolve("R", ids(1, 2, 60)) is None
    assert await store.resolve("unheard of", ids(1)) is None
    assert list(_by_id(await store.freeze("R"))) == ["k1"], "a known sequence is no entry"


async def check_many_writers_at_once_are_each_acknowledged(store: CaptureStore) -> None:
    """And none starves: all are through before any gets half as far again."""
    n_writers, n_calls = 64, 4
    done = [0] * n_writers

    async def write(writer: int) -> None:
        sequence = [1, writer]
        for call in range(n_calls):
            await store.begin_call(f"W{writer}", f"k{call}")
            one = entry(f"k{call}", [*sequence, 5], [60 + call, 2], rollout_id=f"W{writer}")
            await store.put(one)
            sequence = one.sequence.tolist()
            done[writer] += 1

    await asyncio.gather(*(write(writer) for writer in range(n_writers)))
    assert done == [n_calls] * n_writers
    for writer in (0, n_writers - 1):
        snapshot = await store.freeze(f"W{writer}")
        assert [one.parent_call_id for one in snapshot.entries] == [None, "k0", "k1", "k2"]
        assert not snapshot.incomplete


async def check_a_freeze_among_puts_sees_what_was_acknowledged_before_it(store: CaptureStore) -> None:
    """Every put of the race is in the snapshot, or in the next one, whose version is higher; none is lost."""
    acknowledged: list[str] = []

    async def put(number: int) -> None:
        await store.put(entry(f"k{number}", [1, number], [60, 2]))
        acknowledged.append(f"k{number}")

    await put(0)
    putting = asyncio.gather(*(put(number) for number in range(1, 24)))
    before = list(acknowledged)
    seen = await store.freeze("R")
    await putting
    now = await store.freeze("R")
    assert set(before) <= set(_by_id(seen))
    assert set(_by_id(now)) == set(acknowledged)
    unseen = len(now.entries) - len(seen.entries)
    assert now.version > seen.version if unseen else now.snapshot_id == seen.snapshot_id
    if unseen:
        assert not await store.drop("R", snapshot_id=seen.snapshot_id, version=seen.version)


async def check_a_retired_id_stays_taken_and_the_next_attempt_is_its_own(store: CaptureStore) -> None:
    await store.create_rollout("T-0")
    await store.put(entry("k1", [1], [60, 2], rollout_id="T-0"))
    seen = await store.freeze("T-0")
    assert await store.drop("T-0", snapshot_id=seen.snapshot_id, version=seen.version)
    await _raises(ConflictError, store.create_rollout("T-0"))
    await _raises(RetiredError, store.put(entry("k1", [1], [60, 2], rollout_id="T-0")))
    await store.create_rollout("T-0-a1")
    await store.put(entry("k1", [1], [61, 2], rollout_id="T-0-a1"))
    assert _only(await store.freeze("T-0-a1")).generation_token_ids.tolist() == [61, 2]


async def check_retention_removes_what_was_retired_and_nothing_else(store: CaptureStore) -> None:
    """Where the store keeps evidence itself; a transport has its own rule."""
    if not isinstance(store, RetainingStore):
        return
    for name in ("gone", "frozen", "open"):
        await store.put(entry("k1", [1], [60, 2], rollout_id=name))
    seen = await store.freeze("gone")
    await store.freeze("frozen")
    assert await store.drop("gone", snapshot_id=seen.snapshot_id, version=seen.version)
    assert not (await store.sweep(3600)).rollout_ids, "it was retired just now"
    assert (await store.sweep(0, dry_run=True)).rollout_ids == ("gone",)
    assert await store.read("gone") is not None, "a dry run removes nothing"
    swept = await store.sweep(0, limit=8)
    assert (swept.rollout_ids, swept.entries, swept.more) == (("gone",), 1, False)
    assert swept.bytes > 0
    assert await store.read("gone") is None
    await _raises(RetiredError, store.begin_call("gone", "k2"))
    await _raises(ConflictError, store.create_rollout("gone"))
    for name in ("frozen", "open"):
        kept = await store.read(name)
        assert kept is not None
        assert len(kept.entries) == 1


TRANSPORT_CHECKS = tuple(
    check
    for name, check in list(globals().items())
    if name.startswith("check_") and "source" in inspect.signature(check).parameters
)
STORE_CHECKS = tuple(
    check
    for name, check in list(globals().items())
    if name.startswith("check_") and "store" in inspect.signature(check).parameters
)


async def run_transport_contract(make_pair: Callable[[], Pair | Awaitable[Pair]]) -> None:
    """Run every check of sink and source. `make_pair` gives a fresh pair over a fresh, empty transport."""
    for check in TRANSPORT_CHECKS:
        made = make_pair()
        sink, source = await made if inspect.isawaitable(made) else made
        await _run(check, sink, source)


async def run_store_contract(make_store: Callable[[], CaptureStore | Awaitable[CaptureStore]]) -> None:
    """Run every check. `make_store` gives a fresh, empty store; a sink, source and lineage store in one."""
    for check in TRANSPORT_CHECKS + STORE_CHECKS:
        made = make_store()
        store = await made if inspect.isawaitable(made) else made
        await _run(check, *((store, store) if check in TRANSPORT_CHECKS else (store,)))


async def _run(check: Callable[..., Awaitable[None]], *parts: TokenSink | TokenSource) -> None:
    try:
        await check(*parts)
    except Exception as error:
        raise AssertionError(f"{check.__name__}: {error or type(error).__name__}") from error
    finally:
        for part in parts:
            await part.close()


async def _raises(kind: type[Exception], doing: Awaitable[object]) -> None:
    try:
        await doing
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def _bits(array: Any) -> Any:
    return None if array is None else (array.dtype.str, array.shape, array.tobytes())


def _by_id(snapshot: TokenCaptureSnapshot) -> Mapping[str, TokenEntry]:
    found = {one.model_call_id: one for one in snapshot.entries}
    assert len(found) == len(snapshot.entries), "two entries have one id"
    return found


def _only(snapshot: TokenCaptureSnapshot) -> TokenEntry:
    assert len(snapshot.entries) == 1, f"{len(snapshot.entries)} entries, not one"
    return snapshot.entries[0]
