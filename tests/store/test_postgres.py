"""The contract and the tables on a real PostgreSQL server, which the tests start themselves."""

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from rolltape.errors import ConflictError, FrozenError, StoreError
from rolltape.store import CaptureStore
from rolltape.store.postgres import PostgresStore, schema
from rolltape.testing.contracts import entry, run_store_contract, run_transport_contract

from .postgres_server import Server

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def dsn(server: Server) -> str:
    return server.database()


async def test_it_keeps_the_contract_of_a_store(server: Server) -> None:
    await run_store_contract(lambda: PostgresStore(server.database(), settle_seconds=0.2))


async def test_it_keeps_the_contract_of_a_transport_with_sink_and_source_apart(server: Server) -> None:
    def pair() -> tuple[PostgresStore, PostgresStore]:
        dsn = server.database()
        return PostgresStore(dsn), PostgresStore(dsn, settle_seconds=0.2)

    await run_transport_contract(pair)


async def test_two_nodes_that_write_one_rollout_continue_each_other(dsn: str) -> None:
    async with PostgresStore(dsn) as a, PostgresStore(dsn) as b:
        sequence = [1]
        for number in range(20):
            one = entry(f"k{number}", [*sequence, number], [60, 2])
            await (a, b)[number % 2].put(one)
            sequence = one.sequence.tolist()
        snapshot = await a.freeze("R")
    assert [one.parent_call_id for one in snapshot.entries] == [None, *(f"k{number}" for number in range(19))]
    assert [one.step_index for one in snapshot.entries] == list(range(20))
    assert not snapshot.incomplete


async def test_nodes_that_write_the_same_rollouts_at_once_never_block_each_other(dsn: str) -> None:
    async def write(store: CaptureStore, node: str, rollout: int) -> None:
        for number in range(4):
            call_id = f"{node}{number}"
            await store.begin_call(f"R{rollout}", call_id)
            await store.put(entry(call_id, [rollout, number], [60, 2], rollout_id=f"R{rollout}"))

    async with PostgresStore(dsn) as a, PostgresStore(dsn) as b, PostgresStore(dsn) as c:
        nodes = {"a": a, "b": b, "c": c}
        await asyncio.gather(*(write(store, node, n) for node, store in nodes.items() for n in range(16)))
        for rollout in range(16):
            snapshot = await c.freeze(f"R{rollout}")
            assert sorted(one.step_index for one in snapshot.entries if one.step_index is not None) == list(range(12))
            assert (snapshot.version, snapshot.incomplete) == (13, False)


async def test_only_one_of_two_nodes_creates_a_rollout(dsn: str) -> None:
    async with PostgresStore(dsn) as a, PostgresStore(dsn) as b:
        for number in range(10):
            done = await asyncio.gather(
                a.create_rollout(f"R{number}", {"node": "a"}),
                b.create_rollout(f"R{number}", {"node": "b"}),
                return_exceptions=True,
            )
            assert sorted(type(one).__name__ for one in done) == ["ConflictError", "NoneType"]


async def test_waiting_writers_share_a_commit(dsn: str) -> None:
    async with PostgresStore(dsn) as store:
        before = store._writer.batches
        await asyncio.gather(*(store.put(entry(f"k{i}", [1, i], [60], rollout_id=f"R{i}")) for i in range(64)))
        assert store._writer.batches - before <= 8


async def test_an_operation_that_fails_leaves_its_neighbours_intact_and_is_marked(dsn: str) -> None:
    async with PostgresStore(dsn) as store:
        bad = entry("bad", [1], [60, 2], extra={"what": object()})
        unspeakable = entry("nul\0id", [1], [60, 2])
        good = [entry(f"k{i}", [1, i], [60, 2]) for i in range(3)]
        done = await asyncio.gather(*(store.put(one) for one in [bad, *good, unspeakable]), return_exceptions=True)
        snapshot = await store.freeze("R")
    assert [isinstance(one, StoreError) for one in done] == [True, False, False, False, True]
    assert sorted(one.model_call_id for one in snapshot.entries) == ["k0", "k1", "k2"]
    assert sorted(snapshot.incomplete_reasons) == [
        "a call with an id that PostgreSQL cannot hold",
        "bad: its put failed",
    ]


async def test_refusals_within_a_batch_are_told_to_their_callers_alone(dsn: str) -> None:
    async with PostgresStore(dsn, settle_seconds=0) as store:
        await store.freeze("frozen")
        await store.put(entry("k1", [1], [60, 2]))
        done = await asyncio.gather(
            store.begin_call("frozen", "k1"),
            store.begin_call("R", "k2"),
            store.put(entry("k1", [1], [61, 2])),
            return_exceptions=True,
        )
        state = await store.rollout("R")
    assert [type(one) for one in done] == [FrozenError, type(None), ConflictError]
    assert state is not None
    assert (state.n_entries, state.n_open_calls, state.incomplete) == (1, 1, True)


async def test_texts_may_be_left_out(dsn: str) -> None:
    async with PostgresStore(dsn, texts=False) as store:
        await store.put(entry("k1", [1], [60, 2], request_text=b"{}", output_items=({"type": "message"},)))
        snapshot = await store.read("R", texts=True)
    assert snapshot is not None
    assert (snapshot.entries[0].request_text, snapshot.entries[0].output_items) == (None, ())


async def test_a_sweep_removes_what_retired_rollouts_hold(dsn: str) -> None:
    async with PostgresStore(dsn) as store:
        for rollout_id in ("R", "S"):
            await store.put(entry("k1", [1], [60, 2], rollout_id=rollout_id, request_text=b"{}"))
        seen = await store.freeze("R")
        assert await store.drop("R", snapshot_id=seen.snapshot_id, version=seen.version)
        assert not (await store.sweep()).rollout_ids
        assert (await store.sweep(0)).rollout_ids == ("R",)
        assert await store.read("R") is None
        assert len((await store.freeze("S")).entries) == 1


async def test_bytes_that_changed_on_the_server_are_found(dsn: str) -> None:
    async with PostgresStore(dsn) as store:
        await store.put(entry("k1", [1], [60, 2]))
        await store.put(entry("k2", [2], [61, 2]))
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("UPDATE rolltape.entries SET log_probs = '\\x0000000000000000' WHERE call_id = 'k1'")
        snapshot = await store.freeze("R")
    assert [one.model_call_id for one in snapshot.entries] == ["k2"]
    assert snapshot.incomplete_reasons == ("k1: damaged: it does not match its digest",)


def test_a_newer_schema_is_refused(dsn: str) -> None:
    schema.prepare(dsn)
    schema.prepare(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("UPDATE rolltape.schema_version SET version = %s", (len(schema.MIGRATIONS) + 1,))
    with pytest.raises(StoreError, match="schema version"):
        PostgresStore(dsn)


async def test_many_processes_may_make_the_tables_at_once(dsn: str) -> None:
    await asyncio.gather(*(asyncio.to_thread(schema.prepare, dsn) for _ in range(6)))
    async with PostgresStore(dsn) as store:
        await store.put(entry("k1", [1], [60, 2]))


async def test_a_commit_is_durable_whatever_the_database_prefers(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {dsn.rsplit('/', 1)[1]} SET synchronous_commit = off".encode())
    async with PostgresStore(dsn) as store:
        said = await store._write("", lambda db: db.execute("SHOW synchronous_commit").fetchone())
    assert said == ("on",)


def test_a_place_without_a_server_is_refused_and_no_password_is_shown() -> None:
    with pytest.raises(StoreError, match=r"cannot open the store in PostgreSQL at 127\.0\.0\.1:1/x") as refused:
        PostgresStore("postgresql://me:hunter2@127.0.0.1:1/x")
    with pytest.raises(StoreError, match="no connection string") as unreadable:
        PostgresStore("postgresql://me:hunter2@host/x?nonsense=hunter2")
    assert "hunter2" not in f"{refused.value!r}{refused.value}{unreadable.value!r}{unreadable.value}"
