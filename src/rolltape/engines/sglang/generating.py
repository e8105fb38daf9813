"""Bytes of SGLang's native answer (`/generate`) to events. Pure.

A chunk may repeat the whole generation or hold only what is new; the tally takes each position once. Prompt ids come
with every chunk, the first one starts the call. A stream without a finish reason is broken, never finished by us.
"""

from dataclasses import dataclass, field
from typing import Any

from rolltape.chat import Delta, EngineEvent, Finished, Json, Started
from rolltape.engines.openai_answer import AnswerReader, Messages, count, failure, finish_reason, prompt_ids
from rolltape.engines.sglang.asking import Asked
from rolltape.engines.sglang.refusals import refusal
from rolltape.engines.sglang.tally import Entry, TokenTally, log_probs, texts
from rolltape.errors import EngineBroken
from rolltape.record import Fault
from rolltape.tokens import IntArray

NO_VERSION = "default"
"""What SGLang calls weights that nobody has named."""


@dataclass(slots=True)
class GenerateReader(AnswerReader):
    """One call's answer. Feed it reads of any size, then `close` it; `done` once `Finished` came out.

    `context` in tokens, None = unknown. Raises `EngineBroken`, or what `refusal` gives while nothing has started.
    """

    name = "SGLang"

    asked: Asked
    context: int | None = None
    streamed: bool = True
    done: bool = False
    _messages: Messages = field(init=False)
    _tally: TokenTally = field(default_factory=TokenTally)
    _started: Started | None = None
    _text: str = ""
    _meta: Json | None = None
    """Of the chunk that said why the generation ended."""

    def __post_init__(self) -> None:
        self._messages = Messages(self.name, self.streamed)

    def chunk(self, chunk: Json) -> list[EngineEvent]:
        """The events of one chunk."""
        error = failure(chunk, "SGLang", refusal if self._started is None else None, self.asked.path)
        if error is not None:
            raise error
        meta = chunk["meta_info"]
        ended = meta.get("finish_reason")
        if ended is not None and ended["type"] == "abort" and self._started is None:
            raise aborted(ended, self.asked.path)
        events: list[EngineEvent] = []
        if self._started is None:
            self._started = start(self.asked, self.context, prompt_ids(chunk.get("prompt_token_ids")), version(meta))
            events.append(self._started)
        events += self._delta(chunk, meta, ended)
        if ended is not None:
            self._meta = meta
        return events

    def _delta(self, chunk: Json, meta: Json, ended: Json | None) -> list[EngineEvent]:
        new = self._tally.take(meta, chunk.get("output_ids"), (ended or {}).get("matched"))
        text = self._new_text(chunk.get("text") or "")
        return [tokens(new, self._tally, text=text)] if new or text else []

    def _new_text(self, text: str) -> str:
        if self._tally.increments or (self._tally.increments is None and not text.startswith(self._text)):
            self._text += text
            return text
        new = text[len(self._text) :]
        self._text += new
        return new

    def end(self) -> list[EngineEvent]:
        if self.done:
            return []
        if self._meta is None or self._started is None:
            raise EngineBroken("SGLang's stream ended without saying why the generation did")
        finished = finish(self._meta, self._started, self._tally)
        self.done = True
        return [finished]


def start(asked: Asked, context: int | None, told: IntArray | None, policy_version: str | None) -> Started:
    """`told`: the prompt as the server tells it, None = it does not; then the ids that it was sent, if it was."""
    prompt = asked.prompt if told is None else told
    applied = asked.applied if prompt is None else asked.within(context, prompt).applied
    return Started(prompt, applied, asked.log_prob_kind, policy_version)


def tokens(new: list[Entry], tally: TokenTally, **shown: Any) -> Delta:
    """A delta of the new positions."""
    values = log_probs(new) if tally.has_log_probs else ()
    return Delta(tuple(entry[1] for entry in new), values, token_texts=texts(new), **shown)


def finish(meta: Json, started: Started, tally: TokenTally) -> Finished:
    """The end that `meta_info` tells. Raises `EngineBroken` for an abort."""
    ended = meta["finish_reason"]
    reason = ended["type"]
    if reason == "abort":
        raise EngineBroken(f"SGLang aborted the generation: {ended.get('message')}")
    matched = ended.get("matched")
    return Finished(
        finish_reason(reason, "SGLang"),
        count(meta.get("completion_tokens")),
        count(meta.get("cached_tokens")),
        policy_version=version(meta),
        policy_spans=spans(meta),
        faults=(*tally.faults(), *prompt_faults(started.prompt_token_ids, count(meta.get("prompt_tokens")))),
        stop_sequence=matched if isinstance(matched, str) else None,
    )


def aborted(ended: Json, path: str) -> Exception:
    """What an abort before the first token is: an answer with its status, where it has one."""
    error = {"error": {"message": ended.get("message"), "code": ended.get("status_code")}}
    return failure(error, "SGLang", refusal, path) or EngineBroken("SGLang aborted the generation")


def prompt_faults(prompt: IntArray | None, counted: int | None) -> tuple[str, ...]:
    """The prompt against the engine's own count."""
    if prompt is None or counted is None or counted == len(prompt):
        return ()
    return (f"{Fault.TOKEN_COUNT_MISMATCH}: prompt of {len(prompt)}, the engine counts {counted}",)


def version(meta: Json) -> str | None:
    """The newest weights that sampled; None where nobody has named them."""
    named = str(meta.get("weight_version") or NO_VERSION)
    return None if named == NO_VERSION else named


def spans(meta: Json) -> tuple[tuple[int, int, str], ...]:
    """Which weights sampled which positions; () where nobody has named any."""
    told = tuple((span["start"], span["end"], str(span["version"])) for span in meta.get("weight_versions") or ())
    return told if any(span[2] != NO_VERSION for span in told) else ()
