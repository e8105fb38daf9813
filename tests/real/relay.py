"""A TCP relay that cuts connections on demand: what a harness meets between itself and a gateway."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from enum import StrEnum


class Cut(StrEnum):
    """When a connection is cut. The request has always reached the gateway whole."""

    NEVER = "never"
    BEFORE_REPLY = "before_reply"
    """As soon as the request has passed: the gateway sees its client leave."""
    INSTEAD_OF_REPLY = "instead_of_reply"
    """When the reply comes: the gateway has sent it, and nobody gets it."""
    WITHIN_REPLY = "within_reply"
    """After half of the reply's first piece."""


@asynccontextmanager
async def relay(port: int, cut: Callable[[int], Cut]) -> AsyncIterator[int]:
    """Passes bytes to `port`; `cut` says for the n-th request (from 0) what happens to it. Yields its own port."""
    count = 0
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while head := await _pass_request(reader, up_writer):
                number, count = count, count + (head.startswith(b"POST"))
                if not await _pass_reply(up_reader, writer, cut(number) if head.startswith(b"POST") else Cut.NEVER):
                    break
        for end in (writer, up_writer):
            end.transport.abort()
        tasks.discard(task)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pass_request(reader: asyncio.StreamReader, up: asyncio.StreamWriter) -> bytes:
    """One whole request; its head, or b"" at the end of the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    body = await reader.readexactly(int(lengths[0].partition(b":")[2])) if lengths else b""
    up.write(head + body)
    await up.drain()
    return head


async def _pass_reply(up: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: Cut) -> bool:
    """One whole reply; False if it was cut."""
    if cut is Cut.BEFORE_REPLY:
        await asyncio.sleep(0.05)
        return False
    head = await up.readuntil(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    body = await up.readexactly(int(lengths[0].partition(b":")[2])) if lengths else b""
    if cut is Cut.INSTEAD_OF_REPLY:
        return False
    writer.write(head + (body[: len(body) // 2] if cut is Cut.WITHIN_REPLY else body))
    await writer.drain()
    return cut is Cut.NEVER
