"""A server that fails in every way there is: each failure is the right one of our errors."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rolltape.engines.llamacpp import LlamaCppEngine
from rolltape.engines.llamacpp.client import LlamaServer
from rolltape.errors import ConfigError, EngineBroken, EngineRefused, EngineUnavailable, RequestError

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def answer(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


def piece(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@asynccontextmanager
async def server(reply: bytes, seen: Callable[[], None] = lambda: None) -> AsyncIterator[LlamaServer]:
    """Answers each connection's first request with `reply`, whatever it is, and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(h.split(b":")[1]) for h in head.split(b"\r\n") if h.lower().startswith(b"content-length")), 0
        )
        await reader.readexactly(length)
        seen()
        writer.write(reply)
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = LlamaServer(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}")
    try:
        yield client
    finally:
        await client.close()
        listener.close()


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (answer(400, b'{"error": {"message": "too long"}}'), EngineRefused),
        (answer(503, b'{"error": {"message": "Loading model"}}'), EngineUnavailable),
        (answer(500, b"<html>"), EngineBroken),
        (answer(404, b'{"error": "?"}'), EngineBroken),
        (answer(200, b"hello"), EngineBroken),
        (answer(200, b"[1]"), EngineBroken),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", EngineBroken),
        (b"", EngineBroken),
        (b"SSH-2.0-OpenSSH\r\n", EngineBroken),
    ],
)
async def test_each_failure_has_its_error(reply: bytes, error: type[RequestError]) -> None:
    async with server(reply) as client:
        with pytest.raises(error):
            await client.post("/tokenize", {"content": "a"})


async def test_nothing_at_the_address_means_that_nothing_was_generated() -> None:
    async with server(b"") as client:
        closed = LlamaServer(client.url.rsplit(":", 1)[0] + ":1")
        with pytest.raises(EngineUnavailable):
            await closed.get("/health")
        await closed.close()


@pytest.mark.parametrize(
    "tail",
    [
        piece(b'data: {"tokens_predicted": 2, "tok'),  # cut inside a chunk
        piece(b"data: nonsense\n\n") + piece(b""),
        piece(b'error: {"message": "slot failed"}\n\n') + piece(b""),
    ],
)
async def test_a_stream_that_breaks_gives_what_came_before_and_then_fails(tail: bytes) -> None:
    got: list[Any] = []

    async def read(client: LlamaServer) -> None:
        async with client.stream("/completion", {}) as chunks:
            async for chunk in chunks:
                got.append(chunk)

    async with server(STREAM + piece(b'data: {"a": 1}\n\n') + tail) as client:
        with pytest.raises(EngineBroken):
            await read(client)

    assert got == [{"a": 1}]


async def test_a_generation_is_never_sent_twice() -> None:
    requests: list[None] = []
    async with server(b"", lambda: requests.append(None)) as client:
        with pytest.raises(EngineBroken):
            async with client.stream("/completion", {}):
                pass

    assert len(requests) == 1


async def test_a_server_that_is_no_llama_cpp_is_a_config_error_at_start() -> None:
    async with server(answer(200, b'{"hello": 1}')) as client:
        engine = LlamaCppEngine(url=client.url)
        with pytest.raises(ConfigError, match=r"does not answer like llama\.cpp"):
            await engine.start()
