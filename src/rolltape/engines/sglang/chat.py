"""Bytes of SGLang's chat answers to events. Pure.

    whole     one object: message, ids, log-probs with their own ids, weight versions
    streamed  deltas of text first; prompt ids, sampled ids (`sglext`) and the count of them at the end

In a stream log-probs come without ids, so they are held back until the ids are there; text passes at once. The prompt
is known before, from `/tokenize`, and held against what the server says it was.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rolltape.chat import Delta, EngineEvent, Finished, Json, Started, ToolCallDelta
from rolltape.engines.openai_answer import (
    AnswerReader,
    Messages,
    chat_log_probs,
    count,
    failure,
    finish_reason,
    prompt_ids,
    tool_call,
)
from rolltape.engines.sglang import generating
from rolltape.engines.sglang.asking import Asked
from rolltape.engines.sglang.refusals import refusal
from rolltape.engines.sglang.tally import LEAST, PlacedLogProbs, TokenTally
from rolltape.errors import EngineBroken
from rolltape.record import Fault


@dataclass(slots=True)
class ChatReader(AnswerReader):
    """One call's answer, streamed or whole, told by its content type. As `GenerateReader` otherwise."""

    name = "SGLang"

    asked: Asked
    context: int | None = None
    streamed: bool = True
    done: bool = False
    _messages: Messages = field(init=False)
    _started: Started | None = None
    _placed: PlacedLogProbs = field(default_factory=PlacedLogProbs)
    _reason: Any = None
    _matched: Any = None
    _calls: bool = False
    _sglext: Json = field(default_factory=dict)
    _usage: Json = field(default_factory=dict)
    _whole: tuple[Json, TokenTally] | None = None

    def __post_init__(self) -> None:
        self._messages = Messages(self.name, self.streamed)

    def chunk(self, chunk: Json) -> list[EngineEvent]:
        error = failure(chunk, self.name, refusal if self._started is None else None, self.asked.path)
        if error is not None:
            raise error
        return self.streamed_chunk(chunk) if self.streamed else self.whole(chunk)

    def end(self) -> list[EngineEvent]:
        return self._finish() if self._whole is None else self._finish_whole(*self._whole)

    def streamed_chunk(self, chunk: Json) -> list[EngineEvent]:
        """The events of one chunk of a stream."""
        events: list[EngineEvent] = []
        if self._started is None:
            self._started = generating.start(self.asked, self.context, None, None)
            events.append(self._started)
        usage = chunk.get("usage") or {}
        for choice in chunk.get("choices") or ():
            only(choice)
            self._note(choice, count(usage.get("completion_tokens")))
            delta = Delta(**shown(choice.get("delta") or {}))
            self._calls |= bool(delta.tool_calls)
            if delta != Delta():
                events.append(delta)
        self._sglext |= {name: ids for name, ids in (chunk.get("sglext") or {}).items() if ids is not None}
        self._usage = usage or self._usage
        return events

    def _note(self, choice: Json, so_far: int | None) -> None:
        content = (choice.get("logprobs") or {}).get("content")
        if content:
            self._placed.take(*chat_log_probs(content, LEAST), so_far)
        if choice.get("finish_reason") is not None:
            self._reason, self._matched = choice["finish_reason"], choice.get("matched_stop")

    def _finish(self) -> list[EngineEvent]:
        if self.done:
            return []
        if self._reason is None or self._started is None:
            raise EngineBroken("SGLang's stream ended without saying why the generation did")
        reason = finish_reason(self._reason, "SGLang")
        told = (self._sglext.get("output_ids") or [[]])[0]
        ids = tuple(told) if isinstance(told, list) else ()
        texts = tuple(self._placed.texts)
        self.done = True
        finished = Finished(
            "tool_calls" if self._calls and reason == "stop" else reason,
            count(self._usage.get("completion_tokens")),
            cached(self._usage),
            faults=self._faults(),
            stop_sequence=self._matched if isinstance(self._matched, str) else None,
        )
        delta = Delta(ids, self._placed.for_ids(ids), token_texts=texts if len(texts) == len(ids) else ())
        return [finished] if delta == Delta() else [delta, finished]

    def _faults(self) -> tuple[str, ...]:
        assert self._started is not None
        faults = list(generating.prompt_faults(self._started.prompt_token_ids, count(self._usage.get("prompt_tokens"))))
        confirmed = prompt_ids(self._sglext.get("input_ids"))
        if confirmed is None:
            faults.append(f"{Fault.PROMPT_IDS_MISSING}: the server does not confirm its rendering")
        elif not np.array_equal(confirmed, () if self.asked.prompt is None else self.asked.prompt):
            faults.append(f"{Fault.ENGINE}: the prompt was rendered otherwise than /tokenize did")
        if self._placed.apart:
            faults.append(f"{Fault.LOG_PROBS_LENGTH}: they came apart from their ids")
        return tuple(faults)

    def whole(self, answer: Json) -> list[EngineEvent]:
        """What an answer that is one object tells, without its end: a generation that was aborted is evidence too."""
        choices = answer["choices"]
        choice = choices[0]
        if len(choices) != 1:
            raise EngineBroken("SGLang answered with more than the one choice that was asked for")
        meta = meta_info(choice, answer)
        tally = TokenTally()
        new = tally.take(meta, choice.get("response_token_ids"), meta["finish_reason"].get("matched"))
        told = prompt_ids(choice.get("prompt_token_ids"))
        started = generating.start(self.asked, self.context, told, generating.version(meta))
        delta = generating.tokens(new, tally, **shown(choice.get("message") or {}))
        if not tally.has_log_probs:
            values, _ = chat_log_probs((choice.get("logprobs") or {}).get("content") or (), LEAST)
            delta = Delta(delta.token_ids, values, delta.text, delta.reasoning, delta.tool_calls)
        self._started, self._whole = started, (meta, tally)
        return [started, delta]

    def _finish_whole(self, meta: Json, tally: TokenTally) -> list[EngineEvent]:
        assert self._started is not None
        self.done = True
        return [generating.finish(meta, self._started, tally)]


def meta_info(choice: Json, answer: Json) -> Json:
    """The choice's `meta_info`, and what of it the answer says elsewhere: a tool call ends by what the parser found."""
    usage, metadata = answer.get("usage") or {}, answer.get("metadata") or {}
    elsewhere = {
        "completion_tokens": usage.get("completion_tokens"),
        "prompt_tokens": usage.get("prompt_tokens"),
        "cached_tokens": cached(usage),
        **{name: metadata.get(name) for name in ("weight_version", "weight_versions")},
    }
    ended = {"type": choice.get("finish_reason"), "matched": choice.get("matched_stop")}
    return elsewhere | (choice.get("meta_info") or {}) | {"finish_reason": ended}


def cached(usage: Json) -> int | None:
    """Tokens of the prompt that were not computed anew."""
    return count((usage.get("prompt_tokens_details") or {}).get("cached_tokens"))


def shown(message: Json) -> dict[str, Any]:
    """What a message or a delta makes visible."""
    calls: tuple[ToolCallDelta, ...] = tuple(
        tool_call(i, call) for i, call in enumerate(message.get("tool_calls") or ())
    )
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    return {"text": message.get("content") or "", "reasoning": reasoning, "tool_calls": calls}


def only(choice: Json) -> None:
    """Raises `EngineBroken` for another choice than the one that was asked for."""
    if choice.get("index", 0) != 0:
        raise EngineBroken("SGLang answered with more than the one choice that was asked for")
