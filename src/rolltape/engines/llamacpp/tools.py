"""Hermes tool calls in a stream of text: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

A pure machine over text: however the text is cut into pieces, the same things come out. Rules:

* What may still become a tag is held back, everything else passes at once.
* A call comes out whole, at its closing tag. `arguments` is the very text that was sampled, never re-serialised, so
  that the next prompt can repeat it to the letter.
* What is no well-formed call stays visible as text, tags included. Nothing is repaired: an unclosed call is text.
* A closing tag inside a JSON string is part of the string.
* White space between two calls, or after the last one, is what the template puts there itself: it is dropped unless
  other text follows.
"""

import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from rolltape.chat import ToolCallDelta

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
BLANK = " \t\r\n"


def new_call_id() -> str:
    """`call_` and 24 hex digits, as OpenAI's ids look."""
    return f"call_{secrets.token_hex(12)}"


@dataclass(frozen=True, slots=True)
class Found:
    """What a piece of text made visible. Text and calls are in order only within themselves, as in a chat reply."""

    text: str = ""
    calls: tuple[ToolCallDelta, ...] = ()


class ToolCallParser:
    """Fed with text, gives visible text and finished calls. `count` is how many calls came out so far."""

    def __init__(self, new_id: Callable[[], str] = new_call_id) -> None:
        self.count = 0
        self._new_id = new_id
        self._rest = ""
        self._blank: str | None = None
        """White space right after a call, not yet known to belong to visible text; None = not right after a call."""

    def feed(self, text: str) -> Found:
        """Take the next piece."""
        self._rest += text
        return self._collect(final=False)

    def close(self) -> Found:
        """The stream has ended: what was held back is text."""
        return self._collect(final=True)

    def _collect(self, *, final: bool) -> Found:
        texts: list[str] = []
        calls: list[ToolCallDelta] = []
        for piece in self._pieces(final=final):
            if isinstance(piece, str):
                texts.append(self._visible(piece))
            else:
                calls.append(piece)
                self._blank = ""
        return Found("".join(texts), tuple(calls))

    def _visible(self, text: str) -> str:
        if self._blank is None:
            return text
        text = self._blank + text
        self._blank = None if text.strip(BLANK) else text
        return text if self._blank is None else ""

    def _pieces(self, *, final: bool) -> Iterator[str | ToolCallDelta]:
        while self._rest:
            start = self._rest.find(OPEN)
            if start < 0:
                kept = 0 if final else _held(self._rest, OPEN)
                text, self._rest = _cut(self._rest, len(self._rest) - kept)
                yield text
                return
            if start:
                text, self._rest = _cut(self._rest, start)
                yield text
            end = _closing(self._rest)
            if end is None and not final:
                return
            call = self._call(self._rest[len(OPEN) : end - len(CLOSE)]) if end is not None else None
            text, self._rest = _cut(self._rest, end if call and end is not None else len(OPEN))
            yield call or text

    def _call(self, body: str) -> ToolCallDelta | None:
        fields = call_fields(body)
        if fields is None:
            return None
        name, arguments = fields
        self.count += 1
        return ToolCallDelta(index=self.count - 1, id=self._new_id(), name=name, arguments=arguments)


def _cut(text: str, at: int) -> tuple[str, str]:
    return text[:at], text[at:]


def _held(text: str, tag: str) -> int:
    """How many characters at the end of `text` may be the beginning of `tag`."""
    return next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:n])), 0)


def _closing(text: str) -> int | None:
    """End of the call that `text` opens with: past the first closing tag that no JSON string swallows, or None."""
    at = text.find(CLOSE)
    while at >= 0:
        if not _ends_in_string(text[len(OPEN) : at]):
            return at + len(CLOSE)
        at = text.find(CLOSE, at + 1)
    return None


def _ends_in_string(body: str) -> bool:
    inside = escaped = False
    for char in body:
        if escaped:
            escaped = False
        elif inside and char == "\\":
            escaped = True
        elif char == '"':
            inside = not inside
    return inside


def call_fields(body: str) -> tuple[str, str] | None:
    """Name and the arguments' own text of a well-formed call body, else None."""
    try:
        fields = _members(body.strip(BLANK))
        name = _DECODER.decode(fields["name"])
        arguments = fields["arguments"]
    except (ValueError, KeyError, RecursionError):
        return None
    if len(fields) != 2 or not isinstance(name, str) or not name or not arguments.startswith("{"):
        return None
    return name, arguments


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def _members(text: str) -> dict[str, str]:
    """The members of a JSON object, each value as its own text. Raises ValueError, also on a repeated key."""
    found: dict[str, str] = {}
    at = _expect(text, 0, "{")
    while True:
        key, at = _value(text, at)
        name = _DECODER.decode(key)
        if not isinstance(name, str) or name in found:
            raise ValueError("a key must be a string and stand once")
        found[name], at = _value(text, _expect(text, at, ":"))
        if text[at : at + 1] == "}":
            break
        at = _expect(text, at, ",")
    if at + 1 != len(text):
        raise ValueError("text after the object")
    return found


def _value(text: str, at: int) -> tuple[str, int]:
    _, end = _DECODER.raw_decode(text, at)
    return text[at:end], _skip(text, end)


def _expect(text: str, at: int, char: str) -> int:
    if text[at : at + 1] != char:
        raise ValueError(f"expected {char!r}")
    return _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    while text[at : at + 1] and text[at] in BLANK:
        at += 1
    return at
