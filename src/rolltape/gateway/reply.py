"""The reply of one call on its way to the harness: streamed, or whole.

A streamed reply opens on its first frame, passes frames on as they come, and from the first *acting* one on holds them
until it is told that the entry is durable. While nothing goes out it keeps the client alive in the client's own way.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from rolltape.capture import ModelCall
from rolltape.chat import ChatRequest, EngineEvent
from rolltape.config import Limits
from rolltape.errors import RequestError
from rolltape.gateway.exchange import Exchange
from rolltape.wire import Frame, StreamEncoder, WireProtocol

Ready = Callable[[], Awaitable[None]]


class ReplyChannel(Protocol):
    """How a call answers."""

    async def feed(self, event: EngineEvent) -> None:
        """Pass on what may go out before the entry is durable."""
        ...

    async def finish(self, call: ModelCall) -> None:
        """The entry is durable (or its loss is noted): let the rest go."""
        ...


class WholeReply:
    """A reply that goes out at once, when it is complete."""

    def __init__(self, exchange: Exchange, protocol: WireProtocol, request: ChatRequest, created: int) -> None:
        self._exchange, self._protocol, self._request, self._created = exchange, protocol, request, created

    async def feed(self, event: EngineEvent) -> None:
        return

    async def finish(self, call: ModelCall) -> None:
        body = self._protocol.encode_reply(self._request, call.reply(self._created))
        headers = {"content-type": "application/json", "x-request-id": call.identity.model_call_id}
        await self._exchange.respond(200, headers, body)


class StreamedReply:
    """A reply that goes out as it is sampled."""

    def __init__(self, exchange: Exchange, encoder: StreamEncoder, call_id: str) -> None:
        self._exchange, self._encoder = exchange, encoder
        self._headers = {
            "content-type": encoder.content_type,
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
            "x-request-id": call_id,
        }
        self._held: list[Frame] = []
        self._opened = False
        self._last_write = asyncio.get_running_loop().time()

    async def feed(self, event: EngineEvent) -> None:
        frames = self._encoder.encode(event)
        ready = 0
        while not self._held and ready < len(frames) and not frames[ready].acting:
            ready += 1
        self._held.extend(frames[ready:])
        if ready or not self._opened:
            await self._write(frames[:ready])

    async def finish(self, call: ModelCall) -> None:
        await self._write(self._held)
        await self._exchange.close()

    async def fail(self, error: RequestError) -> None:
        """End a stream that is open with an error frame; what was held is never sent."""
        await self._write(self._encoder.error(error))
        await self._exchange.close()

    async def _write(self, frames: Sequence[Frame]) -> None:
        opening = () if self._opened else self._encoder.open()
        if not self._opened:
            self._opened = True
            await self._exchange.open(200, self._headers)
        self._last_write = asyncio.get_running_loop().time()
        data = b"".join(frame.data for frame in (*opening, *frames))
        if data:
            await self._exchange.write(data)

    @asynccontextmanager
    async def kept_alive(self, limits: Limits, ready: Ready) -> AsyncIterator[None]:
        """While its body runs, no silence outlasts the limits. `ready` is awaited before the first byte."""
        task = asyncio.create_task(self._keep_alive(limits, ready))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _keep_alive(self, limits: Limits, ready: Ready) -> None:
        loop = asyncio.get_running_loop()
        while True:
            patience = limits.keep_alive_seconds if self._opened else limits.first_byte_seconds
            silent = loop.time() - self._last_write
            if silent < patience:
                await asyncio.sleep(patience - silent)
                continue
            if not self._opened:
                await ready()
            await self._write([self._encoder.keep_alive()])
