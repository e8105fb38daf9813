"""Two gateway workers of one directory with 64 writers each: every put is acknowledged, and neither worker starves."""

import asyncio
import random
import subprocess
import sys
from pathlib import Path

from rolltape.store import TokenCaptureStore
from rolltape.store.sqlite import verify
from rolltape.testing.contracts import entry

WRITERS, CALLS = 64, 6

WORKER = """
import asyncio, sys
from rolltape.store import TokenCaptureStore
from rolltape.testing.contracts import entry
folder, name, writers, calls = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
async def write(store, writer):
    sequence = [1, writer]
    for call in range(calls):
        await store.begin_call(f"{name}{writer}", f"k{call}")
        one = entry(f"k{call}", [*sequence, 5], [60 + call, 2], rollout_id=f"{name}{writer}")
        await store.put(one)
        sequence = one.sequence.tolist()
        print(name, flush=True)
async def main():
    async with TokenCaptureStore(folder) as store:
        print("ready", flush=True)
        sys.stdin.readline()
        await asyncio.gather(*(write(store, writer) for writer in range(writers)))
asyncio.run(main())
"""


async def worker(folder: Path, name: str) -> asyncio.subprocess.Process:
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WORKER, str(folder), name, str(WRITERS), str(CALLS)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert started.stdout is not None
    assert await started.stdout.readline() == b"ready\n"
    return started


async def test_two_workers_with_64_writers_each_are_all_acknowledged(tmp_path: Path) -> None:
    workers = [await worker(tmp_path, name) for name in "ab"]
    order: list[str] = []

    async def follow(one: asyncio.subprocess.Process) -> int:
        assert one.stdin is not None
        assert one.stdout is not None
        one.stdin.write(b"go\n")
        await one.stdin.drain()
        async for line in one.stdout:
            order.append(line.decode().strip())
        return await one.wait()

    assert await asyncio.gather(*map(follow, workers)) == [0, 0]
    assert {name: order.count(name) for name in "ab"} == dict.fromkeys("ab", WRITERS * CALLS)
    async with TokenCaptureStore(tmp_path) as store:
        assert len(await store.rollouts()) == 2 * WRITERS
    assert verify(tmp_path).sound


async def test_a_parent_that_another_worker_wrote_is_found(tmp_path: Path) -> None:
    first = await worker(tmp_path, "a")
    async with TokenCaptureStore(tmp_path) as store:
        await first.communicate(b"go\n")
        prompt = [1, 7, *(token for call in range(CALLS) for token in (5, 60 + call, 2)), 9]
        await store.put(entry("mine", prompt, [3], rollout_id="a7"))
        snapshot = await store.freeze("a7")
    assert snapshot.entries[-1].parent_call_id == f"k{CALLS - 1}"


async def test_a_listing_of_two_thousand_rollouts_and_a_freeze_among_them_stay_quick(tmp_path: Path) -> None:
    """As ratios of the work itself: statements run, not seconds."""
    async with TokenCaptureStore(tmp_path, settle_seconds=0) as store:
        await asyncio.gather(
            *(store.put(entry("k1", [1, number], [60, 2], rollout_id=f"R{number}")) for number in range(2_000))
        )
        assert len(await store.rollouts()) == 2_000
        few = await steps(store, "R7")
        assert few < 3_000, "a freeze among two thousand reads its own rows only"
        for number in random.Random(0).sample(range(2_000), 20):
            seen = await store.freeze(f"R{number}")
            await store.drop(f"R{number}", snapshot_id=seen.snapshot_id, version=seen.version)
        swept = await store.sweep(0, limit=8)
        assert (len(swept.rollout_ids), swept.more) == (8, True)
        plan = await store._read(
            lambda db: db.execute(
                "EXPLAIN QUERY PLAN SELECT id FROM rollouts"
                " WHERE swept_at IS NULL AND retired_at <= 1 ORDER BY retired_at"
            ).fetchall()
        )
        assert "rollouts_retired" in str(plan), "a sweep looks at what was retired, not at every rollout"


async def steps(store: TokenCaptureStore, rollout_id: str) -> int:
    """How many steps of SQLite's machine a snapshot takes, in tens."""
    from rolltape.store.tables import codec, rollouts

    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 10
        return 0

    def read(db: object) -> None:
        db.set_progress_handler(count, 10)  # type: ignore[attr-defined]
        rollouts.snapshot(db, codec.Packer(), rollout_id)  # type: ignore[arg-type]
        db.set_progress_handler(None, 0)  # type: ignore[attr-defined]

    await store._read(read)
    return counted
