"""A running server that an engine observes: its connection, its models and its health.

    start ──> models known ──(a minute)──> asked anew ──> close

The server itself is never started or ended by us.
"""

import time
from collections.abc import AsyncGenerator
from typing import Any, get_args

import aiohttp

from rolltape.chat import EngineEvent
from rolltape.engines import ServedModel
from rolltape.engines.http import EngineServer, Refusal
from rolltape.engines.openai_answer import AnswerReader
from rolltape.errors import ConfigError, EngineBroken, EngineUnavailable, EntryError, RequestError
from rolltape.tokens import IntArray, token_ids

MODELS_SECONDS = 60.0


class Upstream:
    """The server `name` at `url`, with or without `/v1` at its end. `model`: the default one, None = the first listed.

    `silence`: as in `EngineServer`.
    """

    def __init__(
        self, name: str, url: str, api_key: str | None, model: str | None, *, refusal: Refusal, silence: float
    ) -> None:
        self.name = name
        self.url = url.rstrip("/").removesuffix("/v1")
        self._api_key, self._model, self._refusal, self._silence = api_key, model, refusal, silence
        self._server: EngineServer | None = None
        self._models: tuple[ServedModel, ...] = ()
        self._asked_at = 0.0
        self.adapters: frozenset[str] = frozenset()
        """Which models are adapters of another one."""

    async def start(self) -> None:
        """Connect, and learn which models there are."""
        self._server = EngineServer(self.name, self.url, self._api_key, refusal=self._refusal, silence=self._silence)
        try:
            self._models, self._asked_at = await self._list(), time.monotonic()
        except ConfigError:
            await self.close()
            raise
        except RequestError as error:
            await self.close()
            hint = f"start {self.name} first, and see --engine-url"
            raise ConfigError(f"{self.url} does not answer like {self.name}: {error.message}", hint=hint) from error

    async def close(self) -> None:
        """Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            await server.close()

    async def models(self) -> tuple[ServedModel, ...]:
        """Asked anew once a minute: adapters come and go. A server that does not answer keeps its models."""
        if time.monotonic() - self._asked_at > MODELS_SECONDS:
            self._asked_at = time.monotonic()
            try:
                self._models = await self._list()
            except (RequestError, ConfigError):
                return self._models
        return self._models

    async def _list(self) -> tuple[ServedModel, ...]:
        cards = (await self.server().get("/v1/models")).get("data")
        if not isinstance(cards, list) or not cards or not all(isinstance(card, dict) for card in cards):
            raise EngineBroken("it lists no models")
        self.adapters = frozenset(str(card.get("id")) for card in cards if card.get("parent"))
        lengths = {card.get("id"): _length(card.get("max_model_len")) for card in cards}
        models = [ServedModel(str(c.get("id")), lengths[c.get("id")] or lengths.get(c.get("parent"))) for c in cards]
        if self._model is None:
            return tuple(models)
        default = [model for model in models if model.name == self._model]
        if not default:
            served = ", ".join(model.name for model in models)
            raise ConfigError(f"{self.name} serves no {self._model!r}; there is: {served}")
        return (*default, *(model for model in models if model.name != self._model))

    async def served(self, name: str) -> ServedModel:
        """The model that answers to `name`: by an alias, the default one."""
        models = await self.models()
        if not models:
            raise EngineUnavailable(f"The {self.name} engine is not running.")
        return next((model for model in models if model.name == name), models[0])

    async def healthy(self) -> bool:
        """True when a call would be taken now."""
        try:
            async with self.server().open("GET", "/health"):
                return True
        except RequestError:
            return False

    async def count(self, body: dict[str, Any]) -> int:
        """What `/tokenize` counts."""
        count = (await self.server().post("/tokenize", body)).get("count")
        if type(count) is not int:
            raise EngineBroken(f"{self.name} counted no tokens")
        return count

    async def tokens(self, body: dict[str, Any]) -> IntArray:
        """The ids that `/tokenize` gives."""
        try:
            return token_ids((await self.server().post("/tokenize", body)).get("tokens") or ())
        except EntryError as error:
            raise EngineBroken(f"{self.name} tokenized to what is no list of ids: {error.message}") from error

    def server(self) -> EngineServer:
        """Raises `EngineUnavailable` before `start` and after `close`."""
        if self._server is None:
            raise EngineUnavailable(f"The {self.name} engine is not running.")
        return self._server


class ObservedEngine:
    """What every engine over an `Upstream` has in common."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def start(self) -> None:
        """See `Upstream.start`."""
        await self._upstream.start()

    async def close(self) -> None:
        """The server itself is left alone."""
        await self._upstream.close()

    async def models(self) -> tuple[ServedModel, ...]:
        """See `Upstream.models`."""
        return await self._upstream.models()

    async def healthy(self) -> bool:
        """See `Upstream.healthy`."""
        return await self._upstream.healthy()


async def events(response: aiohttp.ClientResponse, reader: AnswerReader) -> AsyncGenerator[EngineEvent, None]:
    """What `reader` makes of the answer, as it comes."""
    async for read in response.content.iter_any():
        for event in reader.feed(read):
            yield event
        if reader.done:
            return
    for event in reader.close():
        yield event


def one_of(name: str, value: Any, literal: Any) -> None:
    """Raises `ConfigError` where the option `name` is none of the literal's values."""
    if value not in get_args(literal):
        raise ConfigError(f"{name} must be one of {', '.join(map(str, get_args(literal)))}, not {value!r}")


def _length(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None
