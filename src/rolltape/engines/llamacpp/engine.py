"""The llama.cpp engine: one call from request to events.

    messages --/apply-template--> text --/tokenize--> ids --/completion--> chunks --CompletionReader--> events

The ids that `/completion` gets are the ids that are recorded. Closing the iterator closes the connection, which makes
the server give up the generation.
"""

import asyncio
import itertools
import random
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

from rolltape.chat import ChatRequest, EngineEvent, Json, Started
from rolltape.engines import Gives, ServedModel
from rolltape.engines.llamacpp import embedded, prompt, sampling
from rolltape.engines.llamacpp.client import LlamaServer
from rolltape.engines.llamacpp.models import ensure_model, model_name
from rolltape.engines.llamacpp.reading import LOOK_AHEAD, CompletionReader, StopText, Vocabulary
from rolltape.engines.llamacpp.tools import ToolCallParser
from rolltape.errors import ConfigError, EngineBroken, EngineRefused, EngineUnavailable, RequestError
from rolltape.tokens import IntArray, token_ids

CONTEXT = 8192
"""Tokens for each slot when nothing else is said: what the default model was trained for."""
WHOLE_VOCABULARY = 2**24


class LlamaCppEngine:
    """llama.cpp, embedded unless `url` names a running server.

    `model`: None or "smollm2", or the path of a .gguf file; with `url` only the name to serve it under.
    `slots` calls are sampled at a time, others wait; `context` is in tokens for each. `threads` None = one
    fewer than this process has cores. `chat_template`: the text of a Jinja template, or a path to one, instead of the
    model's own.
    `cache_prompt`: reuse what a slot has computed of a prompt. Faster, but then a call's numbers depend, within the
    noise of quantised arithmetic, on the calls before it; without it a call that runs alone repeats to the bit.
    `seed` makes the sequence of per-call seeds repeatable; None draws them at random. Each is recorded.
    """

    kind = "llamacpp"
    gives = Gives(prompt_ids_first=True, log_prob_kind="raw", tools=True)

    def __init__(
        self,
        model: str | None = None,
        url: str | None = None,
        *,
        slots: int = 4,
        context: int = CONTEXT,
        threads: int | None = None,
        chat_template: str | None = None,
        seed: int | None = None,
        cache_prompt: bool = False,
        api_key: str | None = None,
    ) -> None:
        if slots < 1 or context < 1:
            raise ConfigError(f"slots and context must be at least 1, not {slots} and {context}")
        self._model, self._url, self._api_key = model, url, api_key
        self._slots, self._threads = slots, threads
        self._context = context
        self._chat_template, self._cache_prompt = chat_template, cache_prompt
        self._random = random.Random(seed)  # noqa: S311 - sampling seeds, no secret
        self._embedded: embedded.EmbeddedServer | None = None
        self._server: LlamaServer | None = None
        self._name = model_name(model)
        self._native_tools = False
        self._vocabulary = Vocabulary({})
        self._guard = prompt.Guard({})
        self._bos: list[int] = []

    async def start(self) -> None:
        """Load the model (fetching the default one if need be) or connect, and learn what the server can do."""
        if self._url is None:
            self._embedded = await asyncio.to_thread(self._start_embedded)
            self._server = LlamaServer(self._embedded.url, self._embedded.api_key)
        else:
            self._server = LlamaServer(self._url, self._api_key)
        try:
            await self._learn(self._server)
        except (RequestError, KeyError, TypeError, ValueError) as error:
            await self.close()
            raise ConfigError(
                f"{self._url or 'The embedded server'} does not answer like llama.cpp: {error}"
            ) from error

    def _start_embedded(self) -> embedded.EmbeddedServer:
        return embedded.start(
            ensure_model(self._model),
            slots=self._slots,
            context=self._context,
            threads=self._threads,
            chat_template=_template(self._chat_template),
            cache_prompt=self._cache_prompt,
        )

    async def _learn(self, server: LlamaServer) -> None:
        props = await server.get("/props")
        self._context = int(props["default_generation_settings"]["n_ctx"])
        self._native_tools = bool(props.get("chat_template_caps", {}).get("supports_tools"))
        if self._url is not None and self._model is None:
            self._name = Path(str(props.get("model_alias") or props["model_path"])).stem
        self._bos = await self._tokenize([], add_special=True)
        self._vocabulary = await _vocabulary(server)
        self._guard = prompt.Guard(dict(self._vocabulary.control))

    async def close(self) -> None:
        """Stop the embedded server; another's is only left alone."""
        server, self._server = self._server, None
        if server is not None:
            await server.close()
        running, self._embedded = self._embedded, None
        if running is not None:
            await asyncio.to_thread(running.stop)

    async def models(self) -> tuple[ServedModel, ...]:
        return (ServedModel(self._name, self._context),)

    async def healthy(self) -> bool:
        try:
            return (await self._started().get("/health")).get("status") == "ok"
        except RequestError:
            return False

    async def count_tokens(self, request: ChatRequest) -> int:
        return len(await self._render(request))

    async def generate(self, request: ChatRequest, sampling: Mapping[str, Any]) -> AsyncIterator[EngineEvent]:
        """See `Engine.generate`. A prompt that fills the context is refused before anything is sampled."""
        async with aclosing(self._generate(await self._render(request), request, sampling)) as events:
            async for event in events:
                yield event

    async def render(self, request: ChatRequest) -> IntArray:
        """See `TokenPrompted`."""
        return token_ids(await self._render(request))

    async def generate_from(
        self, prompt_token_ids: IntArray, request: ChatRequest, sampling: Mapping[str, Any]
    ) -> AsyncIterator[EngineEvent]:
        """See `TokenPrompted`."""
        async with aclosing(self._generate(prompt_token_ids.tolist(), request, sampling)) as events:
            async for event in events:
                yield event

    async def _generate(
        self, ids: list[int], request: ChatRequest, sampling: Mapping[str, Any]
    ) -> AsyncGenerator[EngineEvent, None]:
        room = self._context - len(ids)
        if room < 1:
            raise _too_long(self._context, len(ids))
        plan, form = self._plan(request, sampling, room)
        applied = plan.applied | ({"response_format": request.response_format} if form else {})
        body = _completion(ids, plan, room) | form | {"cache_prompt": self._cache_prompt}
        async with self._started().stream("/completion", body) as chunks:
            yield Started(token_ids(ids), applied, "grammar_masked" if form else "raw")
            reader = self._reader(request, plan)
            async with aclosing(_events(chunks, reader)) as events:
                async for event in events:
                    yield event

    def _plan(self, request: ChatRequest, asked: Mapping[str, Any], room: int) -> tuple[sampling.Sampling, Json]:
        form = sampling.grammar(request)
        return sampling.plan(asked, room=room, seed=self._random.getrandbits(31)), form

    def _reader(self, request: ChatRequest, plan: sampling.Sampling) -> CompletionReader:
        wants_tools = bool(request.tools) and request.tool_choice != "none"
        parser = ToolCallParser() if wants_tools else None
        return CompletionReader(self._vocabulary, plan.max_tokens, StopText(plan.stops), parser)

    async def _render(self, request: ChatRequest) -> list[int]:
        """The prompt ids. A raw prompt is no chat: its text is tokenized as llama.cpp does, its ids are left alone."""
        if isinstance(request.prompt, str):
            return await self._tokenize(request.prompt, add_special=True)
        if request.prompt is not None:
            return list(request.prompt)
        messages, tools = prompt.messages(request, native_tools=self._native_tools)
        said: Json = {"messages": messages} | ({"tools": tools} if tools else {})
        if self._guard.forged(said):
            mark = prompt.new_mark(said, _marks())
            rendered = await self._apply_template(self._guard.mark(said, mark))
            ids = await self._tokenize(self._guard.split(rendered, mark), parse_special=False)
        else:
            ids = await self._tokenize(await self._apply_template(said))
        return ids if ids[: len(self._bos)] == self._bos else self._bos + ids

    async def _apply_template(self, said: Json) -> str:
        rendered = (await self._started().post("/apply-template", said)).get("prompt")
        if not isinstance(rendered, str):
            raise EngineBroken("llama.cpp rendered no prompt")
        return rendered

    async def _tokenize(
        self, content: str | list[int | str], *, add_special: bool = False, parse_special: bool = True
    ) -> list[int]:
        body = {"content": content or "", "add_special": add_special, "parse_special": parse_special}
        ids = (await self._started().post("/tokenize", body)).get("tokens")
        if not isinstance(ids, list) or not all(type(token_id) is int for token_id in ids):
            raise EngineBroken("llama.cpp tokenized a text to something that is no list of ids")
        return ids

    def _started(self) -> LlamaServer:
        if self._server is None:
            raise EngineUnavailable("The llama.cpp engine is not running.")
        return self._server


async def _events(chunks: AsyncIterator[Json], reader: CompletionReader) -> AsyncGenerator[EngineEvent, None]:
    async for chunk in chunks:
        for event in reader.feed(chunk):
            yield event
        if reader.done:
            return
    raise EngineBroken("llama.cpp ended the stream without a final chunk")


def _completion(ids: list[int], plan: sampling.Sampling, room: int) -> Json:
    fixed = {"n_probs": 1, "return_tokens": True, "stream": True, "post_sampling_probs": False}
    return {"prompt": ids, "n_predict": min(plan.max_tokens + LOOK_AHEAD, room), **plan.fields, **fixed}


def _too_long(context: int, length: int) -> EngineRefused:
    message = (
        f"This model's maximum context length is {context} tokens. However, your messages resulted in {length} tokens. "
        "Please reduce the length of the messages."
    )
    return EngineRefused(400, "context_length_exceeded", message, param="messages")


async def _vocabulary(server: LlamaServer) -> Vocabulary:
    """Every id and its bytes: the alternatives of one sampled token, all of them.

    A bias makes that token one that adds no bytes or whole characters, since no other is reported.
    """
    probe = (await server.post("/tokenize", {"content": "a"}))["tokens"][0]
    body = {"prompt": [probe], "n_predict": 1, "n_probs": WHOLE_VOCABULARY, "logit_bias": [[probe, 1000]]}
    answer = await server.post("/completion", body | {"temperature": 0, "cache_prompt": False})
    alternatives = answer["completion_probabilities"][0]["top_logprobs"]
    pieces = {int(entry["id"]): bytes(entry["bytes"]) for entry in alternatives}
    control: dict[str, int] = {}
    for token_id in sorted(token_id for token_id, piece in pieces.items() if not piece):
        text = (await server.post("/detokenize", {"tokens": [token_id]}))["content"]
        if text:
            control.setdefault(text, token_id)
    return Vocabulary(pieces, control)


def _template(given: str | None) -> str | None:
    if given is None or "\n" in given or "{" in given:
        return given
    try:
        return Path(given).read_text()
    except OSError as error:
        raise ConfigError(f"Cannot read the chat template {given!r}: {error}") from error


def _marks() -> Iterator[str]:
    return (f"rolltape{number}mark" for number in itertools.count())
