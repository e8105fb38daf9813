"""Bounds of a connection that no application sees: the head of a request, and a client that takes no bytes.

Everything behind the head is bounded where it is read. A client that stops reading is cut off, which ends its call like
any other that leaves.
"""

import asyncio
from typing import Any

from starlette.responses import PlainTextResponse
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rolltape.config import Limits

_LARGE = PlainTextResponse("the head of the request is too large", 431, headers={"connection": "close"})


class BoundedProtocol(HttpToolsProtocol):
    """HTTP within `limits`."""

    limits = Limits()
    _timer: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A request has to come."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._head_came()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what belongs to a head; one that is too large gets 431 once it ends, or an end where it does not."""
        was_in_head = self._in_head
        super().data_received(data)
        if was_in_head and self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.max_header_bytes:
                self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        self._head_came()
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        app: Any = self.app
        if size > self.limits.max_header_bytes:
            self.app = _LARGE
        try:
            super().on_headers_complete()
        finally:
            self.app = app

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self.limits.stalled_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _await_head(self) -> None:
        self._head_came()
        self._in_head, self._head_bytes = True, 0
        self._timer = self.loop.call_later(self.limits.header_seconds, self._give_up)

    def _head_came(self) -> None:
        self._in_head = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


def bounded(limits: Limits) -> type[BoundedProtocol]:
    """The protocol with these limits: a server is given a class."""
    return type("Bounded", (BoundedProtocol,), {"limits": limits})
