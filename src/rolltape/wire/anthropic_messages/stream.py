"""Streams as named events, from `message_start` to `message_stop`.

Strategy: blocks follow one another, as the protocol has it, and one is open at a time. Text and thinking pass as they
come. A tool-use block stays open until the end, and whatever the model samples after it waits behind it: its
`content_block_stop` is what a harness acts on, so nothing behind it could leave before the entry is durable anyway,
and an engine may fill its calls in any order.

Acting are the events of the end: the stop of the last open block (Claude Code runs a finished tool call, and keeps a
finished text as a turn, even where the stream breaks after it), later blocks, `message_delta` and `message_stop`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, assert_never

import msgspec

from rolltape import sse
from rolltape.chat import ChatRequest, Delta, EngineEvent, Finished, Json, Started, ToolCallDelta, Usage
from rolltape.errors import RequestError
from rolltape.wire import Frame
from rolltape.wire.anthropic_messages.encode import message, signature, stop_reason, tool_use_id, usage
from rolltape.wire.anthropic_messages.errors import error_object

COMMENT = Frame(b": still sampling\n\n")
PING = {"type": "ping"}


@dataclass(slots=True)
class _Block:
    """One content block. `call` is (the engine's index, its id) of a tool call; `waiting` what was not sent of it."""

    kind: Literal["thinking", "text", "tool_use"]
    index: int
    head: Json
    call: tuple[int, str | None] | None = None
    waiting: list[str] = field(default_factory=list)


class MessageStreamEncoder:
    """One streamed reply. Token counts are the engine's where it gives them, else those that passed by."""

    content_type = sse.CONTENT_TYPE

    def __init__(self, request: ChatRequest, reply_id: str) -> None:
        self._request, self._reply_id = request, reply_id
        self._started = False
        self._prompt_tokens: int | None = None
        self._sampled = 0
        self._blocks: list[_Block] = []
        self._open: _Block | None = None

    def open(self) -> Sequence[Frame]:
        """Nothing: `message_start` tells the prompt's length, which the engine has not said yet."""
        return []

    def encode(self, event: EngineEvent) -> Sequence[Frame]:
        """Events for one engine event; none where it shows nothing."""
        match event:
            case Started():
                return list(self._start(event))
            case Delta():
                return list(self._delta(event))
            case Finished():
                return list(self._finish(event))
            case _:
                assert_never(event)

    def keep_alive(self) -> Frame:
        """A `ping`; before `message_start` a comment, since that event has to be the first."""
        return _frame(PING) if self._started else COMMENT

    def error(self, error: RequestError) -> Sequence[Frame]:
        """The `error` event that SDKs raise on."""
        return [_frame(error_object(error))]

    def _start(self, event: Started | None) -> Iterator[Frame]:
        """`message_start`, once. Its `input_tokens` is 0 where the prompt's length is not known."""
        if self._started:
            return
        self._started = True
        if event is not None and event.prompt_token_ids is not None:
            self._prompt_tokens = len(event.prompt_token_ids)
        counts = usage(Usage(self._prompt_tokens or 0, 0))
        yield _frame({"type": "message_start", "message": message(self._request, self._reply_id, counts)})

    def _delta(self, event: Delta) -> Iterator[Frame]:
        yield from self._start(None)
        self._sampled += len(event.token_ids)
        if event.reasoning:
            yield from self._said("thinking", event.reasoning)
        if event.text:
            yield from self._said("text", event.text)
        for piece in event.tool_calls:
            yield from self._called(piece)

    def _said(self, kind: Literal["thinking", "text"], text: str) -> Iterator[Frame]:
        last = self._blocks[-1] if self._blocks else None
        if last is None or last.kind != kind:
            head = {"type": kind, kind: "", "signature": ""} if kind == "thinking" else {"type": kind, kind: ""}
            last = _Block(kind, len(self._blocks), head)
            yield from self._add(last)
        yield from self._grow(last, text)

    def _called(self, piece: ToolCallDelta) -> Iterator[Frame]:
        """A new id starts a new call, whatever index it came with: glued arguments would poison the history."""
        block = next((b for b in reversed(self._blocks) if b.call and b.call[0] == piece.index), None)
        if block is None or (piece.id and block.call and block.call[1] not in (None, piece.id)):
            number = sum(b.call is not None for b in self._blocks)
            call_id = piece.id or tool_use_id(self._reply_id, number)
            head: Json = {"type": "tool_use", "id": call_id, "name": piece.name or "", "input": {}}
            block = _Block("tool_use", len(self._blocks), head, (piece.index, piece.id or None))
            yield from self._add(block)
        yield from self._grow(block, piece.arguments)

    def _add(self, block: _Block) -> Iterator[Frame]:
        """Open `block` now, unless it has to wait behind a tool call."""
        self._blocks.append(block)
        if self._open is not None and self._open.kind == "tool_use":
            return
        yield from self._stop_open(acting=False)
        self._open = block
        yield _begun(block)

    def _grow(self, block: _Block, text: str) -> Iterator[Frame]:
        if block is not self._open:
            block.waiting.append(text)
        elif text:
            yield _grown(block, text)

    def _stop_open(self, *, acting: bool) -> Iterator[Frame]:
        if self._open is not None:
            yield from _ended(self._open, self._reply_id, acting=acting)

    def _finish(self, event: Finished) -> Iterator[Frame]:
        yield from self._start(None)
        yield from self._stop_open(acting=True)
        for block in self._blocks[self._open.index + 1 if self._open else 0 :]:
            yield _begun(block, acting=True)
            if text := "".join(block.waiting):
                yield _grown(block, text, acting=True)
            yield from _ended(block, self._reply_id, acting=True)
        yield self._message_delta(event)
        yield _frame({"type": "message_stop"}, acting=True)

    def _message_delta(self, event: Finished) -> Frame:
        calls = any(block.call for block in self._blocks)
        delta = {
            "stop_reason": stop_reason(event.finish_reason, event.stop_sequence, calls),
            "stop_sequence": event.stop_sequence,
        }
        sampled = self._sampled if event.completion_tokens is None else event.completion_tokens
        counts: Json = {"output_tokens": sampled}
        if self._prompt_tokens is not None:
            counts = usage(Usage(self._prompt_tokens, sampled, event.cached_tokens))
        return _frame({"type": "message_delta", "delta": delta, "usage": counts}, acting=True)


def _begun(block: _Block, *, acting: bool = False) -> Frame:
    return _frame({"type": "content_block_start", "index": block.index, "content_block": block.head}, acting=acting)


def _grown(block: _Block, text: str, *, acting: bool = False) -> Frame:
    match block.kind:
        case "thinking":
            return _changed(block, {"type": "thinking_delta", "thinking": text}, acting=acting)
        case "text":
            return _changed(block, {"type": "text_delta", "text": text}, acting=acting)
        case "tool_use":
            return _changed(block, {"type": "input_json_delta", "partial_json": text}, acting=acting)
        case _:
            assert_never(block.kind)


def _ended(block: _Block, reply_id: str, *, acting: bool) -> Iterator[Frame]:
    if block.kind == "thinking":
        signed = {"type": "signature_delta", "signature": signature(reply_id, block.index)}
        yield _changed(block, signed, acting=acting)
    yield _frame({"type": "content_block_stop", "index": block.index}, acting=acting)


def _changed(block: _Block, delta: Json, *, acting: bool) -> Frame:
    return _frame({"type": "content_block_delta", "index": block.index, "delta": delta}, acting=acting)


def _frame(event: Json, *, acting: bool = False) -> Frame:
    return Frame(sse.frame(msgspec.json.encode(event), event["type"]), acting)
