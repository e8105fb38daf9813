"""Both sides of a break in tokens: what stands at the first position that differs, and how the two go on. Pure.

Texts of tokens are bytes, since a token may end inside a character, and only the engine's tokenizer knows them: they
come from a `TokenText` that the caller hands in, or there are none.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rolltape.record import TokenEntry
from rolltape.tokens import IntArray

_SLACK = 8  # so many tokens may differ on one side before both go on alike
_ALIKE = 6  # so many tokens in a row say that two sides go on alike
_REACH = 96  # tokens of text that are looked at on each side


class TokenText(Protocol):
    """Texts of single tokens."""

    def __call__(self, token: int) -> bytes:
        """The bytes that `token` adds to the text; a control token's own name."""
        ...


@dataclass(frozen=True, slots=True)
class Token:
    """One token; `text` is None where nobody can tell, broken characters are replaced."""

    id: int
    text: str | None

    def to_json(self) -> dict[str, object]:
        return {"id": self.id, "text": self.text}


@dataclass(frozen=True, slots=True)
class Hunk:
    """Where `ours` (a whole call) and `theirs` (the prompt of another) first differ: at index `at` of both."""

    ours: TokenEntry
    theirs: TokenEntry
    at: int
    text: TokenText | None = None

    def was(self) -> Token | None:
        """The token of the call that was left; None where it ends."""
        return self._token(_ids(self.ours, self.at, 1))

    def now(self) -> Token | None:
        """The token of the prompt that leaves it; None where it ends."""
        return self._token(self.theirs.prompt_token_ids[self.at : self.at + 1])

    def texts(self) -> tuple[bytes, bytes]:
        """What follows on both sides, some `_REACH` tokens of it; empty without a `TokenText`."""
        sides = _ids(self.ours, self.at, _REACH), self.theirs.prompt_token_ids[self.at : self.at + _REACH]
        return spelled(sides[0], self.text), spelled(sides[1], self.text)

    def before(self, start: int) -> str:
        """The text that both have from `start` to here."""
        return spelled(self.theirs.prompt_token_ids[start : self.at], self.text).decode(errors="ignore")

    def resumes(self) -> tuple[int, int] | None:
        """(tokens left out of ours, tokens put in) after which both go on alike, the least of them; None if never.

        At most one side differs by more than a few tokens: this finds what was taken out or put in, not what was
        rewritten at length.
        """
        ours, theirs = _ids(self.ours, self.at), self.theirs.prompt_token_ids[self.at :]
        found = [(x, y) for y in range(_SLACK) for x in _first(theirs[y : y + _ALIKE], ours)]
        found += [(x, y) for x in range(_SLACK) for y in _first(ours[x : x + _ALIKE], theirs)]
        return min(found, key=sum, default=None)

    def _token(self, ids: IntArray) -> Token | None:
        if not len(ids):
            return None
        text = None if self.text is None else self.text(int(ids[0])).decode(errors="replace")
        return Token(int(ids[0]), text)


def spelled(ids: Iterable[int], text: TokenText | None) -> bytes:
    return b"" if text is None else b"".join(text(int(token)) for token in ids)


def _ids(entry: TokenEntry, at: int, count: int | None = None) -> IntArray:
    """The ids of the whole call from `at`, `count` of them or all."""
    prompt = len(entry.prompt_token_ids)
    if at >= prompt:
        rest = entry.generation_token_ids[at - prompt :]
    else:
        rest = np.concatenate([entry.prompt_token_ids[at:], entry.generation_token_ids])
    return rest if count is None else rest[:count]


def _first(wanted: IntArray, ids: IntArray) -> Iterable[int]:
    """The first place of the whole run `wanted` in `ids`, if there is one."""
    size = len(wanted)
    if size < _ALIKE or len(ids) < size:
        return
    for start in np.flatnonzero(ids[: len(ids) - size + 1] == wanted[0]).tolist():
        if np.array_equal(ids[start : start + size], wanted):
            yield start
            return
