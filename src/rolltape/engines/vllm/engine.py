"""The vLLM engine: one call from request to events.

    request --asking--> body --/v1/chat/completions--> bytes --AnswerReader--> events

A generation is sent once. Only where vLLM refused it before sampling, as older versions do that leave `max_tokens`
to the caller, is it asked again, with what the prompt leaves. Closing the iterator closes the connection, which makes
vLLM abort the generation.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing
from typing import Any, get_args

import aiohttp

from rolltape.chat import ChatRequest, EngineEvent
from rolltape.engines import Gives, ServedModel
from rolltape.engines.http import EngineServer
from rolltape.engines.vllm.asking import Asked, LogProbsMode, ToolGrammar, ask, tokenize_body
from rolltape.engines.vllm.reading import AnswerReader
from rolltape.engines.vllm.refusals import TooManyTokens, leaves_no_room, refusal
from rolltape.errors import ConfigError, EngineBroken, EngineRefused, EngineUnavailable, RequestError

URL = "http://127.0.0.1:8000"
MODELS_SECONDS = 60.0


class VllmEngine:
    """A running vLLM server at `url`, with or without `/v1` at its end.

    `model`: which of its models is the default one; None = the first that it lists.
    `logprobs_mode`: what the server was started with as `--logprobs-mode`.
    `tool_grammar`: vLLM constrains tool calls by a grammar where a tool is `strict` or `parallel_tool_calls` is false,
    and log-probs are then of the masked distribution. "keep" forwards both and says so in the entry, "drop" takes them
    out of the request, "always" is for a server that constrains every call (`--tool-strict-level`, and the parsers that
    do so by themselves, glm47 and mistral).
    `silence`: seconds without a byte after which an answer counts as broken off; queueing and prefill count.
    """

    kind = "vllm"

    def __init__(
        self,
        model: str | None = None,
        url: str | None = None,
        *,
        api_key: str | None = None,
        logprobs_mode: LogProbsMode = "raw_logprobs",
        tool_grammar: ToolGrammar = "keep",
        silence: float = 600.0,
    ) -> None:
        _one_of("logprobs_mode", logprobs_mode, LogProbsMode)
        _one_of("tool_grammar", tool_grammar, ToolGrammar)
        self._model, self._api_key = model, api_key
        self._url = (url or URL).rstrip("/").removesuffix("/v1")
        self._mode, self._tool_grammar = logprobs_mode, tool_grammar
        self._silence = silence
        self.gives = Gives(
            prompt_ids_first=True,
            log_prob_kind="raw" if logprobs_mode == "raw_logprobs" else "temperature_scaled",
            tools=True,
            images=True,
        )
        self._server: EngineServer | None = None
        self._models: tuple[ServedModel, ...] = ()
        self._asked_at = 0.0

    async def start(self) -> None:
        """Connect, and learn which models there are."""
        self._server = EngineServer("vLLM", self._url, self._api_key, refusal=refusal, silence=self._silence)
        try:
            self._models, self._asked_at = await self._list(), time.monotonic()
        except ConfigError:
            await self.close()
            raise
        except RequestError as error:
            await self.close()
            hint = "start vLLM first, and see --engine-url"
            raise ConfigError(f"{self._url} does not answer like vLLM: {error.message}", hint=hint) from error

    async def close(self) -> None:
        """The server itself is left alone."""
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
        cards = (await self._started().get("/v1/models")).get("data")
        if not isinstance(cards, list) or not cards or not all(isinstance(card, dict) for card in cards):
            raise EngineBroken("it lists no models")
        models = [ServedModel(str(card.get("id")), _length(card.get("max_model_len"))) for card in cards]
        if self._model is None:
            return tuple(models)
        default = [model for model in models if model.name == self._model]
        if not default:
            raise ConfigError(f"vLLM serves no {self._model!r}; there is: {', '.join(m.name for m in models)}")
        return (*default, *(model for model in models if model.name != self._model))

    async def healthy(self) -> bool:
        try:
            async with self._started().open("GET", "/health"):
                return True
        except RequestError:
            return False

    async def count_tokens(self, request: ChatRequest) -> int:
        """By `/tokenize`, which renders as the chat endpoint does."""
        if isinstance(request.prompt, tuple):
            return len(request.prompt)
        body = tokenize_body(request, (await self._served(request.model)).name)
        count = (await self._started().post("/tokenize", body)).get("count")
        if type(count) is not int:
            raise EngineBroken("vLLM counted no tokens")
        return count

    async def generate(self, request: ChatRequest, sampling: Mapping[str, Any]) -> AsyncIterator[EngineEvent]:
        """See `Engine.generate`."""
        served = await self._served(request.model)
        asked = ask(
            request,
            sampling,
            model=served.name,
            context=served.context_length,
            mode=self._mode,
            tool_grammar=self._tool_grammar,
        )
        async with AsyncExitStack() as stack:
            response, asked = await self._send(stack, asked, served.context_length)
            streamed = response.content_type != "application/json"
            reader = AnswerReader(asked, served.context_length, streamed)
            async with aclosing(_events(response, reader)) as events:
                async for event in events:
                    yield event

    async def _send(
        self, stack: AsyncExitStack, asked: Asked, context: int | None
    ) -> tuple[aiohttp.ClientResponse, Asked]:
        """The open answer, and what it answers."""
        server = self._started()
        try:
            return await stack.enter_async_context(server.streamed(asked.path, asked.body)), asked
        except TooManyTokens as error:
            asked = asked.with_max_tokens(error.room)
            return await stack.enter_async_context(server.streamed(asked.path, asked.body)), asked
        except EngineRefused as error:
            overflow = leaves_no_room(error, context)
            if overflow is None:
                raise
            raise overflow from error

    async def _served(self, name: str) -> ServedModel:
        """The model that answers to `name`: by an alias, the default one."""
        models = await self.models()
        if not models:
            raise EngineUnavailable("The vLLM engine is not running.")
        return next((model for model in models if model.name == name), models[0])

    def _started(self) -> EngineServer:
        if self._server is None:
            raise EngineUnavailable("The vLLM engine is not running.")
        return self._server


async def _events(response: aiohttp.ClientResponse, reader: AnswerReader) -> AsyncGenerator[EngineEvent, None]:
    async for read in response.content.iter_any():
        for event in reader.feed(read):
            yield event
        if reader.done:
            return
    for event in reader.close():
        yield event


def _one_of(name: str, value: Any, literal: Any) -> None:
    if value not in get_args(literal):
        raise ConfigError(f"{name} must be one of {', '.join(get_args(literal))}, not {value!r}")


def _length(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None
