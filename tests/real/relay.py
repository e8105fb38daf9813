"""A TCP relay that cuts connections on demand: what a harness meets between itself and a gateway."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

END_OF_CHUNKS = b"0\r\n\r\n"
SETTLE_S = 0.1  # a client that learns of the end together with the last events may overlook them


class Cut(StrEnum):
    """When a connection is cut. The request has always reached the gateway whole."""

    NEVER = "never"
    BEFORE_REPLY = "before_reply"
    """As soon as the request has passed: the gateway sees its client leave."""
    INSTEAD_OF_REPLY = "instead_of_reply"
    """When the reply comes: the gateway has sent it, and nobody gets it."""
    WITHIN_REPLY = "within_reply"
    """After half of the reply's first piece. For replies of known length."""


@dataclass(frozen=True, slots=True)
class CutAt:
    """A streamed reply is cut where `marker` appears in it: right behind it, or, not `after`, right before it."""

    marker: bytes
    after: bool = True


Cuts: TypeAlias = Cut | CutAt


@asynccontextmanager
async def relay(port: int, cut: Callable[[int], Cuts]) -> AsyncIterator[int]:
    """Passes bytes to `port`; `cut` says for the n-th POST (from 0) what happens to it. Yields its own port."""
    count = 0
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while head := await _pass_request(reader, up_writer):
                number, count = count, count + head.startswith(b"POST")
                asked = cut(number) if head.startswith(b"POST") else Cut.NEVER
                if not await _pass_reply(up_reader, up_writer, writer, asked):
                    break
        for end in (writer, up_writer):
            end.transport.abort()
        tasks.discard(task)

    server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=2**24)
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
    up.write(head + await reader.readexactly(_length(head) or 0))
    await up.drain()
    return head


async def _pass_reply(
    up: asyncio.StreamReader, up_writer: asyncio.StreamWriter, writer: asyncio.StreamWriter, cut: Cuts
) -> bool:
    """One whole reply; False if it was cut."""
    if cut is Cut.BEFORE_REPLY:
        await asyncio.sleep(0.05)
        return False
    head = await up.readuntil(b"\r\n\r\n")
    if cut is Cut.INSTEAD_OF_REPLY:
        return False
    length = _length(head)
    if length is None:
        whole = await _pass_stream(up, writer, head, cut if isinstance(cut, CutAt) else None)
        if not whole:
            up_writer.transport.abort()
            await asyncio.sleep(SETTLE_S)
            writer.close()
            await writer.wait_closed()
        return whole
    body = await up.readexactly(length)
    writer.write(head + (body[: len(body) // 2] if cut is Cut.WITHIN_REPLY else body))
    await writer.drain()
    return cut is not Cut.WITHIN_REPLY


async def _pass_stream(up: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: bytes, cut: CutAt | None) -> bool:
    """The chunks of one reply as they come; False if it was cut, or ended too early."""
    passed = 0
    while True:
        at = seen.find(cut.marker) if cut else -1
        until = len(seen) if at < 0 or cut is None else at + len(cut.marker) * cut.after
        writer.write(seen[passed:until])
        await writer.drain()
        passed = until
        if at >= 0:
            return False
        if seen.endswith(END_OF_CHUNKS):
            return True
        piece = await up.read(2**16)
        if not piece:
            return False
        seen += piece


def _length(head: bytes) -> int | None:
    lines = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return int(lines[0].partition(b":")[2]) if lines else None
