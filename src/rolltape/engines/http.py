"""HTTP to an engine's server, and which of our errors each failure is. The only network I/O of the engines that use it.

Every request has a connection of its own: it costs a fraction of a millisecond, and a kept-alive connection that the
server has just closed could leave a POST in doubt. A generation is never sent twice.
"""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import aiohttp
import msgspec

from rolltape.chat import Json
from rolltape.errors import EngineBroken, EngineUnavailable, RequestError

Refusal: TypeAlias = Callable[[int, bytes, str], RequestError]
"""Status, body and path of an answer that is not 200, to the error that it is."""


class EngineServer:
    """A server at `url`; `name` is what errors call it. Methods raise what `refusal` gives for an answer that is not
    200, `EngineUnavailable` where nothing answers, and `EngineBroken`.

    `silence`: seconds without a byte after which an answer counts as broken off.
    """

    def __init__(self, name: str, url: str, api_key: str | None, *, refusal: Refusal, silence: float = 600) -> None:
        self.name = name
        self.url = url.rstrip("/")
        self._refusal = refusal
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True, limit=0),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=silence),
            read_bufsize=2**20,
        )

    async def close(self) -> None:
        """Idempotent."""
        await self._session.close()

    async def get(self, path: str) -> Json:
        """A JSON object."""
        async with self.open("GET", path) as response:
            return self.object(await response.read(), path)

    async def post(self, path: str, body: Json) -> Json:
        """A JSON object."""
        async with self.open("POST", path, body) as response:
            return self.object(await response.read(), path)

    @asynccontextmanager
    async def streamed(self, path: str, body: Json) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer that is read as it comes. Leaving the context closes the connection, which ends the generation."""
        async with self.open("POST", path, body) as response:
            try:
                yield response
            finally:
                response.close()

    @asynccontextmanager
    async def open(self, method: str, path: str, body: Json | None = None) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer, its status 200, its body still to be read."""
        data = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": "application/json"} if data is not None else {}
        try:
            async with self._session.request(method, self.url + path, data=data, headers=headers) as response:
                if response.status != 200:
                    raise self._refusal(response.status, await response.read(), path)
                yield response
        except aiohttp.ClientConnectorError as error:
            raise EngineUnavailable(f"Nothing answers at {self.url}: {error}") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineBroken(f"{self.name} broke off its answer to {path}: {error!r}") from error

    def object(self, data: bytes, what: str) -> Json:
        """`data` as a JSON object. Raises `EngineBroken`."""
        try:
            value = lenient_json(data)
        except ValueError as error:
            raise EngineBroken(f"{self.name} answered {what} with something that is no JSON: {data[:80]!r}") from error
        if not isinstance(value, dict):
            raise EngineBroken(f"{self.name} answered {what} with something that is no object: {data[:80]!r}")
        return value


def lenient_json(data: bytes) -> Any:
    """JSON with the NaN, Infinity and half surrogate pairs that Python servers write. Raises `ValueError`.

    Half a pair is no text that could be sent on: it becomes U+FFFD.
    """
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        value = _loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if b"\\ud" not in data and b"\\uD" not in data:
        return value
    text = json.dumps(value, ensure_ascii=False).encode("utf-16-le", "surrogatepass")
    return json.loads(text.decode("utf-16-le", "replace"))


def _loads(data: bytes) -> Any:
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def error_message(body: bytes) -> str:
    """What an error body says: OpenAI's `error.message`, FastAPI's `detail`, else its first characters."""
    try:
        fields = lenient_json(body)
        error = fields.get("error", fields)
        return str(error if isinstance(error, str) else error.get("message") or error["detail"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return body[:200].decode(errors="replace")
