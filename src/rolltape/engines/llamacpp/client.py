"""HTTP to a llama.cpp server, and which of our errors each failure is. The only module here that does network I/O.

Every request has a connection of its own: on localhost it costs a fraction of a millisecond, and a kept-alive
connection that the server has just closed could leave a POST in doubt. A generation is never sent twice.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from rolltape.chat import Json
from rolltape.errors import EngineBroken, EngineRefused, EngineUnavailable, RequestError

TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=600)
DATA = b"data: "


class LlamaServer:
    """A llama.cpp server at `url`. Methods raise `EngineRefused`, `EngineUnavailable` or `EngineBroken`."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        self._session = aiohttp.ClientSession(
            connector=connector, headers=headers, timeout=TIMEOUT, read_bufsize=2**20, json_serialize=_dumps
        )

    async def close(self) -> None:
        """Idempotent."""
        await self._session.close()

    async def get(self, path: str) -> Json:
        """A JSON object."""
        async with self._open("GET", path, None) as response:
            return _object(await response.read(), path)

    async def post(self, path: str, body: Json) -> Json:
        """A JSON object."""
        async with self._open("POST", path, body) as response:
            return _object(await response.read(), path)

    @asynccontextmanager
    async def stream(self, path: str, body: Json) -> AsyncIterator[AsyncIterator[Json]]:
        """The chunks of a streamed answer. Leaving the context closes the connection, which ends the generation."""
        async with self._open("POST", path, body) as response:
            try:
                yield _chunks(response)
            finally:
                response.close()

    @asynccontextmanager
    async def _open(self, method: str, path: str, body: Json | None) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with self._session.request(method, self.url + path, json=body) as response:
                if response.status != 200:
                    raise _refusal(response.status, await response.read(), path)
                yield response
        except aiohttp.ClientConnectorError as error:
            raise EngineUnavailable(f"Nothing answers at {self.url}: {error}") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineBroken(f"llama.cpp broke off its answer to {path}: {error!r}") from error


async def _chunks(response: aiohttp.ClientResponse) -> AsyncIterator[Json]:
    async for line in response.content:
        line = line.strip()
        if line.startswith(DATA) and line != b"data: [DONE]":
            yield _object(line[len(DATA) :], "a stream")
        elif line.startswith(b"error: "):
            raise EngineBroken(f"llama.cpp failed in mid-stream: {line[7:].decode(errors='replace')}")


def _refusal(status: int, body: bytes, path: str) -> RequestError:
    try:
        message = str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        message = body[:200].decode(errors="replace")
    if status == 400:
        return EngineRefused(400, "invalid_request", message)
    if status == 503:
        return EngineUnavailable(f"llama.cpp is not ready: {message}")
    return EngineBroken(f"llama.cpp answered {path} with {status}: {message}")


def _object(data: bytes, what: str) -> Json:
    try:
        value: Any = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise EngineBroken(f"llama.cpp answered {what} with something that is no JSON: {data[:80]!r}") from error
    if not isinstance(value, dict):
        raise EngineBroken(f"llama.cpp answered {what} with something that is no object: {data[:80]!r}")
    return value


def _dumps(value: Any) -> str:
    return msgspec.json.encode(value).decode()
