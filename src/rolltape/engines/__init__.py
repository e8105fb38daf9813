"""Engines: what samples. A folder each.

An engine takes a canonical request and yields token events (see `chat`). It says what it gives (`Gives`), applies the
sampling that the gateway decided, clamps `max_tokens` to the context that is left and reports both in `Started`.
It never pads, repairs or re-tokenises: what it does not know it leaves out, and capture marks the entry.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from rolltape.chat import ChatRequest, EngineEvent
from rolltape.tokens import IntArray


@dataclass(frozen=True, slots=True)
class Gives:
    """What an engine promises. `rolltape doctor engine` proves it."""

    prompt_ids_first: bool
    """The prompt ids are known before the first sampled token."""
    log_prob_kind: str
    tools: bool
    images: bool = False
    policy_version: bool = False
    """It reports which policy version sampled each token."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that the engine answers for. `context_length` in tokens, prompt and generation together."""

    name: str
    context_length: int | None = None


class Engine(Protocol):
    """One inference engine. All methods may be called concurrently after `start`."""

    kind: str
    gives: Gives

    async def start(self) -> None:
        """Load or connect. Raises `ConfigError` when that cannot work."""
        ...

    async def close(self) -> None:
        """Release everything that `start` took. Idempotent."""
        ...

    async def models(self) -> tuple[ServedModel, ...]:
        """The models served, the default one first."""
        ...

    def generate(self, request: ChatRequest, sampling: Mapping[str, Any]) -> AsyncIterator[EngineEvent]:
        """Sample a reply. `sampling` is what to apply, pins included; `request.sampling` is only what was asked.

        Closing the iterator aborts the generation in the engine. Raises `EngineRefused`, `EngineUnavailable` or
        `EngineBroken`; after the first event only `EngineBroken`.
        """
        ...

    async def count_tokens(self, request: ChatRequest) -> int:
        """Length of the prompt that `request` renders to."""
        ...

    async def healthy(self) -> bool:
        """True when a call would be taken now."""
        ...


@runtime_checkable
class TokenPrompted(Protocol):
    """An engine that can be given the prompt as token ids and still parses the reply as a turn of chat."""

    async def render(self, request: ChatRequest) -> IntArray:
        """(P,) the ids that `Engine.generate` would give the model, generation prompt included."""
        ...

    def generate_from(
        self, prompt_token_ids: IntArray, request: ChatRequest, sampling: Mapping[str, Any]
    ) -> AsyncIterator[EngineEvent]:
        """As `Engine.generate`, of exactly these ids; `request` says how to read the reply.

        `Started.prompt_token_ids` are those that the engine really took.
        """
        ...
