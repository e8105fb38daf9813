"""kill -9 at random moments, and the order of syncs: what a client saw as an acting event survives."""

import asyncio
import contextlib
import json
import os
import random
import re
import shutil
import signal
import sys
from pathlib import Path

import aiohttp
import pytest

from rolltape.store import TokenCaptureStore

pytestmark = pytest.mark.real
KILLS = 200
SERVE = [str(Path(sys.executable).with_name("rolltape")), "serve", "--engine", "scripted", "--port", "0"]
BODY = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "stream": True}


async def _start(directory: Path, *wrapped_by: str) -> tuple[asyncio.subprocess.Process, str]:
    process = await asyncio.create_subprocess_exec(
        *wrapped_by, *SERVE, "--dir", str(directory), stderr=asyncio.subprocess.PIPE, start_new_session=True
    )
    while True:
        line = (await process.stderr.readline()).decode()
        assert line, "the gateway stopped before it was ready"
        if found := re.search(r"http://\S+:\d+", line):
            return process, found[0]


class AckLog:
    """What the clients saw as acted upon, synced to disk before they go on."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, rollout: str, reply_id: str) -> None:
        with self._path.open("ab") as file:
            file.write(f"{rollout} {reply_id}\n".encode())
            file.flush()
            os.fsync(file.fileno())


async def _client(http: aiohttp.ClientSession, url: str, name: str, log: AckLog) -> None:
    with contextlib.suppress(aiohttp.ClientError, ConnectionError):
        for turn in range(1000):
            rollout = f"{name}-{turn // 5}"
            async with http.post(f"{url}/rollout/{rollout}/v1/chat/completions", json=BODY) as response:
                async for line in response.content:
                    if b'"finish_reason":"' in line:
                        log.write(rollout, json.loads(line[6:])["id"])


async def test_200_kills_lose_nothing_that_a_client_was_told(tmp_path):
    directory, log_path = tmp_path / "store", tmp_path / "acknowledged"
    log, dice = AckLog(log_path), random.Random(7)
    for kill in range(KILLS):
        process, url = await _start(directory)
        async with aiohttp.ClientSession() as http:
            clients = [asyncio.create_task(_client(http, url, f"k{kill}c{c}", log)) for c in range(4)]
            await asyncio.sleep(dice.uniform(0.02, 0.5))
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            await asyncio.gather(*clients)
    acknowledged = [line.split() for line in log_path.read_text().splitlines()]
    store = TokenCaptureStore(directory)
    held: dict[str, set[str | None]] = {}
    for rollout in {rollout for rollout, _ in acknowledged}:
        snapshot = await store.read(rollout)
        held[rollout] = {e.response_id for e in snapshot.entries} if snapshot else set()
    await store.close()
    lost = [(rollout, reply) for rollout, reply in acknowledged if reply not in held[rollout]]
    assert len(acknowledged) > KILLS
    assert lost == []


@pytest.fixture
def strace() -> str:
    path = shutil.which("strace")
    if path is None:
        pytest.fail("strace is not installed: make test-real installs it where it may")
    return path


async def test_a_sync_of_the_store_precedes_the_bytes_of_the_acting_event(tmp_path, strace):
    trace = tmp_path / "trace"
    calls = "trace=fsync,fdatasync,write,writev,sendto,sendmsg"
    process, url = await _start(tmp_path / "store", strace, "-f", "-yy", "-s", "4096", "-e", calls, "-o", str(trace))
    try:
        async with aiohttp.ClientSession() as http:
            for turn in range(5):
                async with http.post(f"{url}/rollout/s{turn}/v1/chat/completions", json=BODY) as response:
                    assert b"[DONE]" in await response.read()
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        await process.wait()
    verdicts = list(_orders(trace.read_text(errors="replace").splitlines()))
    assert verdicts == ["synced"] * 5


def _orders(lines):
    """For each acting event in the trace: was the store synced after the last content and before it?"""
    synced, _entry_written = False, False
    for line in lines:
        if re.search(r"\b(fsync|fdatasync)\(.*(sqlite|wal)", line) or "sync resumed" in line:
            synced = True
        elif '\\"finish_reason\\":\\"' in line:
            yield "synced" if synced else "too early"
        elif '\\"content\\":\\"' in line:
            synced = False
