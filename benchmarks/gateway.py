"""What capture costs a call: the gateway beside a bare server of the same libraries on the same scripted engine.

    python benchmarks/gateway.py [--json]

Each pair runs in turn in one run, so that the machine's load meets both. `bare` decodes the request, samples, and
encodes the reply - uvicorn, msgspec, the same wire code - and records nothing. A line of the table is captured, bare,
and their difference or ratio; `sync` is this disk's own fdatasync, of which at most one lies on the path of a reply.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn

from rolltape.capture import CallIdentity, ModelCall
from rolltape.config import read_config
from rolltape.gateway.exchange import Exchange
from rolltape.gateway.serve import running
from rolltape.testing.scripted import ScriptedEngine, Step
from rolltape.wire.openai_chat import OpenAIChat

PROMPT_TOKENS, REPLY_TOKENS = 8_000, 64
DEEP_TOKENS, DEEP_CALLS = 128_000, 200
ROUNDS = 150
STREAMS = 500


def _engine(delay: float = 0.0) -> ScriptedEngine:
    reply = Step(text="y" * (REPLY_TOKENS - 1))
    return ScriptedEngine(script=lambda request, number: reply, chunk=16, delay=delay, context_length=10**6)


async def _bare_app(scope: Any, receive: Any, send: Any) -> None:
    """Decode, sample, encode; nothing else."""
    exchange, wire = Exchange(scope, receive, send), OpenAIChat()
    body = await exchange.read_body(2**25)
    request = wire.decode("/v1/chat/completions", body, exchange.headers)
    call = ModelCall(
        CallIdentity(
            rollout_id="x", model_call_id="x", response_id="x", protocol="", engine="", model="", request=request,
            request_digest="",
        )
    )  # fmt: skip
    encoder = wire.encoder(request, reply_id="x", created=0)
    if request.stream:
        await exchange.open(200, {"content-type": wire.stream_content_type})
        await exchange.write(b"".join(frame.data for frame in encoder.open()))
    async for event in _ENGINE.generate(request, request.sampling):
        call.feed(event, 0.0)
        if request.stream and (data := b"".join(frame.data for frame in encoder.encode(event))):
            await exchange.write(data)
    if request.stream:
        await exchange.close()
    else:
        reply = wire.encode_reply(request, call.reply(0))
        await exchange.respond(200, {"content-type": "application/json"}, reply)


_ENGINE = _engine()


def _serve_bare(ready: Connection) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    ready.send(f"http://127.0.0.1:{listener.getsockname()[1]}")
    server = uvicorn.Server(uvicorn.Config(_bare_app, log_config=None, access_log=False, lifespan="off"))
    asyncio.run(server.serve(sockets=[listener]))


def _serve_captured(ready: Connection, directory: str) -> None:
    async def main() -> None:
        config = read_config(None, dir=directory, port=0, auth="open")
        async with running(config, engine=_ENGINE) as gateway:
            ready.send(gateway.url)
            await asyncio.Event().wait()

    asyncio.run(main())


def _start(target: Any, *args: Any) -> tuple[multiprocessing.Process, str]:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=target, args=(there, *args), daemon=True)
    process.start()
    return process, here.recv()


def _body(prompt_tokens: int, turns: int, *, stream: bool = False) -> bytes:
    """A request whose prompt has about so many tokens (the scripted tokenizer has one a byte)."""
    each = "x" * max(1, prompt_tokens // turns - 4)
    messages = [{"role": "user" if turn % 2 == 0 else "assistant", "content": each} for turn in range(turns)]
    return json.dumps({"model": "scripted", "messages": messages, "stream": stream}).encode()


async def _timed(http: aiohttp.ClientSession, url: str, body: bytes) -> tuple[float, float]:
    """(seconds to the first content, seconds to the last byte)."""
    began, first = time.perf_counter(), 0.0
    async with http.post(url, data=body) as response:
        assert response.status == 200, await response.text()
        async for chunk in response.content.iter_any():
            if not first and b'"content":"y' in chunk:
                first = time.perf_counter() - began
    return first, time.perf_counter() - began


async def _pairs(http: aiohttp.ClientSession, captured: str, bare: str, body: bytes, rounds: int) -> dict[str, Any]:
    took: dict[str, list[tuple[float, float]]] = {"captured": [], "bare": []}
    for n in range(rounds + 5):
        for name, url in (("captured", f"{captured}/rollout/p{n % 7}"), ("bare", bare)):
            one = await _timed(http, f"{url}/v1/chat/completions", body)
            if n >= 5:
                took[name].append(one)
    return {
        name: {
            "first_ms": 1e3 * statistics.median(t[0] for t in times),
            "p50_ms": 1e3 * statistics.median(t[1] for t in times),
            "p99_ms": 1e3 * sorted(t[1] for t in times)[int(0.99 * len(times))],
        }
        for name, times in took.items()
    }


async def _depth(http: aiohttp.ClientSession, captured: str, bare: str) -> dict[str, Any]:
    """One rollout that grows to 128k tokens in 200 calls; each call also goes to the bare server."""
    added: list[float] = []
    step = DEEP_TOKENS // DEEP_CALLS
    messages: list[dict[str, str]] = []
    reply = "y" * (REPLY_TOKENS - 1)
    for _ in range(DEEP_CALLS):
        messages.append({"role": "user", "content": "x" * (step - REPLY_TOKENS - 8)})
        body = json.dumps({"model": "scripted", "messages": messages}).encode()
        deep = [await _timed(http, f"{captured}/rollout/deep/v1/chat/completions", body)]
        plain = [await _timed(http, f"{bare}/v1/chat/completions", body)]
        added.append(deep[0][1] - plain[0][1])
        messages.append({"role": "assistant", "content": reply})
    early, late = statistics.median(added[5:45]), statistics.median(added[-40:])
    return {"added_ms_call_10": 1e3 * early, "added_ms_call_200": 1e3 * late, "ratio": late / early}


async def _crowd(captured: str) -> dict[str, Any]:
    """500 streams at once over one gateway."""
    body = _body(200, 1, stream=True)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        began = time.perf_counter()
        urls = [f"{captured}/rollout/crowd{n}/v1/chat/completions" for n in range(STREAMS)]
        done = await asyncio.gather(*(_timed(http, url, body) for url in urls), return_exceptions=True)
        seconds = time.perf_counter() - began
    dropped = sum(isinstance(one, BaseException) for one in done)
    return {"streams": STREAMS, "dropped": dropped, "seconds": seconds}


def _sync_ms(directory: str) -> float:
    """p50 of a 4 kB append and fdatasync on the store's disk."""
    took = []
    with Path(directory, "sync-probe").open("wb") as file:
        for _ in range(200):
            began = time.perf_counter()
            file.write(bytes(4096))
            file.flush()
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - began)
    return 1e3 * statistics.median(took)


async def measure(directory: str) -> dict[str, Any]:
    (gateway, captured), (server, bare) = _start(_serve_captured, directory), _start(_serve_bare)
    try:
        async with aiohttp.ClientSession() as http:
            whole = await _pairs(http, captured, bare, _body(PROMPT_TOKENS, 21), ROUNDS)
            streamed = await _pairs(http, captured, bare, _body(PROMPT_TOKENS, 21, stream=True), ROUNDS)
            depth = await _depth(http, captured, bare)
        crowd = await _crowd(captured)
        return {
            "sync_p50_ms": _sync_ms(directory),
            "whole_8k": whole,
            "streamed_8k": streamed,
            "depth_128k": depth,
            "crowd": crowd,
        }
    finally:
        for process in (gateway, server):
            process.terminate()
            process.join()


def _lines(found: dict[str, Any]) -> list[str]:
    whole, streamed, depth = found["whole_8k"], found["streamed_8k"], found["depth_128k"]
    added = whole["captured"]["p50_ms"] - whole["bare"]["p50_ms"]
    first = streamed["captured"]["first_ms"] - streamed["bare"]["first_ms"]
    crowd, sync = found["crowd"], found["sync_p50_ms"]
    return [
        "| what | captured | bare | added | bound |",
        "|---|---|---|---|---|",
        f"| call at 8k tokens, p50 ms | {whole['captured']['p50_ms']:.2f} | {whole['bare']['p50_ms']:.2f} | "
        f"{added:.2f} | 2 + one sync ({sync:.2f}) |",
        f"| first streamed token at 8k, p50 ms | {streamed['captured']['first_ms']:.2f} "
        f"| {streamed['bare']['first_ms']:.2f} | {first:.2f} | 1 + one sync |",
        f"| added by call 200 over call 10, 128k tokens | {depth['added_ms_call_200']:.2f} ms "
        f"| {depth['added_ms_call_10']:.2f} ms | x{depth['ratio']:.2f} | x1.5 |",
        f"| {crowd['streams']} streams at once | {crowd['dropped']} dropped | | {crowd['seconds']:.1f} s | 0 dropped |",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as directory:
        found = asyncio.run(measure(directory))
    print(json.dumps(found, indent=2) if wanted.json else "\n".join(_lines(found)))


if __name__ == "__main__":
    main()
