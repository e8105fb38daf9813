"""The vLLM engine: one call from request to events.

    request --asking--> body --/v1/chat/completions--> bytes --VllmReader--> events

A generation is sent once. Only where vLLM refused it before sampling, as older versions do that leave `max_tokens`
to the caller, is it asked again, with what the prompt leaves. Closing the iterator closes the connection, which makes
vLLM abort the generation.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing
from typing import Any

import aiohttp

from rolltape.chat import ChatRequest, EngineEvent
from rolltape.engines import Gives
from rolltape.engines.openai_body import ToolGrammar
from rolltape.engines.refusals import TooManyTokens
from rolltape.engines.upstream import ObservedEngine, Upstream, events, one_of
from rolltape.engines.vllm.asking import Asked, LogProbsMode, ask, tokenize_body
from rolltape.engines.vllm.reading import VllmReader
from rolltape.engines.vllm.refusals import leaves_no_room, refusal
from rolltape.errors import EngineRefused
from rolltape.media import media_parts
from rolltape.tokens import IntArray, token_ids

URL = "http://127.0.0.1:8000"


class VllmEngine(ObservedEngine):
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
        one_of("logprobs_mode", logprobs_mode, LogProbsMode)
        one_of("tool_grammar", tool_grammar, ToolGrammar)
        super().__init__(Upstream("vLLM", url or URL, api_key, model, refusal=refusal, silence=silence))
        self._mode, self._tool_grammar = logprobs_mode, tool_grammar
        self.gives = Gives(
            prompt_ids_first=True,
            log_prob_kind="raw" if logprobs_mode == "raw_logprobs" else "temperature_scaled",
            tools=True,
            images=True,
        )

    async def count_tokens(self, request: ChatRequest) -> int:
        """By `/tokenize`, which renders as the chat endpoint does, and leaves images as it finds them: refused."""
        if isinstance(request.prompt, tuple):
            return len(request.prompt)
        if any(media_parts(request)):
            raise EngineRefused(400, "invalid_request", "vLLM counts images only as it runs them.", param="messages")
        served = await self._upstream.served(request.model)
        return await self._upstream.count(tokenize_body(request, served.name))

    async def generate(self, request: ChatRequest, sampling: Mapping[str, Any]) -> AsyncIterator[EngineEvent]:
        """See `Engine.generate`."""
        async with aclosing(self._generate(None, request, sampling)) as told:
            async for event in told:
                yield event

    async def render(self, request: ChatRequest) -> IntArray:
        """See `TokenPrompted`. By `/tokenize`."""
        if isinstance(request.prompt, tuple):
            return token_ids(request.prompt)
        served = await self._upstream.served(request.model)
        return await self._upstream.tokens(tokenize_body(request, served.name))

    async def generate_from(
        self, prompt_token_ids: IntArray, request: ChatRequest, sampling: Mapping[str, Any]
    ) -> AsyncIterator[EngineEvent]:
        """See `TokenPrompted`. By the chat endpoint, which takes the ids in place of what it rendered and parses the
        reply as ever."""
        async with aclosing(self._generate(prompt_token_ids, request, sampling)) as told:
            async for event in told:
                yield event

    async def _generate(
        self, prompt: IntArray | None, request: ChatRequest, sampling: Mapping[str, Any]
    ) -> AsyncGenerator[EngineEvent, None]:
        served = await self._upstream.served(request.model)
        asked = ask(
            request,
            sampling,
            model=served.name,
            context=served.context_length,
            mode=self._mode,
            tool_grammar=self._tool_grammar,
        )
        if prompt is not None:
            asked = asked.with_prompt(prompt.tolist())
        async with AsyncExitStack() as stack:
            response, asked = await self._send(stack, asked, served.context_length)
            streamed = response.content_type != "application/json"
            reader = VllmReader(asked, served.context_length, streamed)
            async with aclosing(events(response, reader)) as told:
                async for event in told:
                    yield event

    async def _send(
        self, stack: AsyncExitStack, asked: Asked, context: int | None
    ) -> tuple[aiohttp.ClientResponse, Asked]:
        """The open answer, and what it answers."""
        server = self._upstream.server()
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
