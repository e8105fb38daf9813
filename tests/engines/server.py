"""A tiny HTTP server that answers as it is told, byte by byte: engines meet every way there is to fail."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


def answer(status: int, body: Any) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def piece(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def streamed(data: bytes) -> bytes:
    return STREAM + piece(data) + piece(b"")


@dataclass
class FakeServer:
    """Answers what `fixed` names by its path, and each further request with the next of `replies`, the last one over
    and over. `hold`: such a reply stays open until the client leaves."""

    fixed: Mapping[str, bytes]
    replies: list[bytes]
    hold: bool = False
    bodies: list[Any] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    listener: asyncio.Server | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split(b" ")[1].decode()
        lengths = (line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
        body = await reader.readexactly(int(next(lengths, b":0").split(b":")[1]))
        if path in self.fixed:
            writer.write(self.fixed[path])
        else:
            self.paths.append(path)
            self.bodies.append(json.loads(body))
            writer.write(self.replies[min(len(self.bodies), len(self.replies)) - 1])
            if self.hold:
                await writer.drain()
                await reader.read()
                self.closed.set()
        await writer.drain()
        writer.close()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Its address."""
        self.listener = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{self.listener.sockets[0].getsockname()[1]}/v1"
        finally:
            self.listener.close()
