"""One HTTP exchange over ASGI: a bounded body in, bytes out, and whether the client is still there.

`read_body` undoes gzip, deflate and zstd within a bound on what comes out, so a small bomb cannot take the gateway
down. After the body has been read one task waits for the disconnect, and ends the scope that is watching for it.
"""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import zstandard
from starlette.types import Receive, Scope, Send

from rolltape.errors import RequestError

Headers: TypeAlias = Mapping[str, str]


class ClientGone(Exception):
    """The client closed its connection."""


class Exchange:
    """One request and its one response."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.raw_path: str = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1").partition("?")[0]
        self.query: str = scope.get("query_string", b"").decode("latin-1")
        self.headers: Headers = joined_headers(scope["headers"])
        self.opened = False
        """True once the status line has been sent: from then on errors must go into the body."""
        self.gone = False
        """True once the client has closed the connection."""
        self.cut = False
        """True when the client left while part of the reply still waited here: it cannot have had the whole."""
        self._receive, self._send = receive, send
        self._writing = asyncio.Lock()
        self._scope: asyncio.Timeout | None = None

    async def read_body(self, limit: int) -> bytes:
        """The whole body, decoded. Raises `RequestError` 400, 413 or 415, or `ClientGone`."""
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.gone = True
                raise ClientGone
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > limit:
                raise too_large(limit)
            chunks.append(chunk)
            if not message.get("more_body", False):
                return decompress(b"".join(chunks), self.headers.get("content-encoding", ""), limit)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """While its body runs, `gone` tells at once that the client has left."""
        watch = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watch.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def until_gone(self) -> AsyncIterator[None]:
        """Runs its body until it ends or the watched client goes; then raises `ClientGone` in its place."""
        if self.gone:
            raise ClientGone
        try:
            async with asyncio.timeout(None) as self._scope:
                yield
        except TimeoutError:
            if self.gone:
                raise ClientGone from None
            raise
        finally:
            self._scope = None

    async def open(self, status: int, headers: Headers) -> None:
        """Send the status line and headers."""
        self.opened = True
        raw = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, data: bytes) -> None:
        """Send part of the body. Frames of several tasks never interleave."""
        async with self._writing:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def close(self) -> None:
        """End the body, once the connection has taken what is written."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": True})
        await asyncio.sleep(0)  # the watch hears of a disconnect no later than the writer
        self.cut = self.gone
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """The whole response at once; a HEAD request gets its headers only."""
        await self.open(status, {**headers, "content-length": str(len(body))})
        content = b"" if self.method == "HEAD" else body
        await self.write(content)
        await self.close()


def joined_headers(raw: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Headers by lower-case name. One that is there several times is joined with commas: none of it is dropped."""
    headers: dict[str, str] = {}
    for key, value in raw:
        name, text = key.decode("latin-1").lower(), value.decode("latin-1")
        headers[name] = f"{headers[name]}, {text}" if name in headers else text
    return headers


def too_large(limit: int) -> RequestError:
    return RequestError(413, "request_too_large", f"the request body is larger than {limit} bytes")


_MOST_ENCODINGS = 3  # each one may expand to the limit again, and nothing else is served meanwhile


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """`body` without its content encodings (outermost last, as HTTP lists them), at most `limit` bytes."""
    names = [part.strip().lower() for part in encoding.split(",") if part.strip()]
    if len(names) > _MOST_ENCODINGS:
        raise RequestError(415, "unsupported_encoding", f"{len(names)} content encodings on one body")
    for name in reversed(names):
        if name == "identity":
            continue
        expand = _DECODERS.get(name)
        if expand is None:
            known = ", ".join(sorted(_DECODERS))
            raise RequestError(
                415, "unsupported_encoding", f"content-encoding {name!r} is not supported; there are: {known}"
            )
        try:
            body = expand(body, limit)
        except (zlib.error, zstandard.ZstdError, EOFError, gzip.BadGzipFile) as error:
            raise RequestError(400, "bad_encoding", f"the body is not valid {name}: {error}") from error
    return body


def _gzip(body: bytes, limit: int) -> bytes:
    return _inflate(zlib.decompressobj(wbits=31), body, limit)


def _deflate(body: bytes, limit: int) -> bytes:
    zlib_header = len(body) >= 2 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
    return _inflate(zlib.decompressobj(wbits=15 if zlib_header else -15), body, limit)


def _inflate(decoder: Any, body: bytes, limit: int) -> bytes:
    data: bytes = decoder.decompress(body, limit + 1)
    if len(data) > limit:
        raise too_large(limit)
    _must_end(decoder, b"")
    return data


_ZSTD_BITE = (
    256  # bytes at a time: a zstd block of 4 bytes may expand to 128 KiB, and the bound is checked between bites
)


def _zstd(body: bytes, limit: int) -> bytes:
    decoder = zstandard.ZstdDecompressor(max_window_size=2**27).decompressobj()
    parts: list[bytes] = []
    size = 0
    for start in range(0, len(body), _ZSTD_BITE):
        part = decoder.decompress(body[start : start + _ZSTD_BITE])
        size += len(part)
        if size > limit:
            raise too_large(limit)
        parts.append(part)
        if decoder.eof:
            _must_end(decoder, body[start + _ZSTD_BITE :])
            return b"".join(parts)
    raise EOFError("it ends too early")


def _must_end(decoder: Any, rest: bytes) -> None:
    if not decoder.eof:
        raise EOFError("it ends too early")
    if decoder.unused_data or rest:
        raise EOFError("something follows its end")


_DECODERS = {"gzip": _gzip, "x-gzip": _gzip, "deflate": _deflate, "zstd": _zstd}
