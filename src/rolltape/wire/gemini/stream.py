"""Streams of response objects: as server-sent events (`alt=sse`), or as one JSON array that grows.

Strategy: texts and thoughts pass as they come. The protocol has a function call whole or not at all, so calls are
gathered and leave with the end: they and the chunk with the finish reason are what a harness acts on.

A client's own reading decides two things. gemini-cli's SDK wants every event to be data, and lets whitespace pass; and
both official SDKs know a stream that broke by an error object that is *no* event.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

import msgspec

from rolltape import sse
from rolltape.chat import ChatRequest, Delta, EngineEvent, Finished, Json, Started, ToolCallDelta, Usage
from rolltape.errors import RequestError
from rolltape.wire import Frame
from rolltape.wire.gemini.decode import includes_thoughts
from rolltape.wire.gemini.encode import finish_reason, function_call, response, signature, usage
from rolltape.wire.gemini.errors import error_object


@dataclass(slots=True)
class _Call:
    """A function call as it grows; `index` is the engine's."""

    index: int
    id: str | None
    name: str
    arguments: list[str] = field(default_factory=list)


class GeminiStreamEncoder:
    """One streamed reply. Token counts are the engine's where it gives them, else those that passed by."""

    def __init__(self, request: ChatRequest, reply_id: str) -> None:
        self._request, self._reply_id = request, reply_id
        self._events = request.aside.get("alt") == "sse"
        self._thoughts = includes_thoughts(request)
        self._calls: list[_Call] = []
        self._prompt_tokens = self._sampled = self._thought_tokens = self._passed = 0
        self.content_type = sse.CONTENT_TYPE if self._events else "application/json; charset=UTF-8"

    def open(self) -> Sequence[Frame]:
        """The array's bracket."""
        return [] if self._events else [Frame(b"[")]

    def encode(self, event: EngineEvent) -> Sequence[Frame]:
        """Chunks for one engine event; none where it shows nothing."""
        match event:
            case Started():
                self._prompt_tokens = 0 if event.prompt_token_ids is None else len(event.prompt_token_ids)
                return []
            case Delta():
                return self._delta(event)
            case Finished():
                return self._finish(event)
            case _:
                assert_never(event)

    def keep_alive(self) -> Frame:
        """An empty line, which is whitespace to every reader: anything else is content to some client, or noise."""
        return Frame(b"\n")

    def error(self, error: RequestError) -> Sequence[Frame]:
        """An error object where a chunk would be; what was held back never left, so the array is as it passed."""
        told = msgspec.json.encode(error_object(error))
        return [Frame(told + b"\n" if self._events else (b"," if self._passed else b"") + told + b"]")]

    def _delta(self, event: Delta) -> list[Frame]:
        self._sampled += len(event.token_ids)
        for piece in event.tool_calls:
            self._called(piece)
        parts: list[Json] = []
        if event.reasoning:
            self._thought_tokens += len(event.token_ids)
            parts += [{"text": event.reasoning, "thought": True}] if self._thoughts else []
        if event.text:
            parts.append({"text": event.text})
        if not parts:
            return []
        frame = self._frame(response(self._request, self._reply_id, parts), first=not self._passed)
        self._passed += 1
        return [frame]

    def _called(self, piece: ToolCallDelta) -> None:
        """A new id starts a new call, whatever index it came with."""
        call = next((call for call in reversed(self._calls) if call.index == piece.index), None)
        if call is None or (piece.id and call.id not in (None, piece.id)):
            call = _Call(piece.index, piece.id or None, piece.name or "")
            self._calls.append(call)
        call.arguments.append(piece.arguments)

    def _finish(self, event: Finished) -> list[Frame]:
        parts = [
            function_call(self._reply_id, number, call.id, call.name, "".join(call.arguments))
            for number, call in enumerate(self._calls)
        ]
        parts = parts or [{"text": "", "thoughtSignature": signature(self._reply_id, 0)}]
        sampled = self._sampled if event.completion_tokens is None else event.completion_tokens
        counts = usage(Usage(self._prompt_tokens, sampled, event.cached_tokens, self._thought_tokens))
        last = response(self._request, self._reply_id, parts, finish_reason(event.finish_reason), counts)
        end = [] if self._events else [Frame(b"]", acting=True)]
        return [self._frame(last, first=not self._passed, acting=True), *end]

    def _frame(self, chunk: Json, *, first: bool, acting: bool = False) -> Frame:
        data = msgspec.json.encode(chunk)
        return Frame(sse.frame(data) if self._events else (b"" if first else b",\r\n") + data, acting)
