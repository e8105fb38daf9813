"""Input items to chat messages.

A turn of the assistant is several items here (reasoning, message, calls) and one message in a chat. Items of one turn
become one message, so that an echoed turn is rendered as it was sampled. Two turns may follow each other with nothing
between: a client that lost its stream keeps what was finished and asks again. They stay two messages, since the first
of them was one in the prompt that came before. Our ids say which items belong together; without them a turn ends where
reasoning or a second message begins.

What has no place in a message (ids, states, sealed reasoning) goes to the message's `aside`, item by item.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from rolltape.chat import Json, Message, Role, ToolCall
from rolltape.wire.openai_errors import invalid, unsupported
from rolltape.wire.openai_responses.parts import content, joined, meaningful, text_of
from rolltape.wire.openai_responses.tools import Toolbox, called, custom_arguments

ROLES = ("system", "developer", "user", "assistant")
UNSEEN = ("web_search_call", "tool_search_call", "tool_search_output", "compaction", "context_compaction")
"""Items that have no form in a chat: kept for the record, not shown to the model."""
OURS = re.compile(r"(?:rs|msg|fc|ctc)_([0-9a-f]{32})(?:_\d+)?")


@dataclass(slots=True)
class _Turn:
    """An assistant turn as it grows. `call` is the model call that made it, None when its ids are not ours."""

    call: str | None
    reasoning: list[str] = field(default_factory=list)
    texts: list[str | tuple[Json, ...]] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    rests: list[Json] = field(default_factory=list)

    def continued_by(self, kind: str, call: str | None) -> bool:
        """Whether an item of `kind` belongs to this turn."""
        if self.call is not None and call is not None:
            return self.call == call
        if kind == "reasoning":
            return not self.texts and not self.calls
        return kind != "message" or not (self.texts or self.calls)

    def message(self) -> Message:
        return Message(
            role="assistant",
            content=_together(self.texts),
            reasoning="".join(self.reasoning) if self.reasoning else None,
            tool_calls=tuple(self.calls),
            aside={"items": self.rests} if self.rests else {},
        )


class Transcript:
    """Takes items in order. `messages` is complete after `end`."""

    def __init__(self, toolbox: Toolbox) -> None:
        self.messages: list[Message] = []
        self.unseen: list[Json] = []
        self._toolbox = toolbox
        self._turn: _Turn | None = None
        self._readers: dict[str, Callable[[Json, str], None]] = {
            "message": self._message,
            "reasoning": self._reasoning,
            "function_call": self._function_call,
            "custom_tool_call": self._custom_call,
            "local_shell_call": self._local_shell_call,
            "function_call_output": self._output,
            "custom_tool_call_output": self._output,
            "local_shell_call_output": self._output,
            "additional_tools": self._additional_tools,
        }

    def add(self, item: Any, at: str) -> None:
        """Take one item. Raises `RequestError` naming what cannot be read."""
        if not isinstance(item, dict):
            raise invalid(at, f"'{at}' must be an object.")
        kind = item.get("type") or ("message" if "role" in item else None)
        reader = self._readers.get(kind) if isinstance(kind, str) else None
        if reader is not None:
            reader(item, at)
        elif kind in UNSEEN:
            self.unseen.append({"before_message": len(self.messages) + (self._turn is not None), **item})
        else:
            hint = " Nothing is stored here: send the item itself." if kind == "item_reference" else ""
            raise unsupported(f"{at}.type", f"Items of type {str(kind)[:60]!r} are not supported.{hint}")

    def end(self) -> tuple[Message, ...]:
        """All messages."""
        self._close()
        return tuple(self.messages)

    def _close(self) -> None:
        turn, self._turn = self._turn, None
        if turn is None:
            return
        if turn.reasoning or turn.texts or turn.calls:
            self.messages.append(turn.message())
        else:
            self.unseen += [{"before_message": len(self.messages), **rest} for rest in turn.rests]

    def _say(self, message: Message) -> None:
        self._close()
        self.messages.append(message)

    def _open(self, item: Json, kind: str, known: tuple[str, ...]) -> _Turn:
        """The turn that `item` belongs to; what is not `known` of it is kept there."""
        found = OURS.fullmatch(item["id"]) if isinstance(item.get("id"), str) else None
        call = found[1] if found else None
        if self._turn is None or not self._turn.continued_by(kind, call):
            self._close()
            self._turn = _Turn(call)
        self._turn.call = self._turn.call or call
        self._turn.rests += _rest(item, known)
        return self._turn

    def _message(self, item: Json, at: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise invalid(f"{at}.role", f"'{at}.role' must be one of {', '.join(ROLES)}.")
        said, known = content(item.get("content"), f"{at}.content"), ("type", "role", "content")
        if role == "assistant":
            self._open(item, "message", known).texts.append(joined(said))
        else:
            self._say(Message(role=cast("Role", role), content=said, aside=_aside(item, known)))

    def _reasoning(self, item: Json, at: str) -> None:
        text = text_of(item.get("content"), f"{at}.content")
        summary = text_of(item.get("summary"), f"{at}.summary")
        known = ("type", "content") if text else ("type", "content", "summary")
        turn = self._open(item, "reasoning", known)
        if text or summary:
            turn.reasoning.append(text or summary)

    def _function_call(self, item: Json, at: str) -> None:
        arguments = _string(item, "arguments", at)
        self._call(item, at, called(item, at), arguments, ("type", "call_id", "name", "namespace", "arguments"))

    def _custom_call(self, item: Json, at: str) -> None:
        arguments = custom_arguments(_string(item, "input", at))
        self._call(item, at, called(item, at), arguments, ("type", "call_id", "name", "namespace", "input"))

    def _local_shell_call(self, item: Json, at: str) -> None:
        action = item.get("action")
        if not isinstance(action, dict):
            raise invalid(f"{at}.action", f"'{at}.action' must be an object.")
        arguments = msgspec.json.encode(action).decode()
        self._call(item, at, "local_shell", arguments, ("type", "call_id", "action"))

    def _call(self, item: Json, at: str, name: str, arguments: str, known: tuple[str, ...]) -> None:
        call = ToolCall(_string(item, "call_id", at), name, arguments)
        self._open(item, "call", known).calls.append(call)

    def _output(self, item: Json, at: str) -> None:
        key = "call_id" if item.get("call_id") is not None else "id"
        said = content(item.get("output"), f"{at}.output")
        aside = _aside(item, ("type", key, "output"))
        self._say(Message(role="tool", content=said, tool_call_id=_string(item, key, at), aside=aside))

    def _additional_tools(self, item: Json, at: str) -> None:
        self._toolbox.add(item.get("tools"), f"{at}.tools")
        self.unseen += _rest(item, ("type", "role", "tools"))


def _together(texts: list[str | tuple[Json, ...]]) -> str | tuple[Json, ...] | None:
    if all(isinstance(text, str) for text in texts):
        return "".join(cast("list[str]", texts)) if texts else None
    return tuple(part for text in texts for part in _as_parts(text))


def _as_parts(text: str | tuple[Json, ...]) -> tuple[Json, ...]:
    return ({"type": "text", "text": text},) if isinstance(text, str) else text


def _rest(item: Json, known: tuple[str, ...]) -> list[Json]:
    """What is left of an item, with its type, unless nothing is."""
    left = meaningful({key: value for key, value in item.items() if key not in known})
    return [{"type": item.get("type", "message"), **left}] if left else []


def _aside(item: Json, known: tuple[str, ...]) -> Json:
    rest = _rest(item, known)
    return {"items": rest} if rest else {}


def _string(item: Json, key: str, at: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise invalid(f"{at}.{key}", f"'{at}.{key}' must be a string.")
    return value
