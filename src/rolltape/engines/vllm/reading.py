"""Bytes of vLLM's answer to events. Pure.

Every chunk is read for its ids, whether or not it shows anything: while a parser holds text back, vLLM sends chunks
with an empty delta that carry the ids all the same. What is missing or of unequal length is passed on as it is; capture
marks the entry. A stream that ends without a finish reason is broken, never finished by us.
"""

from dataclasses import dataclass, field
from typing import Any

from rolltape.chat import Delta, EngineEvent, Finished, FinishReason, Json, Started
from rolltape.engines.openai_answer import (
    AnswerReader,
    Messages,
    chat_log_probs,
    count,
    failure,
    finish_reason,
    log_prob,
    prompt_ids,
    tool_call,
)
from rolltape.engines.vllm.asking import Asked
from rolltape.engines.vllm.refusals import refusal
from rolltape.errors import EngineBroken, EngineRefused
from rolltape.record import Fault
from rolltape.tokens import IntArray

NO_LOG_PROB = -9999.0
"""What vLLM writes where there is no log-prob, or none that JSON can hold."""


@dataclass(slots=True)
class VllmReader(AnswerReader):
    """One call's answer. Feed it reads of any size, then `close` it; `done` once `Finished` came out.

    `context` in tokens, None = unknown. Raises `EngineBroken`, or `EngineRefused` while nothing has started.
    """

    name = "vLLM"

    asked: Asked
    context: int | None = None
    streamed: bool = True
    """False: the answer is one JSON object, from a server that does not stream."""
    done: bool = False
    _messages: Messages = field(init=False)
    _started: Started | None = None
    _reason: FinishReason | None = None
    _calls: bool = False
    _ids: int = 0
    _log_probs: int = 0
    _shifted: bool = False
    """Ids and log-probs came in unequal numbers somewhere."""

    def __post_init__(self) -> None:
        self._messages = Messages(self.name, self.streamed)

    def chunk(self, chunk: Json) -> list[EngineEvent]:
        """The events of one chunk."""
        error = failure(chunk, "vLLM", refusal if self._started is None else None, self.asked.path)
        if error is not None:
            raise error
        events: list[EngineEvent] = []
        for choice in chunk.get("choices") or ():
            events += self._choice(chunk, choice)
        usage = chunk.get("usage")
        if self._reason is not None and isinstance(usage, dict):
            events += self._finish(usage)
        return events

    def _choice(self, chunk: Json, choice: Json) -> list[EngineEvent]:
        if not isinstance(choice, dict) or choice.get("index", 0) != 0:
            raise EngineBroken("vLLM answered with more than the one choice that was asked for")
        events: list[EngineEvent] = []
        if self._started is None:
            self._started = self._start(_prompt_ids(chunk, choice))
            events.append(self._started)
        delta = self._delta(choice)
        if delta != Delta():
            events.append(delta)
        reason = choice.get("finish_reason")
        if reason is not None:
            self._reason = _finish_reason(reason)
        return events

    def _start(self, prompt: IntArray | None) -> Started:
        """`max_tokens` as vLLM applies it: at most what the prompt leaves of the context."""
        applied = dict(self.asked.applied)
        if prompt is not None and self.context is not None:
            room = self.context - len(prompt)
            if room < 1:
                raise EngineRefused.context_overflow(len(prompt), self.context)
            if isinstance(applied.get("max_tokens"), int):
                applied["max_tokens"] = min(applied["max_tokens"], room)
        return Started(prompt, applied, self.asked.log_prob_kind)

    def _delta(self, choice: Json) -> Delta:
        shown = choice.get("delta") or choice.get("message") or {}
        ids, (log_probs, texts) = _ids(choice, shown), _log_probs(choice.get("logprobs"))
        calls = tuple(tool_call(i, call) for i, call in enumerate(shown.get("tool_calls") or ()))
        self._ids += len(ids)
        self._log_probs += len(log_probs)
        self._shifted |= len(ids) != len(log_probs)
        self._calls |= bool(calls)
        return Delta(
            ids,
            log_probs,
            text=shown.get("content") or choice.get("text") or "",
            reasoning=shown.get("reasoning") or shown.get("reasoning_content") or "",
            tool_calls=calls,
            token_texts=texts if len(texts) == len(ids) else (),
        )

    def end(self) -> list[EngineEvent]:
        return self._finish(None)

    def _finish(self, usage: Json | None) -> list[EngineEvent]:
        if self.done:
            return []
        if self._reason is None or self._started is None:
            raise EngineBroken("vLLM's stream ended without saying why the generation did")
        self.done = True
        reason = "tool_calls" if self._calls and self._reason == "stop" else self._reason
        counts = usage or {}
        details = counts.get("prompt_tokens_details") or {}
        completion, cached = count(counts.get("completion_tokens")), count(details.get("cached_tokens"))
        return [Finished(reason, completion, cached, faults=self._faults(count(counts.get("prompt_tokens"))))]

    def _faults(self, prompt_tokens: int | None) -> tuple[str, ...]:
        faults = []
        prompt = self._started.prompt_token_ids if self._started else None
        if prompt is not None and prompt_tokens is not None and prompt_tokens != len(prompt):
            faults.append(f"{Fault.TOKEN_COUNT_MISMATCH}: prompt of {len(prompt)}, the engine counts {prompt_tokens}")
        if self._shifted and self._ids == self._log_probs:
            faults.append(f"{Fault.LOG_PROBS_LENGTH}: they came apart from their ids")
        return tuple(faults)


def _prompt_ids(chunk: Json, choice: Json) -> IntArray | None:
    """Top-level in chat, in the choice of a completion."""
    return prompt_ids(chunk.get("prompt_token_ids") or choice.get("prompt_token_ids"))


def _ids(choice: Json, shown: Json) -> tuple[int, ...]:
    """Also from where a proxy that knows OpenAI's fields only puts the others."""
    for place in (choice, choice.get("provider_specific_fields"), shown.get("provider_specific_fields")):
        if isinstance(place, dict) and isinstance(place.get("token_ids"), list):
            return tuple(place["token_ids"])
    return ()


def _log_probs(told: Any) -> tuple[tuple[float | None, ...], tuple[str, ...]]:
    """Log-probs and the tokens' own texts: of chat (`content`) or of completions (`token_logprobs`)."""
    if not isinstance(told, dict):
        return (), ()
    if isinstance(told.get("content"), list):
        return chat_log_probs(told["content"], NO_LOG_PROB)
    values = tuple(log_prob(value, NO_LOG_PROB) for value in told.get("token_logprobs") or ())
    return values, tuple(map(str, told.get("tokens") or ()))


def _finish_reason(reason: Any) -> FinishReason:
    return "length" if reason == "repetition" else finish_reason(reason, "vLLM")
