"""What was acknowledged survives its unlucky neighbours: failing puts, full disks, conflicts, late entries, kill -9."""

import asyncio
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rolltape.errors import ConflictError, StoreError
from rolltape.store import TokenCaptureStore
from rolltape.store.sqlite import verify
from rolltape.store.sqlite.schema import FILE_NAME
from rolltape.testing.contracts import assert_same, entry

from .crashing import expected

CRASHING = Path(__file__).with_name("crashing.py")


def break_puts(folder: Path, call_id: str, how: str) -> None:
    """From now on SQLite itself fails the put of `call_id`, after its entry was written. ROLLBACK ends the batch."""
    db = sqlite3.connect(folder / FILE_NAME)
    db.execute(
        f"CREATE TRIGGER broken AFTER INSERT ON entries WHEN NEW.call_id = '{call_id}'"
        f" BEGIN SELECT RAISE({how}, 'disk I/O error'); END"
    )
    db.commit()
    db.close()


def mend_puts(folder: Path) -> None:
    db = sqlite3.connect(folder / FILE_NAME)
    db.execute("DROP TRIGGER broken")
    db.commit()
    db.close()


@pytest.mark.parametrize("how", ["ABORT", "FAIL", "ROLLBACK"])
async def test_a_put_that_fails_midway_leaves_its_neighbours_intact(tmp_path: Path, how: str) -> None:
    """Case DU-01: k1 and k3 are acknowledged, k2 is not, and a restart finds exactly that."""
    store = TokenCaptureStore(tmp_path)
    break_puts(tmp_path, "k2", how)
    puts = [store.put(entry(f"k{i}", [1, i], [60, 2])) for i in (1, 2, 3)]
    results = await asyncio.gather(*puts, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), StoreError, type(None)]
    await store.close()
    mend_puts(tmp_path)

    again = TokenCaptureStore(tmp_path)
    snapshot = await again.freeze("R")
    assert [one.model_call_id for one in snapshot.entries] == ["k1", "k3"]
    assert snapshot.incomplete_reasons == ("k2: its put failed",)
    await again.close()
    assert verify(tmp_path).sound


async def test_an_exact_repeat_is_safe_and_a_conflict_surfaces(store: TokenCaptureStore) -> None:
    """Case RE-07."""
    await store.put(entry("k1", [1], [60, 2]))
    await store.put(entry("k1", [1], [60, 2]))
    with pytest.raises(ConflictError):
        await store.put(entry("k1", [1], [60, 61, 2]))
    snapshot = await store.freeze("R")
    assert [one.generation_token_ids.tolist() for one in snapshot.entries] == [[60, 2]]
    assert snapshot.incomplete


async def test_evidence_that_the_consumer_never_saw_is_not_dropped(store: TokenCaptureStore) -> None:
    """Case DU-06."""
    await store.put(entry("k1", [1], [60, 2]))
    first = await store.freeze("R")
    assert (await store.freeze("R")).snapshot_id == first.snapshot_id
    await store.put(entry("k2", [1, 60, 2, 5], [61, 2]))
    assert not await store.drop("R", snapshot_id=first.snapshot_id, version=first.version)
    second = await store.freeze("R")
    assert [one.model_call_id for one in second.entries] == ["k1", "k2"]
    assert (second.snapshot_id, second.version) != (first.snapshot_id, first.version)


async def test_a_second_dispatch_of_one_id_is_refused(store: TokenCaptureStore) -> None:
    """Case DU-11."""
    await store.create_rollout("task3-0")
    await store.put(entry("k1", [1, 10], [60, 2], rollout_id="task3-0"))
    with pytest.raises(ConflictError):
        await store.create_rollout("task3-0")
    assert len((await store.freeze("task3-0")).entries) == 1


async def test_log_probs_that_are_no_numbers_come_back_as_they_were(store: TokenCaptureStore) -> None:
    """Case LP-03: null is not zero, and the bad positions are named."""
    entries = [
        entry("k1", [1], [60, 61, 62, 2], generation_log_probs=[-0.1, None, float("-inf"), -0.3]),
        entry("k2", [1], [60, 2], generation_log_probs=[float("nan"), -0.1]),
    ]
    for one in entries:
        await store.put(one)
    got = (await store.freeze("R")).entries
    for one, wanted in zip(got, entries, strict=True):
        assert_same(one, wanted)
    assert [(~one.trainable).nonzero()[0].tolist() for one in got] == [[1, 2], [0]]
    assert [one.faults for one in got] == [("log_probs_invalid: at 1, 2",), ("log_probs_invalid: at 0",)]


async def test_a_full_file_fails_what_does_not_fit_and_the_store_goes_on(store: TokenCaptureStore) -> None:
    await store.put(entry("k1", [1], [60, 2]))
    await store._write("", lambda db: db.execute("PRAGMA max_page_count = 1").fetchall())
    big = entry("k2", random.Random(0).sample(range(100_000), 50_000), [60, 2])
    small = entry("k3", [1], [61, 2])
    results = await asyncio.gather(store.put(small), store.put(big), return_exceptions=True)
    assert isinstance(results[1], StoreError)
    assert results[0] is None, "what fits is stored, whatever came with it"
    await store._write("", lambda db: db.execute("PRAGMA max_page_count = 1000000").fetchall())
    await store.put(entry("k4", [1], [62, 2]))
    snapshot = await store.freeze("R")
    assert [one.model_call_id for one in snapshot.entries] == ["k1", "k3", "k4"]
    assert "k2: its put failed" in snapshot.incomplete_reasons


async def test_a_commit_that_fails_acknowledges_nothing(store: TokenCaptureStore) -> None:
    """The log cannot grow any more (as on a full disk): every put of the batch raises, and later ones are taken."""
    await store.put(entry("k1", [1], [60, 2]))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, hard))
    try:
        puts = [store.put(entry(f"full{i}", [1, i], [60, 2])) for i in range(8)]
        results = await asyncio.gather(*puts, return_exceptions=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert all(isinstance(result, StoreError) for result in results)
    await store.put(entry("k2", [1, 60, 2], [61, 2]))
    await asyncio.sleep(0.6)
    snapshot = await store.freeze("R")
    assert [one.model_call_id for one in snapshot.entries] == ["k1", "k2"]
    assert sorted(snapshot.incomplete_reasons) == [f"full{i}: its put failed" for i in range(8)]


async def test_a_closed_store_says_so(store: TokenCaptureStore) -> None:
    await store.close()
    for doing in (store.put(entry("k1", [1], [60])), store.read("R"), store.freeze("R")):
        with pytest.raises(StoreError, match="closed"):
            await doing


async def test_waiting_writers_share_a_sync(store: TokenCaptureStore) -> None:
    before = store._writer.batches
    await asyncio.gather(*(store.put(entry(f"k{i}", [1, i], [60, 2])) for i in range(64)))
    assert store._writer.batches - before <= 8


def write_until_killed(folder: Path, seconds: float) -> list[tuple[str, str]]:
    """Kill a writing process `seconds` after its first acknowledged entry; all that it ever acknowledged here."""
    log = folder / "acknowledged"
    log.touch()
    before = log.stat().st_size
    child = subprocess.Popen([sys.executable, str(CRASHING), str(folder / "store"), str(log)])
    try:
        while log.stat().st_size == before and child.poll() is None:
            time.sleep(0.005)
        time.sleep(seconds)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    lines = [line.split() for line in log.read_text().splitlines() if line.endswith(".")]
    return [(rollout_id, call_id) for rollout_id, call_id, _ in lines]


async def assert_holds(folder: Path, acknowledged: list[tuple[str, str]]) -> None:
    assert acknowledged
    stored = {}
    async with TokenCaptureStore(folder) as store:
        for state in await store.rollouts():
            snapshot = await store.read(state.rollout_id, texts=True)
            assert snapshot is not None
            assert not any("damaged" in reason for reason in snapshot.incomplete_reasons)
            stored |= {(state.rollout_id, one.model_call_id): one for one in snapshot.entries}
    for rollout_id, call_id in acknowledged:
        assert_same(stored[rollout_id, call_id], expected(rollout_id, call_id))
    assert verify(folder).sound


async def test_nothing_acknowledged_is_lost_by_a_kill(tmp_path: Path) -> None:
    acknowledged = write_until_killed(tmp_path, random.uniform(0.0, 0.2))
    await assert_holds(tmp_path / "store", acknowledged)


@pytest.mark.real
async def test_nothing_acknowledged_is_lost_by_a_hundred_kills(tmp_path: Path) -> None:
    """Ten stores, each killed and opened again ten times."""
    for number in range(100):
        folder = tmp_path / str(number % 10)
        folder.mkdir(exist_ok=True)
        acknowledged = write_until_killed(folder, random.uniform(0.0, 0.2))
        await assert_holds(folder / "store", acknowledged)


async def test_a_put_into_a_directory_that_was_deleted_is_an_error_and_so_is_the_freeze(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    async with TokenCaptureStore(folder) as store:
        await store.put(entry("k1", [1], [2]))
        shutil.rmtree(folder)
        with pytest.raises(StoreError, match="removed or replaced"):
            await store.put(entry("k2", [1], [3]))
        for reading in (store.read("R"), store.freeze("R"), store.rollouts()):
            with pytest.raises(StoreError):
                await reading


@pytest.mark.parametrize("name", [FILE_NAME, f"{FILE_NAME}-wal"])
async def test_a_put_into_a_store_whose_file_was_swapped_is_an_error(tmp_path: Path, name: str) -> None:
    async with TokenCaptureStore(tmp_path) as store:
        await store.put(entry("k1", [1], [2]))
        (tmp_path / name).rename(tmp_path / "elsewhere")
        with pytest.raises(StoreError, match="removed or replaced"):
            await store.put(entry("k2", [1], [3]))
