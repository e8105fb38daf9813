"""Pieces of OpenAI-shaped answers, read as engines send them. Pure.

What is no id, log-prob or count is None, so that capture marks it; what is no answer at all raises `EngineBroken`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec

from rolltape.chat import Delta, EngineEvent, FinishReason, Json, ToolCallDelta
from rolltape.engines.http import Refusal, lenient_json
from rolltape.errors import EngineBroken, EntryError, RequestError
from rolltape.sse import SseParser
from rolltape.tokens import IntArray, token_ids

FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}


@dataclass(slots=True)
class Messages:
    """Reads of any size to the JSON texts in them: the data of a stream's events, or one whole body."""

    name: str
    streamed: bool
    _sse: SseParser = field(default_factory=SseParser)
    _whole: bytearray = field(default_factory=bytearray)

    def feed(self, read: bytes) -> Iterator[bytes]:
        """The messages that `read` completes, each before anything behind it is looked at."""
        if not self.streamed:
            self._whole += read
            return
        for event in self._sse.feed(read):
            yield event.data

    def end(self, done: bool) -> bytes | None:
        """The whole body, None of a stream. Raises `EngineBroken` where the end cut off a chunk that was still due."""
        if not self.streamed:
            return bytes(self._whole)
        if self._sse.finish() is not None and not done:
            raise EngineBroken(f"{self.name}'s stream was cut off inside a chunk")
        return None


class AnswerReader(ABC):
    """One call's answer to events. Feed it reads of any size, then `close` it; `done` once `Finished` came out.

    Raises `EngineBroken` for what is no answer, and what the answer itself says that it is.
    """

    __slots__ = ()
    name: ClassVar[str]
    """What errors call the server."""
    done: bool
    _messages: Messages

    def feed(self, read: bytes) -> Iterator[EngineEvent]:
        """The events that `read` completes."""
        for message in self._messages.feed(read):
            yield from self._message(message)

    def close(self) -> Iterator[EngineEvent]:
        """The answer has ended cleanly, as far as the connection can tell."""
        whole = self._messages.end(self.done)
        if whole is not None:
            yield from self._message(whole)
        yield from self._read(b"its end", self.end)

    def _message(self, data: bytes) -> list[EngineEvent]:
        if data.strip() == b"[DONE]":
            return self._read(data, self.end)
        return self._read(data, lambda: self.chunk(json_chunk(data, self.name)))

    def _read(self, data: bytes, events: Callable[[], list[EngineEvent]]) -> list[EngineEvent]:
        try:
            return checked(events())
        except (TypeError, AttributeError, ValueError, LookupError, OverflowError) as error:
            raise EngineBroken(f"{self.name} sent a chunk of another shape ({error}): {data[:80]!r}") from error

    @abstractmethod
    def chunk(self, chunk: Json) -> list[EngineEvent]:
        """The events of one chunk, or of an answer that is one object."""

    @abstractmethod
    def end(self) -> list[EngineEvent]:
        """The last events; none where they came before. Raises `EngineBroken` where the generation has not ended."""


def checked(events: list[EngineEvent]) -> list[EngineEvent]:
    """The events, if what they show is text. Raises `TypeError`; ids and log-probs are capture's to judge."""
    for event in events:
        if isinstance(event, Delta):
            shown = [event.text, event.reasoning]
            for call in event.tool_calls:
                shown += [call.id or "", call.name or "", call.arguments]
                if type(call.index) is not int:
                    raise TypeError(f"the index of a tool call is no number: {call.index!r}")
            wrong = next((value for value in shown if not isinstance(value, str)), None)
            if wrong is not None:
                raise TypeError(f"there is no text where text belongs: {wrong!r}")
    return events


def failure(chunk: Json, name: str, refusal: Refusal | None, path: str) -> RequestError | None:
    """The error that a chunk tells, None where it tells none. `refusal` while nothing has been sampled, else None."""
    if not chunk.get("error") and chunk.get("object") != "error":
        return None
    error = chunk.get("error")
    fields = error if isinstance(error, dict) else chunk
    code, said = fields.get("code"), fields.get("message", error)
    if refusal is not None and isinstance(code, int) and 400 <= code < 600:
        return refusal(code, msgspec.json.encode({"error": fields}), path)
    return EngineBroken(f"{name} failed in mid-stream: {said}")


def json_chunk(data: bytes, name: str) -> Json:
    """A chunk of the server `name`. Raises `EngineBroken` where it is no object."""
    try:
        value = lenient_json(data)
    except ValueError as error:
        raise EngineBroken(f"{name} sent a chunk that is no JSON: {data[:80]!r}") from error
    if not isinstance(value, dict):
        raise EngineBroken(f"{name} sent a chunk that is no object: {data[:80]!r}")
    return value


def prompt_ids(told: Any) -> IntArray | None:
    """None where they are no ids."""
    try:
        return token_ids(told) if isinstance(told, list) else None
    except EntryError:
        return None


def log_prob(value: Any, none_at: float) -> float | None:
    """`none_at`: the number, and all below it, that the server writes where there is none that JSON can hold."""
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    return None if number is not None and number <= none_at else number


def chat_log_probs(content: Sequence[Any], none_at: float) -> tuple[tuple[float | None, ...], tuple[str, ...]]:
    """Log-probs and the tokens' own texts of `choices[].logprobs.content`."""
    entries = [entry if isinstance(entry, dict) else {} for entry in content]
    return (
        tuple(log_prob(entry.get("logprob"), none_at) for entry in entries),
        tuple(str(entry.get("token", "")) for entry in entries),
    )


def tool_call(position: int, call: Json) -> ToolCallDelta:
    """A piece of a tool call; `position` in its list is its index where it tells none."""
    function = call.get("function") or {}
    index = call.get("index")
    return ToolCallDelta(
        position if index is None else index, call.get("id"), function.get("name"), function.get("arguments") or ""
    )


def finish_reason(reason: Any, name: str) -> FinishReason:
    """Raises `EngineBroken` where the server `name` gave up by itself."""
    known = FINISH_REASONS.get(reason) if isinstance(reason, str) else None
    if known is None:
        raise EngineBroken(f"{name} ended the generation by itself: {reason}")
    return known


def count(value: Any) -> int | None:
    """A number of tokens."""
    return value if type(value) is int else None
