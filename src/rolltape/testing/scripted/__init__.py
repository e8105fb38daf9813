"""The scripted engine: says what a script tells it to, token by token, with exact ids.

For tests, examples and `rolltape serve --engine scripted`: a whole engine without a model. Its tokenizer is exact, its
template append-only, its log-probs are a known function of id and position, and faults come on demand.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from msgspec.structs import replace

from rolltape.chat import ChatRequest, EngineEvent
from rolltape.engines import Gives, ServedModel
from rolltape.errors import ConfigError, RequestError
from rolltape.testing.scripted.plan import Action, Wait, plan
from rolltape.testing.scripted.script import Fault, Rule, Script, Step, answer_from, default_reply
from rolltape.testing.scripted.template import render
from rolltape.testing.scripted.tokenizer import decode, encode, log_prob
from rolltape.tokens import IntArray

__all__ = [
    "Fault",
    "Rule",
    "Script",
    "ScriptedEngine",
    "Step",
    "decode",
    "default_reply",
    "encode",
    "log_prob",
    "render",
]


class ScriptedEngine:
    """An `Engine` that needs no model.

    `script`: see `script`; `url` names a script file instead. `context_length` in tokens (bytes of text, nearly),
    `delay` in seconds before each delta, `chunk` in tokens a delta. `policy_version` may be changed between calls.
    `images`: it takes them, as placeholders.

    Counters, for tests: `started` calls, those `alive` now, `finished` by themselves, `failed` by a fault, `aborted`
    by their caller. `seen` holds the last 1,000 requests with the sampling they were given.
    """

    kind = "scripted"

    def __init__(
        self,
        model: str | None = None,
        url: str | None = None,
        *,
        script: Script | None = None,
        context_length: int = 131072,
        delay: float = 0.0,
        chunk: int = 4,
        policy_version: str | None = None,
        images: bool = False,
    ) -> None:
        if context_length < 1 or chunk < 1 or delay < 0:
            raise ConfigError("the scripted engine needs context_length and chunk of at least 1 and no negative delay")
        self.model = model or "scripted"
        self.gives = Gives(prompt_ids_first=True, log_prob_kind="raw", tools=True, images=images)
        self.policy_version = policy_version
        self.started = self.alive = self.finished = self.failed = self.aborted = 0
        self.seen: deque[tuple[ChatRequest, Mapping[str, Any]]] = deque(maxlen=1000)
        self._answer = answer_from(script, url)
        self._context_length, self._delay, self._chunk = context_length, delay, chunk

    async def start(self) -> None:
        """Nothing to load."""

    async def close(self) -> None:
        """Nothing to release."""

    async def models(self) -> tuple[ServedModel, ...]:
        """The one model."""
        return (ServedModel(self.model, self._context_length),)

    async def healthy(self) -> bool:
        """Always."""
        return True

    async def count_tokens(self, request: ChatRequest) -> int:
        """Length of the prompt that `request` renders to."""
        return len(self._render(request))

    async def generate(self, request: ChatRequest, sampling: Mapping[str, Any]) -> AsyncIterator[EngineEvent]:
        """The script's next reply, or its fault."""
        async with aclosing(self._generate(None, request, sampling)) as events:
            async for event in events:
                yield event

    async def render(self, request: ChatRequest) -> IntArray:
        """The prompt ids of `request`."""
        return self._render(request)

    async def generate_from(
        self, prompt_token_ids: IntArray, request: ChatRequest, sampling: Mapping[str, Any]
    ) -> AsyncIterator[EngineEvent]:
        """The script's next reply to exactly these ids."""
        async with aclosing(self._generate(prompt_token_ids, request, sampling)) as events:
            async for event in events:
                yield event

    async def _generate(
        self, prompt: IntArray | None, request: ChatRequest, sampling: Mapping[str, Any]
    ) -> AsyncGenerator[EngineEvent, None]:
        self.seen.append((request, sampling))
        step = self._answer(request, self.started)
        if request.prompt is not None:
            step = replace(step, reasoning="", tool_calls=())  # nothing parses a raw completion
        delay = self._delay if step.delay is None else step.delay
        self.started += 1
        self.alive += 1
        try:
            for action in self._plan(prompt, request, sampling, step):
                if isinstance(action, RequestError):
                    raise action
                if isinstance(action, Wait):
                    await _silence(action.seconds)
                    continue
                await asyncio.sleep(delay)
                yield action
            self.finished += 1
        except RequestError:
            self.failed += 1
            raise
        except (GeneratorExit, asyncio.CancelledError):
            self.aborted += 1
            raise
        finally:
            self.alive -= 1

    def _render(self, request: ChatRequest) -> IntArray:
        return render(request, images=self.gives.images)

    def _plan(
        self, prompt: IntArray | None, request: ChatRequest, sampling: Mapping[str, Any], step: Step
    ) -> list[Action]:
        return plan(
            self._render(request) if prompt is None else prompt,
            sampling,
            step,
            context_length=self._context_length,
            chunk=self._chunk,
            version=self.policy_version,
        )


async def _silence(seconds: float | None) -> None:
    if seconds is None:
        await asyncio.Event().wait()
    else:
        await asyncio.sleep(seconds)
