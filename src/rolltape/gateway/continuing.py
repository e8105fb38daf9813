"""The mode `continue`: which ids a call's prompt is made of.

    request -> the recorded call that it goes on from -> its ids and the news -> engine

Whatever cannot be proved makes the call an observed one, whose entry says why. In memory: a gateway worker goes on from
the calls that it served itself.
"""

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, cast

import numpy as np

from rolltape.capture import ModelCall
from rolltape.chat import ChatRequest, EngineEvent, Started
from rolltape.config import ServeConfig
from rolltape.engines import Engine, TokenPrompted
from rolltape.errors import EngineRefused
from rolltape.record import TokenEntry
from rolltape.render import CannotContinue, Conversations, Extender, TemplateExtender, split
from rolltape.render.library import LibraryExtender
from rolltape.render.turns import recorded
from rolltape.tokens import IntArray

log = logging.getLogger("rolltape.gateway")


class Observing:
    """The engine renders every prompt."""

    def remember(self, request: ChatRequest, entry: TokenEntry, call: ModelCall) -> None:
        """Nothing to remember."""

    def events(
        self, engine: Engine, request: ChatRequest, sampling: Mapping[str, Any], call: ModelCall
    ) -> AsyncIterator[EngineEvent]:
        """What the engine makes of the request."""
        return engine.generate(request, sampling)


class Continuing:
    """Recorded sequences are gone on from where that is exact."""

    def __init__(self, library: Extender | None) -> None:
        self._library = library
        self._conversations = Conversations()

    def remember(self, request: ChatRequest, entry: TokenEntry, call: ModelCall) -> None:
        """Later calls of the rollout may go on from this one."""
        stop_sequence = call.finished.stop_sequence if call.finished else None
        known = recorded(request, entry, call.message(), stop_sequence)
        if known is not None:
            self._conversations.add(entry.rollout_id, known)

    async def events(
        self, engine: Engine, request: ChatRequest, sampling: Mapping[str, Any], call: ModelCall
    ) -> AsyncIterator[EngineEvent]:
        """The engine's events, from recorded ids where the call goes on from some."""
        ids: IntArray | None = None
        told = engine.generate(request, sampling)
        try:
            if isinstance(engine, TokenPrompted):
                ids, call.continuation = await self._prompt(engine, request, call.identity.rollout_id)
                told = engine.generate_from(ids, request, sampling)
            else:
                call.continuation = f"observed: the engine {engine.kind} takes no token ids"
        except CannotContinue as reason:
            call.continuation = f"observed: {reason}"
        async with aclosing(cast("Any", told)) as events:
            async for event in events:
                if ids is not None and isinstance(event, Started) and not _taken(event, ids):
                    call.continuation = "observed: the engine rendered the messages although it was given ids"
                yield event

    async def _prompt(self, engine: TokenPrompted, request: ChatRequest, rollout_id: str) -> tuple[IntArray, str]:
        turn = split(request)
        known = self._conversations.find(rollout_id, turn)
        refused: list[str] = []
        for extender in self._extenders(engine):
            try:
                ids = await extender.extend(known, request, turn)
            except CannotContinue as reason:
                refused.append(f"{extender.name}: {reason}")
            except EngineRefused:
                raise CannotContinue("the engine refuses to render the messages") from None
            else:
                return ids, f"continued: {known.model_call_id} by {extender.name}"
        raise CannotContinue("; ".join(refused))

    def _extenders(self, engine: TokenPrompted) -> Sequence[Extender]:
        own = TemplateExtender(engine.render)
        return (own,) if self._library is None else (self._library, own)


def _taken(started: Started, ids: IntArray) -> bool:
    return started.prompt_token_ids is not None and np.array_equal(started.prompt_token_ids, ids)


def continuing(config: ServeConfig) -> Observing | Continuing:
    """What the configuration asks for. Raises `ConfigError` where the renderers library cannot do what it is to do."""
    if config.mode == "observe":
        return Observing()
    chosen = config.continuing
    library = LibraryExtender(chosen.tokenizer, chosen.renderer) if chosen.tokenizer is not None else None
    return Continuing(library)
