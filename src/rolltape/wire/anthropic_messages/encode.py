"""Replies as `message` objects, and the values that a whole reply and a stream share."""

from typing import assert_never

import msgspec

from rolltape.chat import ChatRequest, FinishReason, Json, Reply, ToolCall, Usage
from rolltape.wire.anthropic_messages.messages import unparsed


def encode_reply(request: ChatRequest, reply: Reply) -> bytes:
    """The body of a reply that is not streamed: thinking, text and tool calls, as templates lay them out."""
    blocks = _blocks(reply)
    body = message(request, reply.id, usage(reply.usage))
    body["content"] = blocks
    body["stop_reason"] = stop_reason(reply.finish_reason, reply.stop_sequence, bool(reply.message.tool_calls))
    body["stop_sequence"] = reply.stop_sequence
    return msgspec.json.encode(body)


def message(request: ChatRequest, reply_id: str, counts: Json) -> Json:
    """A message that has no content yet."""
    return {
        "id": reply_id,
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": counts,
    }


def usage(counts: Usage) -> Json:
    """Token counts as the protocol has them: `input_tokens` leaves out what was read from a cache.

    `cache_read_input_tokens` is null where the engine does not say. Nothing is ever written to a cache that is paid.
    """
    return {
        "input_tokens": counts.prompt_tokens - (counts.cached_tokens or 0),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counts.cached_tokens,
        "output_tokens": counts.completion_tokens,
    }


def stop_reason(finish: FinishReason, stop_sequence: str | None, calls: bool) -> str:
    """The protocol's word for how generation ended. `calls`: there are tool calls in the reply."""
    match finish:
        case "tool_calls":
            return "tool_use"
        case "length":
            return "max_tokens"
        case "content_filter":
            return "refusal"
        case "stop":
            return "tool_use" if calls else "end_turn" if stop_sequence is None else "stop_sequence"
        case _:
            assert_never(finish)


def signature(reply_id: str, index: int) -> str:
    """Of the thinking block at `index`: unique, and it names the call when a harness echoes the block."""
    return f"rolltape.{reply_id}.{index}"


def tool_use_id(reply_id: str, number: int) -> str:
    """For tool call `number` of a reply whose engine gave it no id."""
    return f"toolu_{reply_id.removeprefix('msg_')}_{number}"


def _blocks(reply: Reply) -> list[Json]:
    said = reply.message
    blocks: list[Json] = []
    if said.reasoning:
        blocks.append({"type": "thinking", "thinking": said.reasoning, "signature": signature(reply.id, 0)})
    if said.text():
        blocks.append({"type": "text", "text": said.text()})
    return blocks + [_tool_use(call, reply.id, number) for number, call in enumerate(said.tool_calls)]


def _tool_use(call: ToolCall, reply_id: str, number: int) -> Json:
    call_id = call.id or tool_use_id(reply_id, number)
    return {"type": "tool_use", "id": call_id, "name": call.name, "input": _input(call.arguments)}


def _input(arguments: str) -> Json:
    """The arguments as an object. Text that is none goes in Claude Code's own wrapping: no argument is invented."""
    if not arguments.strip():
        return {}
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return unparsed(arguments)
    return value if isinstance(value, dict) else unparsed(arguments)
