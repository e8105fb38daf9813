"""A crash before any statement, a log that was cut anywhere: what was acknowledged is there, and all of it is sound."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rolltape.store import TokenCaptureStore
from rolltape.store.sqlite import verify
from rolltape.store.sqlite.schema import FILE_NAME
from rolltape.testing.contracts import assert_same, entry

# One process that forks a child for each point; the child dies before its n-th statement, the parent says what it told.
EVERY_POINT = """
import asyncio, itertools, os, sys
from rolltape.store import TokenCaptureStore
from rolltape.store.sqlite import schema
from rolltape.testing.contracts import entry

async def work(folder, told):
    async with TokenCaptureStore(folder) as store:
        for call in range(3):
            await store.begin_call("R", f"k{call}")
            await store.put(entry(f"k{call}", [1, call], [60 + call, 2], request_text=b"text"))
            os.write(told, f"k{call} ".encode())
        seen = await store.freeze("R")
        if await store.drop("R", snapshot_id=seen.snapshot_id, version=seen.version):
            os.write(told, b"dropped ")
        if (await store.sweep(0)).rollout_ids:
            os.write(told, b"swept ")

def child(point, folder, told):
    left = [point]
    class Dying(schema.Connection):
        def execute(self, *arguments):
            left[0] -= 1
            if left[0] < 0:
                os._exit(9)
            return super().execute(*arguments)
    schema.connect.__globals__["Connection"] = Dying
    asyncio.run(work(folder, told))
    os._exit(0)

for point in itertools.count():
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        child(point, f"{sys.argv[1]}/{point}", write)
    os.close(write)
    _, status = os.waitpid(pid, 0)
    print(point, os.read(read, 1000).decode(), flush=True)
    os.close(read)
    if os.waitstatus_to_exitcode(status) == 0:
        break
"""


@pytest.mark.real
async def test_a_crash_before_any_statement_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    done = subprocess.run(  # noqa: ASYNC221 - nothing else runs here
        [sys.executable, "-c", EVERY_POINT, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) > 40, "so many statements make up three calls, a freeze, a drop and a sweep"
    assert lines[-1][1:] == ["k0", "k1", "k2", "dropped", "swept"]
    for point, *told in lines:
        folder = tmp_path / point
        async with TokenCaptureStore(folder, settle_seconds=0) as store:  # a half-made store is finished here
            held = await store.read("R")
            state = await store.rollout("R")
        calls = [word for word in told if word.startswith("k")]
        if "dropped" in told:
            assert state is not None
            assert state.retired_at is not None, point
        if state is None or state.retired_at is None:
            found = {one.model_call_id for one in held.entries} if held else set()
            assert set(calls) <= found, f"crashed at {point}: told {calls}, found {found}"
            assert len(found) <= len(calls) + 1, point
        assert verify(folder).sound, point


async def test_a_log_that_was_cut_or_overwritten_at_its_end_gives_what_came_before(tmp_path: Path) -> None:
    """As after a power cut on a disk that had not written all of it: whole commits up to the tear, and no half one."""
    live, wanted = tmp_path / "live", [entry(f"k{n}", [1, n], [60 + n, 2]) for n in range(6)]
    ends = []
    async with TokenCaptureStore(live) as store:
        for one in wanted:
            await store.put(one)
            ends.append((live / f"{FILE_NAME}-wal").stat().st_size)
        shutil.copytree(live, tmp_path / "image")
    log = (tmp_path / "image" / f"{FILE_NAME}-wal").read_bytes()
    for number in range(len(wanted)):
        for name, tail in (("cut", b""), ("garbage", b"\xff" * 3_000)):
            torn = tmp_path / f"{name}{number}"
            torn.mkdir()
            shutil.copy(tmp_path / "image" / FILE_NAME, torn / FILE_NAME)
            (torn / f"{FILE_NAME}-wal").write_bytes(log[: ends[number] - 700] + tail)
            async with TokenCaptureStore(torn) as store:
                held = await store.read("R")
                assert await store.rollouts() == [] or held is not None
                entries = held.entries if held else ()
                assert len(entries) == number, f"{name} within commit {number}"
                for one, put in zip(entries, wanted, strict=False):
                    assert_same(one, put)
                await store.put(entry("after", [9], [8], rollout_id="S"))
            assert verify(torn).sound
