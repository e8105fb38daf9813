"""What two calls said: messages as a chat template sees them, compared without reading more of them than differ.

A request is JSON and repeats the one before it, so most of its messages are equal byte for byte. They stay raw slices
of the recorded request; only a message that someone looks at is decoded, once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from rolltape.chat import Message, ToolCall
from rolltape.record import TokenEntry

Fields: TypeAlias = tuple[tuple[str, str], ...]
"""(path, text) of what a template shows of a message, in the order in which it is shown."""

HEAD = ("system", "developer")


class _Request(msgspec.Struct, frozen=True):
    messages: tuple[msgspec.Raw, ...] = ()
    tools: msgspec.Raw = msgspec.Raw(b"[]")


class Turns:
    """The messages of a call in order, its reply last where there is one. Decodes what is asked for, once."""

    def __init__(self, raw: Sequence[msgspec.Raw], reply: Message | None) -> None:
        self._raw = raw
        self._known: dict[int, Message] = {} if reply is None else {len(raw): reply}
        self._fields: dict[int, Fields] = {}
        self.sent = len(raw)
        """How many of them are the request's."""
        self.size = len(raw) + (reply is not None)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, at: int) -> Message:
        if at not in self._known:
            self._known[at] = _message(self._raw[at])
        return self._known[at]

    def fields(self, at: int) -> Fields:
        if at not in self._fields:
            self._fields[at] = shown(self[at])
        return self._fields[at]

    def same(self, at: int, other: "Turns", there: int) -> bool:
        """Whether both messages look the same to a template."""
        if at < self.sent and there < other.sent and bytes(self._raw[at]) == bytes(other._raw[there]):
            return True
        return self[at].role == other[there].role and self.fields(at) == other.fields(there)

    def request(self) -> "Turns":
        """The same without the reply."""
        if self.size == self.sent:
            return self
        return Turns(self._raw, None)

    def key(self, at: int) -> int:
        return hash((self[at].role, self.fields(at)))


def _message(raw: msgspec.Raw) -> Message:
    """What is no message stands for its own bytes: it can still be compared."""
    try:
        return msgspec.json.decode(raw, type=Message)
    except (msgspec.MsgspecError, ValueError):
        return Message("user", bytes(raw).decode(errors="replace"))


@dataclass(frozen=True, slots=True)
class Talk:
    """One call's side of a break. `tools` is the JSON as recorded."""

    turns: Turns
    tools: bytes


def talk(entry: TokenEntry, *, reply: bool) -> Talk | None:
    """What `entry` recorded of its texts, with its reply at the end if wanted; None where there is none to read."""
    if not isinstance(entry.request_text, bytes):
        return None
    try:
        request = msgspec.json.decode(entry.request_text, type=_Request)
        answer = replied(entry.output_items) if reply else None
    except msgspec.DecodeError:
        return None
    return Talk(Turns(request.messages, answer), bytes(request.tools))


def replied(items: Iterable[Mapping[str, Any]]) -> Message | None:
    """The assistant turn that the Responses items spell; None for none."""
    reasoning, content, calls = "", "", []
    items = tuple(items)
    for item in items:
        match item.get("type"):
            case "reasoning":
                reasoning += _joined(item.get("summary")) or _joined(item.get("content"))
            case "message":
                content += _joined(item.get("content"))
            case "function_call":
                calls.append(
                    ToolCall(str(item.get("call_id")), str(item.get("name")), str(item.get("arguments") or ""))
                )
    if not items:
        return None
    return Message("assistant", content, reasoning=reasoning or None, tool_calls=tuple(calls))


def _joined(parts: Any) -> str:
    if isinstance(parts, str):
        return parts
    return "".join(str(part.get("text", "")) for part in parts or () if isinstance(part, Mapping))


def shown(message: Message) -> Fields:
    """Reasoning, content and tool calls; ids and what only the dialect knows are shown to no model."""
    found: list[tuple[str, str]] = []
    if message.reasoning:
        found.append(("reasoning", message.reasoning))
    found.extend(_content(message))
    for index, call in enumerate(message.tool_calls):
        found.append((f"tool_calls[{index}].name", call.name))
        found.append((f"tool_calls[{index}].arguments", call.arguments))
    return tuple(found)


def _content(message: Message) -> Iterable[tuple[str, str]]:
    """One text for text parts in a row: a string and a list of one text look the same to a model."""
    if not isinstance(message.content, tuple) or all(part.get("type") == "text" for part in message.content):
        return [("content", message.text())] if message.text() else []
    return [
        (f"content[{index}]", str(part.get("text", "")))
        if part.get("type") == "text"
        else (f"content[{index}].{part.get('type')}", msgspec.json.encode(part).decode())
        for index, part in enumerate(message.content)
    ]


def is_media(path: str) -> bool:
    """Whether a path of `shown` leads to a part that is no text."""
    return path.startswith("content[") and "." in path
