"""Messages of a Messages request as canonical ones, in place and in order.

Two rules above all. Append-only in, append-only out: a message's canonical form depends on nothing that comes after
it, system messages stay where they stand, and `cache_control`, which moves to the newest message from turn to turn, is
not seen. And nothing that a model would read is lost: what cannot be shown to it is refused by name.

Content of exactly one plain text is a string, whether it was sent as a string or as a block: Claude Code changes from
one form to the other when the cache mark moves on.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from rolltape.chat import Json, Message, ToolCall
from rolltape.wire.anthropic_messages.errors import invalid, shown, unsupported

UNPARSED = "__unparsedToolInput"
"""Under this name Claude Code echoes tool input that is no JSON object: `{"raw": TEXT, "len": UTF-16 units}`."""

_JSON = json.JSONEncoder(ensure_ascii=False)

ORDER = ("thinking", "text", "tool_use")
"""Blocks of an assistant turn, as chat templates lay them out."""

Content = str | tuple[Json, ...]
Deferred = Mapping[str, Json]
Blocks = Iterator[tuple[Json, str]]


def read(system: Any, value: Any, deferred: Deferred) -> tuple[Message, ...]:
    """The `system` and `messages` fields. `deferred`: tools whose definition a `tool_reference` brings in, by name."""
    if not isinstance(value, list) or not value:
        raise invalid("messages", "'messages' must be a list of at least one message.")
    head = [] if not system else [Message("system", _texts(_blocks(system, "system")))]
    return (*head, *(m for index, item in enumerate(value) for m in _turn(item, f"messages[{index}]", deferred)))


def spelled(value: Any) -> str:
    """The one spelling of JSON in prompts: keys as received, as Python's `json.dumps` without escapes writes it.

    It is what chat templates use, and so what models sample most often.
    """
    return _JSON.encode(value)


def unparsed(text: str) -> Json:
    """The input object that stands for `text`, which is no JSON object."""
    return {UNPARSED: {"raw": text, "len": len(text.encode("utf-16-le", "surrogatepass")) // 2}}


def _turn(value: Any, at: str, deferred: Deferred) -> list[Message]:
    if not isinstance(value, dict):
        raise invalid(at, f"'{at}' must be an object.")
    role, blocks = value.get("role"), _blocks(value.get("content"), f"{at}.content")
    match role:
        case "user":
            turn = _user(blocks, deferred)
        case "assistant":
            turn = [_assistant(blocks)]
        case "system":
            turn = [Message("system", _texts(blocks))]
        case _:
            raise invalid(f"{at}.role", f"'{at}.role' must be user, assistant or system, not {shown(role)}.")
    rest = _rest(value, "role", "content")
    return [msgspec.structs.replace(turn[0], aside=rest | turn[0].aside), *turn[1:]] if rest else turn


def _blocks(content: Any, at: str) -> Blocks:
    """Each block and its path; a string is one text block."""
    if isinstance(content, str):
        yield {"type": "text", "text": content}, at
        return
    if not isinstance(content, list):
        raise invalid(at, f"'{at}' must be a string or a list of blocks.")
    for index, block in enumerate(content):
        where = f"{at}[{index}]"
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise invalid(where, f"'{where}' must be an object with a 'type'.")
        yield block, where


def _texts(blocks: Blocks) -> Content:
    return _content([_text(block, at) if block["type"] == "text" else _refuse(block, at) for block, at in blocks])


def _content(parts: list[Json]) -> Content:
    """The parts, or the string where there is nothing else."""
    if not parts:
        return ""
    return parts[0]["text"] if len(parts) == 1 and parts[0].keys() == {"type", "text"} else tuple(parts)


# User turns


def _user(blocks: Blocks, deferred: Deferred) -> list[Message]:
    """Tool messages and user messages, in the order of their blocks."""
    turn: list[Message] = []
    parts: list[Json] = []
    for block, at in blocks:
        if block["type"] != "tool_result":
            parts.append(_shown_part(block, at))
            continue
        if parts:
            turn.append(Message("user", _content(parts)))
            parts = []
        turn.append(_tool_result(block, at, deferred))
    return [*turn, Message("user", _content(parts))] if parts or not turn else turn


def _tool_result(block: Json, at: str, deferred: Deferred) -> Message:
    content = block.get("content")
    inner = _blocks("" if content is None else content, f"{at}.content")
    return Message(
        "tool",
        _content([_result_part(part, where, deferred) for part, where in inner]),
        tool_call_id=_string(block, "tool_use_id", at),
        aside=_rest(block, "type", "tool_use_id", "content"),
    )


def _result_part(block: Json, at: str, deferred: Deferred) -> Json:
    if block["type"] != "tool_reference":
        return _shown_part(block, at)
    name = _string(block, "tool_name", at)
    return {"type": "text", "text": spelled(deferred.get(name, _rest(block)))}


def _shown_part(block: Json, at: str) -> Json:
    match block["type"]:
        case "text":
            return _text(block, at)
        case "image":
            return {"type": "image_url", "image_url": {"url": _image_url(block, at)}, **_rest(block, "type", "source")}
        case _:
            return _refuse(block, at)


def _image_url(block: Json, at: str) -> str:
    source = block.get("source")
    if not isinstance(source, dict):
        raise invalid(f"{at}.source", f"'{at}.source' must be an object.")
    match source.get("type"):
        case "base64":
            media, data = _string(source, "media_type", f"{at}.source"), _string(source, "data", f"{at}.source")
            return f"data:{media};base64,{data}"
        case "url":
            return _string(source, "url", f"{at}.source")
        case kind:
            raise unsupported(f"{at}.source.type", f"'{at}' is an image from a {shown(kind)} source: send its data.")


# Assistant turns


def _assistant(blocks: Blocks) -> Message:
    texts: list[Json] = []
    calls: list[ToolCall] = []
    thoughts: list[Json] = []
    reasoning: list[str] = []
    order: list[str] = []
    for block, at in blocks:
        match block["type"]:
            case "text":
                texts.append(_text(block, at))
            case "tool_use":
                calls.append(_tool_use(block, at))
            case "thinking":
                reasoning.append(_string(block, "thinking", at, empty=True))
                thoughts.append(_rest(block, "thinking") | {"chars": len(reasoning[-1])})
            case "redacted_thinking":
                thoughts.append(_rest(block))
            case _:
                _refuse(block, at)
        order.append(block["type"].removeprefix("redacted_"))
    return Message(
        "assistant",
        _content(texts) if texts or not calls else None,
        reasoning="".join(reasoning) if reasoning else None,
        tool_calls=tuple(calls),
        aside=_marks(thoughts, order),
    )


def _marks(thoughts: list[Json], order: list[str]) -> Json:
    """What a canonical message has no place for: signatures, redacted thinking, blocks in an unusual order."""
    marks: Json = {"thinking_blocks": thoughts} if thoughts else {}
    if order != sorted(order, key=ORDER.index):
        marks["block_order"] = order
    return marks


def _tool_use(block: Json, at: str) -> ToolCall:
    if "input" not in block:
        raise invalid(f"{at}.input", f"'{at}.input' is missing.")
    return ToolCall(
        id=_string(block, "id", at),
        name=_string(block, "name", at),
        arguments=_arguments(block["input"]),
        extra=_rest(block, "type", "id", "name", "input"),
    )


def _arguments(value: Any) -> str:
    """The arguments' text. Input that the harness could not parse comes back as the text that was sampled.

    Not only objects: Claude Code echoes whatever JSON was sampled, an array for one.
    """
    wrapped = value.get(UNPARSED) if isinstance(value, dict) else None
    raw = wrapped.get("raw") if isinstance(wrapped, dict) else None
    return raw if isinstance(raw, str) and unparsed(raw) == value else spelled(value)


# Pieces


def _text(block: Json, at: str) -> Json:
    return {"type": "text", "text": _string(block, "text", at, empty=True), **_rest(block, "type", "text")}


def _rest(block: Json, *known: str) -> Json:
    """The fields that are not `known`. A cache mark and null say nothing to a model."""
    return {k: v for k, v in block.items() if k not in known and k != "cache_control" and v is not None}


def _string(block: Json, name: str, at: str, *, empty: bool = False) -> str:
    value = block.get(name)
    if not isinstance(value, str) or not (value or empty):
        raise invalid(f"{at}.{name}", f"'{at}.{name}' must be a {'' if empty else 'non-empty '}string.")
    return value


def _refuse(block: Json, at: str) -> Json:
    raise unsupported(f"{at}.type", f"Blocks of type {shown(block['type'])} are not supported at '{at}'.")
