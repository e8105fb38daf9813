"""A reply as a stream of Responses events.

Codex takes items, and starts tools, from `output_item.done` alone, and keeps what was done if the stream breaks
afterwards. So every `output_item.done` is an acting frame; they all come at the end, in order, and text streams until
then without being held behind the thinking that came before it. What only tells a reader that a text is complete
(`output_text.done`...) goes out as soon as the next item begins.

A stream that breaks ends with `response.failed`; a `response.completed` is only ever the engine's own end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

import msgspec
from msgspec.structs import replace

from rolltape import sse
from rolltape.chat import ChatRequest, Delta, EngineEvent, Finished, Json, Started, ToolCall, ToolCallDelta, Usage
from rolltape.errors import RequestError
from rolltape.wire import Frame
from rolltape.wire.openai_errors import error_message
from rolltape.wire.openai_responses.output import INCOMPLETE, Items, ended, response, text_part
from rolltape.wire.openai_responses.tools import Origin, custom_input, origin

PING = Frame(sse.frame(b'{"type":"ping"}', "ping"))
"""Codex ends a stream that is silent for 300 s and counts events only, known or not; comments are no events."""
NO_CALL = ToolCall("", "", "")


@dataclass(frozen=True, slots=True)
class _Texts:
    """How a kind of text is told: its item's id prefix, and the names of its events, parts and positions."""

    prefix: str
    text: str
    part: str
    position: str
    more: Json


REASONING = _Texts("rs", "reasoning_summary_text", "reasoning_summary_part", "summary_index", {})
MESSAGE = _Texts("msg", "output_text", "content_part", "content_index", {"logprobs": []})


@dataclass(slots=True)
class _Open:
    """An output item as it grows: a text of some kind, or a tool call. `number` counts the items of its kind."""

    index: int
    number: int
    texts: _Texts | None
    call: ToolCall = NO_CALL
    call_index: int = 0
    pieces: list[str] = field(default_factory=list)
    settled: bool = False

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class ResponsesStreamEncoder:
    """One streamed reply. Token counts are the engine's where it gives them, else those that passed by."""

    content_type = sse.CONTENT_TYPE

    def __init__(self, request: ChatRequest, reply_id: str, created: int) -> None:
        self._request, self._reply_id, self._created = request, reply_id, created
        self._make = Items(request, reply_id)
        self._items: list[_Open] = []
        self._sequence = 0
        self._prompt_tokens: int | None = None
        self._sampled = self._reasoned = 0

    def open(self) -> Sequence[Frame]:
        """The events that name the response."""
        begun = self._response("in_progress")
        return [self._event(f"response.{name}", {"response": begun}) for name in ("created", "in_progress")]

    def encode(self, event: EngineEvent) -> Sequence[Frame]:
        """Events for one event of the engine; none where it shows nothing."""
        match event:
            case Started():
                self._prompt_tokens = None if event.prompt_token_ids is None else len(event.prompt_token_ids)
                return []
            case Delta():
                return self._delta(event)
            case Finished():
                return self._finished(event)
            case _:
                assert_never(event)

    def keep_alive(self) -> Frame:
        """An event of a type that no client knows and every client skips."""
        return PING

    def error(self, error: RequestError) -> Sequence[Frame]:
        """`response.failed`: Codex asks again, except after an overflow of the context."""
        code = "server_error" if error.status >= 500 else error.code
        failed = self._response("failed", error={"code": code, "message": error_message(error)})
        return [self._event("response.failed", {"response": failed})]

    def _delta(self, event: Delta) -> list[Frame]:
        self._sampled += len(event.token_ids)
        frames: list[Frame] = []
        if event.reasoning:
            self._reasoned += len(event.token_ids)
            frames += self._text(REASONING, event.reasoning)
        if event.text:
            frames += self._text(MESSAGE, event.text)
        for piece in event.tool_calls:
            frames += self._tool_call(piece)
        return frames

    def _text(self, kind: _Texts, text: str) -> list[Frame]:
        frames: list[Frame] = []
        if not self._items or self._items[-1].texts is not kind:
            number = sum(item.texts is kind for item in self._items)
            frames = self._begin(_Open(len(self._items), number, kind))
            frames.append(self._part("added", self._items[-1], kind))
        item = self._items[-1]
        item.pieces.append(text)
        return [
            *frames,
            self._event(f"response.{kind.text}.delta", self._place(item, kind) | {"delta": text} | kind.more),
        ]

    def _tool_call(self, piece: ToolCallDelta) -> list[Frame]:
        """A new id starts a new call, whatever index it came with: glued arguments would poison the history."""
        known = [item for item in self._items if item.texts is None and item.call_index == piece.index]
        frames: list[Frame] = []
        if not known or (piece.id and known[-1].call.id not in ("", piece.id)):
            number = sum(item.texts is None for item in self._items)
            call = ToolCall(piece.id or "", piece.name or "", "")
            known = [_Open(len(self._items), number, None, call, piece.index)]
            frames = self._begin(known[-1])
        item = known[-1]
        item.pieces.append(piece.arguments)
        if piece.arguments and not self._tool(item).custom:
            body = self._at(item) | {"delta": piece.arguments}
            frames.append(self._event("response.function_call_arguments.delta", body))
        return frames

    def _begin(self, item: _Open) -> list[Frame]:
        """Begin an item; what came before it is settled."""
        frames = self._settle()
        self._items.append(item)
        body = {"output_index": item.index, "item": self._whole(item, "in_progress", begun=True)}
        return [*frames, self._event("response.output_item.added", body)]

    def _settle(self) -> list[Frame]:
        """Nothing more is added to the last text. Calls are left open: whole arguments are something to act on."""
        item = self._items[-1] if self._items else None
        if item is None or item.texts is None or item.settled:
            return []
        item.settled, kind = True, item.texts
        body = self._place(item, kind) | {"text": item.text} | kind.more
        return [self._event(f"response.{kind.text}.done", body), self._part("done", item, kind)]

    def _finished(self, event: Finished) -> list[Frame]:
        frames = self._settle()
        last = "incomplete" if event.finish_reason in INCOMPLETE else "completed"
        output = [self._whole(item, last if item is self._items[-1] else "completed") for item in self._items]
        for item, whole in zip(self._items, output, strict=True):
            frames += self._arguments_done(item) if item.texts is None else []
            body = {"output_index": item.index, "item": whole}
            frames.append(self._event("response.output_item.done", body, acting=True))
        end = ended(event.finish_reason, output, self._usage(event))
        return [*frames, self._event(f"response.{end['status']}", {"response": self._response(**end)}, acting=True)]

    def _arguments_done(self, item: _Open) -> list[Frame]:
        tool, at = self._tool(item), self._at(item)
        if not tool.custom:
            done = at | {"name": tool.name, "arguments": item.text}
            return [self._event("response.function_call_arguments.done", done, acting=True)]
        text, name = custom_input(item.text), "response.custom_tool_call_input"
        told = ((f"{name}.delta", "delta"), (f"{name}.done", "input"))
        return [self._event(event, at | {key: text}, acting=True) for event, key in told]

    def _usage(self, event: Finished) -> Usage | None:
        if self._prompt_tokens is None:
            return None
        sampled = self._sampled if event.completion_tokens is None else event.completion_tokens
        return Usage(self._prompt_tokens, sampled, event.cached_tokens, self._reasoned)

    def _tool(self, item: _Open) -> Origin:
        return origin(self._request, item.call.name)

    def _whole(self, item: _Open, status: str, *, begun: bool = False) -> Json:
        """The item as far as it has come; `begun`: without any text yet."""
        if item.texts is None:
            return self._make.tool_call(item.number, replace(item.call, arguments=item.text), status)
        make = self._make.reasoning if item.texts is REASONING else self._make.message
        return make(item.number, None if begun else item.text, status)

    def _part(self, what: str, item: _Open, kind: _Texts) -> Frame:
        part = {"type": "summary_text", "text": item.text} if kind is REASONING else text_part(item.text)
        return self._event(f"response.{kind.part}.{what}", self._place(item, kind) | {"part": part})

    def _at(self, item: _Open) -> Json:
        prefix = item.texts.prefix if item.texts else ("ctc" if self._tool(item).custom else "fc")
        return {"item_id": self._make.item_id(prefix, item.number), "output_index": item.index}

    def _place(self, item: _Open, kind: _Texts) -> Json:
        return self._at(item) | {kind.position: 0}

    def _response(self, status: str, **more: object) -> Json:
        return response(self._request, self._reply_id, self._created, status, **more)

    def _event(self, name: str, body: Json, *, acting: bool = False) -> Frame:
        data = {"type": name, "sequence_number": self._sequence, **body}
        self._sequence += 1
        return Frame(sse.frame(msgspec.json.encode(data), name), acting)
