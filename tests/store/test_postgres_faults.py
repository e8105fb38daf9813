"""Several processes, kills and a server that goes away: what was acknowledged is there, and nothing hangs."""

import asyncio
import contextlib
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from rolltape.errors import StoreError
from rolltape.store.postgres import PostgresStore, session
from rolltape.testing.contracts import assert_same, entry

from .crashing import expected
from .postgres_server import Server

pytestmark = pytest.mark.real

CRASHING = Path(__file__).with_name("crashing.py")
WRITE_UNTIL_FROZEN = """
import asyncio, sys
from rolltape.errors import FrozenError
from rolltape.store.postgres import PostgresStore
from rolltape.testing.contracts import entry
async def main(dsn, name):
    async with PostgresStore(dsn) as store:
        for number in range(100_000):
            try:
                await store.begin_call("R", f"{name}{number}")
            except FrozenError:
                break
            await store.put(entry(f"{name}{number}", [ord(name), number], [60, 2]))
        print(number)
asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


def write_until(dsn: str, log: Path, size: int, end: Callable[[], object]) -> None:
    """Start a writer; when its log has grown by `size` bytes, do `end`, and kill the writer if it still lives."""
    log.touch()
    before = log.stat().st_size
    child = subprocess.Popen([sys.executable, str(CRASHING), dsn, str(log)], stderr=subprocess.DEVNULL)
    try:
        while log.stat().st_size < before + size and child.poll() is None:
            time.sleep(0.005)
        end()
    finally:
        child.kill()
        child.wait()


def acknowledged(log: Path) -> list[tuple[str, str]]:
    lines = [line.split() for line in log.read_text().splitlines()]
    return [(words[0], words[1]) for words in lines if words[-1:] == ["."]]


async def assert_holds(dsn: str, calls: list[tuple[str, str]]) -> None:
    """Every acknowledged call is there as it was put, and only calls that were begun are missing."""
    assert calls
    async with PostgresStore(dsn, settle_seconds=0) as store:
        for rollout_id in {rollout_id for rollout_id, _ in calls}:
            snapshot = await store.freeze(rollout_id)
            held = {one.model_call_id: one for one in snapshot.entries}
            for call_id in (call_id for owner, call_id in calls if owner == rollout_id):
                assert_same(held[call_id], expected(rollout_id, call_id), apart_from=["request_text"])
            assert all("no outcome" in reason for reason in snapshot.incomplete_reasons), snapshot.incomplete_reasons


async def test_a_freeze_in_a_third_process_fences_two_writers(server: Server) -> None:
    dsn = server.database()
    writers = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", WRITE_UNTIL_FROZEN, dsn, name, stdout=subprocess.PIPE
        )
        for name in "ab"
    ]
    async with PostgresStore(dsn) as store:
        while (state := await store.rollout("R")) is None or state.n_entries < 60:  # noqa: ASYNC110 - other processes
            await asyncio.sleep(0.02)
        snapshot = await store.freeze("R")
        outputs = [(await writer.communicate())[0] for writer in writers]
        counts = [int(output) for output in outputs]
        held = {one.model_call_id for one in snapshot.entries}
        assert held == {f"{name}{number}" for name, n in zip("ab", counts, strict=True) for number in range(n)}
        assert min(counts) > 0
        assert not snapshot.incomplete
        assert await store.drop("R", snapshot_id=snapshot.snapshot_id, version=snapshot.version)


async def test_nothing_acknowledged_is_lost_by_killing_writers(server: Server, tmp_path: Path) -> None:
    dsn, log = server.database(), tmp_path / "log"
    for _ in range(5):
        write_until(dsn, log, 1, lambda: time.sleep(random.uniform(0.0, 0.3)))
    await assert_holds(dsn, acknowledged(log))


async def test_nothing_acknowledged_is_lost_by_killing_the_server(server: Server, tmp_path: Path) -> None:
    dsn, log = server.database(), tmp_path / "log"
    write_until(dsn, log, 2_000, lambda: server.stop(kill=True))
    server.start()
    await assert_holds(dsn, acknowledged(log))


async def test_a_server_that_is_away_is_an_error_until_it_is_back(server: Server) -> None:
    async with PostgresStore(server.database()) as store:
        await store.begin_call("R", "k1")
        await store.put(entry("k1", [1, 10], [60, 2]))
        server.stop()
        with pytest.raises(StoreError, match="not stored"):
            await store.put(entry("k2", [1, 10, 60, 2, 5], [61, 2]))
        with pytest.raises(StoreError, match="cannot read"):
            await store.rollout("R")
        server.start()
        await store.put(entry("k3", [1, 10, 60, 2, 5], [62, 2]))
        await asyncio.sleep(1.2)
        snapshot = await store.freeze("R")
    assert {one.model_call_id: one.parent_call_id for one in snapshot.entries} == {"k1": None, "k3": "k1"}
    assert snapshot.incomplete_reasons == ("k2: its put failed",)


async def test_a_restart_between_two_calls_goes_unnoticed(server: Server) -> None:
    async with PostgresStore(server.database()) as store:
        await store.put(entry("k1", [1], [60, 2]))
        assert await store.rollout("R") is not None
        server.stop()
        server.start()
        await store.put(entry("k2", [1, 60, 2], [61]))
        server.stop()
        server.start()
        snapshot = await store.freeze("R")
    assert [one.model_call_id for one in snapshot.entries] == ["k1", "k2"]
    assert not snapshot.incomplete


async def test_a_node_that_stalls_with_a_rollout_locked_blocks_the_others_for_some_seconds_only(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "STALLED_SECONDS", 1)
    dsn = server.database()
    async with PostgresStore(dsn) as store:
        await store.put(entry("k1", [1], [60, 2]))
        stalled = session.connect(dsn, writing=True)
        stalled.execute("BEGIN")
        stalled.execute("SELECT 1 FROM rollouts WHERE rollout_id = 'R' FOR UPDATE").fetchall()
        before = time.monotonic()
        await store.put(entry("k2", [2], [60, 2]))
        assert 0.5 < time.monotonic() - before < 5
        with pytest.raises(psycopg.Error):
            stalled.execute("SELECT 1")
        stalled.close()
        assert not (await store.freeze("R")).incomplete


async def test_two_transactions_that_wait_for_each_other_are_run_again(server: Server) -> None:
    dsn = server.database()
    async with PostgresStore(dsn) as store:
        for rollout_id in ("A", "B"):
            await store.put(entry("k0", [1], [60, 2], rollout_id=rollout_id))
        other = session.connect(dsn, writing=True)
        other.execute("BEGIN")
        other.execute("SELECT 1 FROM rollouts WHERE rollout_id = 'B' FOR UPDATE").fetchall()
        puts = asyncio.gather(*(store.put(entry("k1", [2], [61, 2], rollout_id=one)) for one in ("A", "B")))
        await asyncio.sleep(0.1)

        def close_the_circle() -> None:
            with contextlib.suppress(psycopg.errors.DeadlockDetected):
                other.execute("SELECT 1 FROM rollouts WHERE rollout_id = 'A' FOR UPDATE").fetchall()
            other.rollback()

        await asyncio.to_thread(close_the_circle)
        await puts
        other.close()
        for rollout_id in ("A", "B"):
            snapshot = await store.freeze(rollout_id)
            assert (len(snapshot.entries), snapshot.incomplete) == (2, False)
