"""Several writers, compaction beside them, and deaths at any moment: nothing acknowledged is lost."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rolltape.errors import StoreError
from rolltape.pool import Pool
from rolltape.pool.views import Listing

from .rollouts import put

TESTS = Path(__file__).parents[1]
ADDS = """
import sys, itertools
sys.path.insert(0, {tests!r})
from pool.rollouts import put
from rolltape.pool import Pool
pool = Pool({place!r}, create=True)
for index in range({most}):
    put(pool, f"{name}-{{index}}", calls=2)
    print(f"{name}-{{index}}", flush=True)
"""
COMPACTS = """
import sys
sys.path.insert(0, {tests!r})
from rolltape.pool import Pool
pool = Pool({place!r})
print("ready", flush=True)
while True:
    pool.compact(grace=0.0)
"""


def start(code: str, place: Path, **more: object) -> subprocess.Popen[str]:
    text = code.format(tests=str(TESTS), place=str(place), **more)
    return subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)


def kill(process: subprocess.Popen[str]) -> str:
    os.kill(process.pid, signal.SIGKILL)
    said, _ = process.communicate()
    return said


def found(place: Path) -> list[str]:
    """Every rollout with a row, each as often as it is read."""
    return sorted(one.row.rollout_id for one in Pool(place).read())


def test_two_writers_at_once_lose_nothing(tmp_path):
    place = tmp_path / "pool"
    Pool(place, create=True)
    writers = [start(ADDS, place, name=name, most=4) for name in ("a", "b")]
    said = [name for writer in writers for name in writer.communicate()[0].split()]
    assert len(said) == 8
    assert found(place) == sorted(said)


def test_a_writer_that_is_killed_loses_nothing_that_it_was_told(tmp_path):
    place = tmp_path / "pool"
    Pool(place, create=True)
    writer = start(ADDS, place, name="a", most=10_000)
    assert writer.stdout is not None
    first = writer.stdout.readline().strip()
    time.sleep(0.13)
    said = {first, *(line for line in kill(writer).splitlines(keepends=False) if line)}
    there = found(place)
    assert len(there) == len(set(there))
    assert said <= set(there) | {""}
    assert len(set(there) - said) <= 1


@pytest.mark.parametrize("delay", [0.02, 0.15, 0.4])
def test_a_compaction_that_is_killed_loses_nothing_and_doubles_nothing(tmp_path, delay):
    place = tmp_path / "pool"
    pool = Pool(place, create=True)
    names = sorted(put(pool, f"t-{index}", calls=1) and f"t-{index}" for index in range(12))
    compaction = start(COMPACTS, place)
    assert compaction.stdout is not None
    compaction.stdout.readline()
    time.sleep(delay)
    kill(compaction)
    assert found(place) == names
    pool.compact(grace=0)
    assert found(place) == names


def test_readers_and_writers_go_on_while_it_is_compacted(tmp_path):
    place = tmp_path / "pool"
    pool = Pool(place, create=True)
    compaction = start(COMPACTS, place)
    assert compaction.stdout is not None
    compaction.stdout.readline()
    try:
        for index in range(7):
            put(pool, f"t-{index}", calls=1)
            assert pool.query("select count(*) as n from rows").to_pylist() == [{"n": index + 1}]
    finally:
        kill(compaction)
    assert found(place) == [f"t-{index}" for index in range(7)]


def test_two_compactions_at_once_count_each_rollout_once(tmp_path):
    place = tmp_path / "pool"
    pool = Pool(place, create=True)
    for index in range(5):
        put(pool, f"t-{index}")
    both = [Pool(place), Pool(place)]
    before = [Listing.of(one.files) for one in both]
    from rolltape.pool import compaction

    for one, listing in zip(both, before, strict=True):
        for batch in compaction._batches(one.files, listing, compaction.TARGET_BYTES):
            compaction._merge(one.files, batch, listing, compaction.pa.array([], compaction.pa.string()))
    assert found(place) == [f"t-{index}" for index in range(5)]
    pool.compact(grace=0)
    assert found(place) == [f"t-{index}" for index in range(5)]
    assert len(pool.files.parts("rows")) == 1


def test_what_was_replaced_stays_until_no_reader_needs_it(tmp_path):
    pool = Pool(tmp_path / "pool", create=True)
    for index in range(3):
        put(pool, f"t-{index}")
    assert pool.compact().removed == 0
    assert len(pool.files.parts("rows")) == 4
    assert pool.compact().read == 0
    reading = pool.rows(batch=1)
    next(reading)
    assert pool.compact(grace=0).removed == 6
    assert len(list(reading)) == 2


def test_a_stream_whose_parts_go_ends_with_every_row_or_with_an_error(tmp_path):
    pool = Pool(tmp_path / "pool", create=True)
    for index in range(40):
        put(pool, f"t-{index}", calls=1)
    reading = pool.rows(batch=1)
    count = next(reading).num_rows
    for part in pool.files.parts("rows")[20:]:
        pool.files.remove(part)
    try:
        count += sum(batch.num_rows for batch in reading)
    except StoreError:
        return
    assert count == 40


def test_a_pool_whose_rows_are_gone_refuses_to_answer(tmp_path):
    pool = Pool(tmp_path / "pool", create=True)
    put(pool, "t-0")
    pool.files.remove(pool.files.parts("rows")[0])
    with pytest.raises(StoreError, match="lacks the rows"):
        pool.query("select * from rows")


def test_rows_without_their_rollout_are_seen_by_nobody_and_left_alone(tmp_path):
    pool = Pool(tmp_path / "pool", create=True)
    put(pool, "t-0")
    put(pool, "t-1")
    part = pool.files.parts("rollouts")[0]
    pool.files.remove(part)
    assert found(tmp_path / "pool") == ["t-1"]
    assert pool.stats()["orphans"] == 1
    pool.compact(grace=0)
    assert pool.stats()["orphans"] == 1


def test_a_torn_part_is_no_part(tmp_path):
    pool = Pool(tmp_path / "pool", create=True)
    put(pool, "t-0")
    whole = next((tmp_path / "pool").rglob("rows/**/*.parquet"))
    whole.with_name(f".{whole.name}.1.torn").write_bytes(whole.read_bytes()[:100])
    assert found(tmp_path / "pool") == ["t-0"]
