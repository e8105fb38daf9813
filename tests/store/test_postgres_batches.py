"""What waits together costs a few round trips together, and is as if each had come alone."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rolltape.errors import ConflictError, FrozenError, StoreError
from rolltape.store import CaptureStore
from rolltape.store.memory import MemoryStore
from rolltape.store.postgres import PostgresStore
from rolltape.store.postgres.session import Session
from rolltape.testing.contracts import assert_same, entry

from .postgres_server import Server

pytestmark = pytest.mark.real

Step = Callable[[CaptureStore], Awaitable[Any]]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def dsn(server: Server) -> str:
    return server.database()


async def together(store: CaptureStore, steps: Sequence[Step]) -> list[Any]:
    """What each step answers, all of them in one batch, in this order."""
    if isinstance(store, PostgresStore):
        held, waiting = asyncio.Event(), store._writer.waiting
        gate = asyncio.create_task(
            store._write("", lambda db: asyncio.run_coroutine_threadsafe(held.wait(), loop).result())
        )
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0)
        while not waiting.empty:  # noqa: ASYNC110 - the writer's thread takes the job that holds it
            await asyncio.sleep(0.001)
        tasks = [asyncio.ensure_future(step(store)) for step in steps]
        await asyncio.sleep(0)
        before = store._writer.batches
        held.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        await gate
        assert store._writer.batches <= before + 2
        return answers
    answers = []
    for step in steps:
        try:
            answers.append(await step(store))
        except StoreError as error:
            answers.append(error)
    return answers


def puts(n: int, *, rollouts: int, call: str = "k") -> list[Step]:
    def put(i: int) -> Step:
        prompt = [i % rollouts, 1_000 * len(call) + i]
        one = entry(f"{call}{i}", prompt, [60, 2], rollout_id=f"R{i % rollouts}", request_text=b"{}" * i)
        return lambda store: store.put(one)

    return [put(i) for i in range(n)]


@pytest.mark.parametrize("rollouts", [64, 7, 1])
async def test_a_batch_of_many_puts_sends_no_more_statements_than_one_of_three(
    dsn: str, rollouts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = 0
    send = Session._send

    def counted(self: Session, *arguments: Any) -> Any:
        nonlocal sent
        sent += 1
        return send(self, *arguments)

    async with PostgresStore(dsn) as store:
        counts = []
        await together(store, puts(rollouts, rollouts=rollouts, call="first"))
        monkeypatch.setattr(Session, "_send", counted)
        for n in (3, 64):
            sent = 0
            await together(store, puts(n, rollouts=rollouts, call=f"of{n}-"))
            counts.append(sent)
        assert counts[1] <= counts[0]
        assert counts[1] < 12
        for number in range(rollouts):
            assert not (await store.freeze(f"R{number}")).incomplete


async def test_a_begin_a_put_and_a_mark_of_one_call_in_one_batch_see_each_other(dsn: str) -> None:
    one = entry("k1", [1], [60, 2])
    steps: list[Step] = [
        lambda store: store.begin_call("R", "k1"),
        lambda store: store.put(one),
        lambda store: store.put(one),
        lambda store: store.begin_call("R", "k1"),
        lambda store: store.begin_call("R", "k2"),
        lambda store: store.mark_incomplete("R", "k2"),
        lambda store: store.put(entry("k2", [1, 60, 2, 5], [61])),
        lambda store: store.put(entry("k1", [1], [62, 2])),
    ]
    async with PostgresStore(dsn, settle_seconds=0) as store:
        answers = await together(store, steps)
        snapshot = await store.freeze("R")
    assert [type(one) for one in answers] == [
        *[type(None)] * 3, ConflictError, *[type(None)] * 3, ConflictError,
    ]  # fmt: skip
    assert [(one.model_call_id, one.step_index, one.parent_call_id) for one in snapshot.entries] == [
        ("k1", 0, None),
        ("k2", 2, "k1"),
    ]
    assert snapshot.version == 1 + 2 + 2


async def test_a_rollout_is_created_before_its_first_call_of_the_same_batch(dsn: str) -> None:
    steps: list[Step] = [
        lambda store: store.create_rollout("R", {"task": 1}),
        lambda store: store.begin_call("R", "k1"),
        lambda store: store.begin_call("S", "k1"),
        lambda store: store.create_rollout("S", {}),
    ]
    async with PostgresStore(dsn) as store:
        answers = await together(store, steps)
        state = await store.rollout("R")
    assert [type(one) for one in answers] == [*[type(None)] * 3, ConflictError]
    assert state is not None
    assert state.labels == {"task": 1}


async def test_a_batch_with_one_call_too_odd_and_one_frozen_stores_all_others(dsn: str) -> None:
    async with PostgresStore(dsn, settle_seconds=0) as store:
        await store.freeze("frozen")
        odd: list[Step] = [
            lambda store: store.put(entry("odd\ud800", [1], [60, 2], rollout_id="odd")),
            lambda store: store.begin_call("frozen", "k1"),
            lambda store: store.put(entry("nul\0", [1], [60, 2], rollout_id="nul")),
        ]
        answers = await together(store, [*puts(20, rollouts=10), *odd])
        assert [isinstance(one, StoreError) for one in answers] == [*[False] * 20, True, True, True]
        assert isinstance(answers[21], FrozenError)
        for number in range(10):
            snapshot = await store.freeze(f"R{number}")
            assert (len(snapshot.entries), snapshot.incomplete) == (2, False)
        assert (await store.freeze("nul")).incomplete


async def test_numbers_that_were_drawn_before_another_node_wrote_are_not_used(dsn: str) -> None:
    async with PostgresStore(dsn) as a, PostgresStore(dsn) as b:
        await a.put(entry("k0", [0], [60, 2]))

        def overtaken(db: Session) -> tuple[int, int]:
            db.stock(2)
            with psycopg.connect(dsn, autocommit=True) as other:
                other.execute("SELECT nextval('rolltape.entries_seq_seq') FROM generate_series(1, 10)")
                newest = other.execute("SELECT last_value FROM rolltape.entries_seq_seq").fetchone()
            assert newest is not None
            return db.draw(newest[0]), newest[0]

        drawn, newest = await a._write("", overtaken)  # type: ignore[arg-type]
        assert drawn > newest
        await asyncio.gather(*(store.put(entry(f"k{n}", [n], [60])) for n, store in enumerate((a, b, a, b), 1)))
        assert not (await b.freeze("R")).incomplete


rollout_ids = st.sampled_from(["R", "S", "T"])
call_ids = st.sampled_from(["k1", "k2", "k3", "k4"])
ids = st.lists(st.integers(0, 1), max_size=4)


def _put(rollout_id: str, call_id: str, prompt: list[int], generation: list[int], faults: tuple[str, ...]) -> Step:
    one = entry(call_id, prompt, generation, rollout_id=rollout_id, faults=faults)
    return lambda store: store.put(one)


steps = st.one_of(
    st.builds(_put, rollout_ids, call_ids, ids, ids, st.sampled_from([(), (), ("torn",)])),
    st.builds(lambda r, c: lambda store: store.begin_call(r, c), rollout_ids, call_ids),
    st.builds(lambda r, c: lambda store: store.mark_incomplete(r, c), rollout_ids, call_ids),
    st.builds(lambda r: lambda store: store.create_rollout(r, {"task": 1}), rollout_ids),
    st.builds(lambda r: lambda store: store.set_outcome(r, reward=1.0, ending=None, labels={}), rollout_ids),
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(batches=st.lists(st.lists(steps, min_size=1, max_size=14), min_size=1, max_size=4), frozen=st.booleans())
def test_a_batch_answers_and_leaves_what_its_jobs_would_one_by_one(
    server: Server, batches: list[list[Step]], frozen: bool
) -> None:
    async def both() -> None:
        memory = MemoryStore(settle_seconds=0)
        async with PostgresStore(server.database(), settle_seconds=0) as store:
            for batch in batches:
                wanted, got = await together(memory, batch), await together(store, batch)
                assert [type(one) for one in got] == [type(one) for one in wanted]
                if frozen:
                    await asyncio.gather(memory.freeze("S"), store.freeze("S"))
            for rollout_id in ("R", "S", "T"):
                a, b = await memory.freeze(rollout_id), await store.freeze(rollout_id)
                assert [one.model_call_id for one in a.entries] == [one.model_call_id for one in b.entries]
                for left, right in zip(a.entries, b.entries, strict=True):
                    assert_same(left, right)
                assert (a.version, a.incomplete, sorted(a.incomplete_reasons)) == (
                    b.version, b.incomplete, sorted(b.incomplete_reasons),
                )  # fmt: skip
                x, y = await memory.rollout(rollout_id), await store.rollout(rollout_id)
                assert x is not None
                assert y is not None
                assert (x.n_entries, x.generated_tokens, x.n_open_calls) == (
                    y.n_entries, y.generated_tokens, y.n_open_calls,
                )  # fmt: skip

    asyncio.run(both())
