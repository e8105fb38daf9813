"""What is llama.cpp's own in HTTP to its server: the chunks of a stream, and how it refuses."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from rolltape.chat import Json
from rolltape.engines.http import EngineServer, error_message
from rolltape.errors import EngineBroken, EngineRefused, EngineUnavailable, RequestError

DATA = b"data: "


class LlamaServer(EngineServer):
    """A llama.cpp server at `url`. Methods raise `EngineRefused`, `EngineUnavailable` or `EngineBroken`."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        super().__init__("llama.cpp", url, api_key, refusal=_refusal)

    @asynccontextmanager
    async def stream(self, path: str, body: Json) -> AsyncIterator[AsyncIterator[Json]]:
        """The chunks of a streamed answer. Leaving the context closes the connection, which ends the generation."""
        async with self.streamed(path, body) as response:
            yield self._chunks(response)

    async def _chunks(self, response: aiohttp.ClientResponse) -> AsyncIterator[Json]:
        async for line in response.content:
            line = line.strip()
            if line.startswith(DATA) and line != b"data: [DONE]":
                yield self.object(line[len(DATA) :], "a stream")
            elif line.startswith(b"error: "):
                raise EngineBroken(f"llama.cpp failed in mid-stream: {line[7:].decode(errors='replace')}")


def _refusal(status: int, body: bytes, path: str) -> RequestError:
    message = error_message(body)
    if status == 400:
        return EngineRefused(400, "invalid_request", message)
    if status == 503:
        return EngineUnavailable(f"llama.cpp is not ready: {message}")
    return EngineBroken(f"llama.cpp answered {path} with {status}: {message}")
