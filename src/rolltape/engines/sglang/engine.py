"""The SGLang engine: one call from request to events.

    messages ──/tokenize──> prompt ids ──/v1/chat/completions, streamed──> ChatReader     where a parser is active
    messages ──────────────────────────/v1/chat/completions, whole─────> ChatReader     else, and with images
    raw prompt ────────────────────────/generate, streamed─────────────> GenerateReader

A generation is sent once. Only where SGLang refused it before sampling, because it leaves `max_tokens` to the caller,
is it asked again, with what the prompt leaves. Closing the iterator closes the connection, which makes SGLang abort.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from rolltape.chat import ChatRequest, EngineEvent, Json
from rolltape.engines import Gives, ServedModel
from rolltape.engines.openai_answer import prompt_ids
from rolltape.engines.openai_body import ToolGrammar
from rolltape.engines.refusals import TooManyTokens
from rolltape.engines.sglang.asking import (
    CHAT,
    TOKENIZE,
    Asked,
    Server,
    ask_chat,
    ask_raw,
    has_media,
    tokenize_body,
)
from rolltape.engines.sglang.chat import ChatReader
from rolltape.engines.sglang.generating import GenerateReader
from rolltape.engines.sglang.refusals import refusal
from rolltape.engines.upstream import ObservedEngine, Upstream, events, one_of
from rolltape.errors import EngineBroken, EngineRefused, RequestError
from rolltape.tokens import IntArray, token_ids

URL = "http://127.0.0.1:30000"

Answers: TypeAlias = Literal["auto", "streamed", "whole"]


class SglangEngine(ObservedEngine):
    """A running SGLang server at `url`, with or without `/v1` at its end.

    `model`: which of its models is the default one; None = the first that it lists.
    `answers`: how chat is asked for. "streamed" passes deltas as they come; "whole" has each log-prob beside its id and
    the weight version of each token, and shows nothing before the end; "auto" streams where the server has a parser
    for tool calls or reasoning, since without one its streams lack the stop token's log-prob.
    `original_logprobs`: the server was started with `SGLANG_RETURN_ORIGINAL_LOGPROB=1`.
    `tool_grammar`: SGLang constrains the calls of `strict` tools by a grammar. "keep" forwards them and says so in the
    entry, "drop" takes the field out, "always" is for a server that constrains every call.
    `silence`: seconds without a byte after which an answer counts as broken off; of a whole answer it is all of them.
    """

    kind = "sglang"

    def __init__(
        self,
        model: str | None = None,
        url: str | None = None,
        *,
        api_key: str | None = None,
        answers: Answers = "auto",
        original_logprobs: bool = False,
        tool_grammar: ToolGrammar = "keep",
        silence: float = 1800.0,
    ) -> None:
        one_of("answers", answers, Answers)
        one_of("tool_grammar", tool_grammar, ToolGrammar)
        one_of("original_logprobs", original_logprobs, Literal[True, False])
        super().__init__(Upstream("SGLang", url or URL, api_key, model, refusal=refusal, silence=silence))
        self._answers = answers
        self._knows = Server(original_logprobs, tool_grammar)
        self.gives = Gives(
            prompt_ids_first=True,
            log_prob_kind="raw" if original_logprobs else "temperature_scaled",
            tools=True,
            images=True,
            policy_version=answers != "streamed",
        )

    async def start(self) -> None:
        """Connect, and learn which models there are and how the server was started."""
        await super().start()
        with suppress(RequestError):  # an older server: what it would have told counts as unknown
            self._knows = self._knows.told(await self._upstream.server().get("/server_info"))
        self.gives = replace(self.gives, policy_version=not self._streams())

    async def count_tokens(self, request: ChatRequest) -> int:
        """By `/tokenize`, which renders as the chat endpoint does. What it cannot render it refuses."""
        if isinstance(request.prompt, tuple):
            return len(request.prompt)
        if has_media(request):
            raise EngineRefused(400, "invalid_request", "SGLang counts images only as it runs them.", param="messages")
        served = await self._upstream.served(request.model)
        return await self._upstream.count(tokenize_body(request, self._named(served), self._knows.tool_grammar))

    def _named(self, served: ServedModel) -> Json:
        """The fields that name a model. An adapter's bare name alone would be answered by the base model."""
        adapter = served.name in self._upstream.adapters
        return {"model": served.name, **({"lora_path": served.name} if adapter else {})}

    async def generate(self, request: ChatRequest, sampling: Mapping[str, Any]) -> AsyncIterator[EngineEvent]:
        """See `Engine.generate`."""
        served = await self._upstream.served(request.model)
        asked = await self._ask(request, sampling, served)
        clamped = False
        while True:
            try:
                async with aclosing(self._answer(asked, served.context_length)) as told:
                    async for event in told:
                        yield event
            except TooManyTokens as error:  # only ever before the first event
                if clamped:
                    raise
                asked, clamped = asked.with_max_tokens(error.room), True
            else:
                return

    async def _ask(self, request: ChatRequest, sampling: Mapping[str, Any], served: ServedModel) -> Asked:
        model = self._named(served)
        if request.prompt is not None:
            asked = ask_raw(request, sampling, self._knows, model=model)
            prompt = token_ids(request.prompt, "the prompt") if isinstance(request.prompt, tuple) else None
            return asked if prompt is None else asked.within(served.context_length, prompt)
        if not self._streams() or has_media(request):
            return ask_chat(request, sampling, self._knows, model=model, streamed=False)
        prompt = await self._render(request, model)
        asked = ask_chat(request, sampling, self._knows, model=model, streamed=True)
        return asked.within(served.context_length, prompt)

    def _streams(self) -> bool:
        return self._answers == "streamed" or (self._answers == "auto" and self._knows.parses)

    async def _render(self, request: ChatRequest, model: Json) -> IntArray:
        told = await self._upstream.server().post(TOKENIZE, tokenize_body(request, model, self._knows.tool_grammar))
        prompt = prompt_ids(told.get("tokens"))
        if prompt is None:
            raise EngineBroken(
                "SGLang rendered no prompt", hint="its streams tell the prompt only at the end: answers: whole"
            )
        return prompt

    async def _answer(self, asked: Asked, context: int | None) -> AsyncGenerator[EngineEvent, None]:
        async with self._upstream.server().streamed(asked.path, asked.body) as response:
            streamed = response.content_type != "application/json"
            reader = (ChatReader if asked.path == CHAT else GenerateReader)(asked, context, streamed)
            async with aclosing(events(response, reader)) as told:
                async for event in told:
                    yield event
