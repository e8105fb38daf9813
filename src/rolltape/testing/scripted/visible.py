"""Sampled ids to what a client sees of them: text, reasoning, and pieces of tool calls.

A real engine's parser in small. It holds back what is not whole (a character, a tool's name), so a token may show
nothing and a later one more; the ids are never held back.
"""

import codecs
import secrets
from dataclasses import dataclass

from rolltape.chat import ToolCallDelta
from rolltape.testing.scripted.tokenizer import IM_END, THINK, TOOL_CALL


@dataclass(frozen=True, slots=True)
class Piece:
    """One sampled token and what it made visible."""

    token: int
    text: str = ""
    reasoning: str = ""
    tool_call: ToolCallDelta | None = None


class Visible:
    """Feed it the sampled ids one by one. `careless`: characters are not waited for, broken ones show as U+FFFD."""

    def __init__(self, *, careless: bool = False) -> None:
        self._careless = careless
        self._within = IM_END
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._name: str | None = None
        self._calls = 0

    def feed(self, token: int) -> Piece:
        """What `token` shows."""
        if token < 256:
            return self._shown(token, self._decode(token))
        self._decoder.reset()
        self._name = "" if token == TOOL_CALL else None
        self._within = token if token in (THINK, TOOL_CALL) else IM_END
        return Piece(token)

    def _decode(self, token: int) -> str:
        byte = bytes((token,))
        return byte.decode("utf-8", "replace") if self._careless else self._decoder.decode(byte)

    def _shown(self, token: int, text: str) -> Piece:
        if self._within == THINK:
            return Piece(token, reasoning=text)
        if self._within != TOOL_CALL:
            return Piece(token, text=text)
        if self._name is None:
            return Piece(token, tool_call=ToolCallDelta(self._calls - 1, arguments=text) if text else None)
        if text != "\n":
            self._name += text
            return Piece(token)
        name, self._name = self._name, None
        return Piece(token, tool_call=self._named(name))

    def _named(self, name: str) -> ToolCallDelta:
        self._calls += 1
        return ToolCallDelta(self._calls - 1, id=f"call_{secrets.token_hex(12)}", name=name)
