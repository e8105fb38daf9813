"""kill -9 at random moments, and the order of syncs: what a client saw as acting survives, in each protocol (DU-02)."""

import asyncio
import contextlib
import os
import random
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rolltape.store import TokenCaptureStore

pytestmark = pytest.mark.real
KILLS = 200
SERVE = [str(Path(sys.executable).with_name("rolltape")), "serve", "--engine", "scripted", "--port", "0"]


@dataclass(frozen=True)
class Dialect:
    """How one protocol is called, the first bytes on which its harnesses act, and bytes that pass before them."""

    path: str
    body: dict[str, Any]
    acting: bytes
    content: bytes


COMMON = {"model": "scripted", "stream": True}
MESSAGES = [{"role": "user", "content": "hi"}]
CHAT_TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}
FLAT_TOOL = {"type": "function", "name": "bash", "parameters": {"type": "object"}}
CLAUDE_TOOL = {"name": "bash", "input_schema": {"type": "object"}}
DIALECTS = {
    "chat": Dialect(
        "/v1/chat/completions",
        {"messages": MESSAGES, "tools": [CHAT_TOOL]},
        b'"finish_reason":"',
        b'"content":"',
    ),
    "messages": Dialect(
        "/v1/messages",
        {"messages": MESSAGES, "tools": [CLAUDE_TOOL], "max_tokens": 500},
        b'"type":"content_block_stop","index":1',
        b"text_delta",
    ),
    "responses": Dialect(
        "/v1/responses",
        {"input": "hi", "tools": [FLAT_TOOL]},
        b'"type":"response.output_item.done"',
        b'"type":"response.output_text.delta"',
    ),
    "gemini": Dialect(
        "/v1beta/models/scripted:streamGenerateContent?alt=sse",
        {
            "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
            "tools": [{"functionDeclarations": [{"name": "bash", "parameters": {"type": "OBJECT"}}]}],
        },
        b'"functionCall":{',
        b'"text":"',
    ),
    "completions": Dialect("/v1/completions", {"prompt": "hi"}, b'"finish_reason":"', b'"text":"'),
}


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

    def write(self, rollout: str, call_id: str) -> None:
        with self._path.open("ab") as file:
            file.write(f"{rollout} {call_id}\n".encode())
            file.flush()
            os.fsync(file.fileno())


async def _client(http: aiohttp.ClientSession, url: str, name: str, dialect: Dialect, log: AckLog) -> None:
    with contextlib.suppress(aiohttp.ClientError, ConnectionError):
        for turn in range(1000):
            rollout = f"{name}-{turn // 5}"
            async with http.post(f"{url}/rollout/{rollout}{dialect.path}", json=COMMON | dialect.body) as response:
                acted = False
                async for line in response.content:
                    if dialect.acting in line and not acted:
                        log.write(rollout, response.headers["x-request-id"])
                        acted = True


async def test_200_kills_lose_nothing_that_a_client_was_told(tmp_path):
    directory, log_path = tmp_path / "store", tmp_path / "acknowledged"
    log, dice = AckLog(log_path), random.Random(7)
    for kill in range(KILLS):
        process, url = await _start(directory)
        async with aiohttp.ClientSession() as http:
            clients = [
                asyncio.create_task(_client(http, url, f"k{kill}{name}", dialect, log))
                for name, dialect in DIALECTS.items()
            ]
            await asyncio.sleep(dice.uniform(0.02, 0.5))
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            await asyncio.gather(*clients)
    acknowledged = [line.split() for line in log_path.read_text().splitlines()]
    held: dict[str, set[str]] = {}
    async with TokenCaptureStore(directory) as store:
        for rollout in {rollout for rollout, _ in acknowledged}:
            snapshot = await store.read(rollout)
            held[rollout] = {e.model_call_id for e in snapshot.entries} if snapshot else set()
    assert [(rollout, call) for rollout, call in acknowledged if call not in held[rollout]] == []
    for name in DIALECTS:
        assert sum(name in rollout for rollout, _ in acknowledged) > KILLS / 4


@pytest.fixture
def strace() -> str:
    path = shutil.which("strace")
    if path is None:
        pytest.fail("strace is not installed: make test-real installs it where it may")
    return path


@pytest.mark.parametrize("name", DIALECTS)
async def test_a_sync_of_the_store_precedes_the_bytes_of_the_acting_event(tmp_path, strace, name):
    dialect, trace = DIALECTS[name], tmp_path / "trace"
    calls = "trace=fsync,fdatasync,write,writev,sendto,sendmsg"
    process, url = await _start(tmp_path / "store", strace, "-f", "-yy", "-s", "4096", "-e", calls, "-o", str(trace))
    try:
        async with aiohttp.ClientSession() as http:
            for turn in range(5):
                address = f"{url}/rollout/s{turn}{dialect.path}"
                async with http.post(address, json=COMMON | dialect.body) as response:
                    assert dialect.acting in await response.read()
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        await process.wait()
    verdicts = list(_orders(trace.read_text(errors="replace").splitlines(), dialect))
    assert verdicts == ["synced"] * 5


def _orders(lines: list[str], dialect: Dialect) -> Iterator[str]:
    """For each write with an acting event in the trace: was the store synced after the last content and before it?"""
    acting, content = (mark.decode().replace('"', '\\"') for mark in (dialect.acting, dialect.content))
    synced = False
    for line in lines:
        if re.search(r"\b(fsync|fdatasync)\(.*(sqlite|wal)", line) or "sync resumed" in line:
            synced = True
        elif acting in line:
            yield "synced" if synced else "too early"
        elif content in line:
            synced = False
