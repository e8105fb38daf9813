"""Which stored sequence a prompt continues, for each rollout in memory.

A tree of token sequences as `tokens.PrefixTree`, made for growing chains: a line is one contiguous buffer that a chain
of calls appends to, and a fork is a line of its own. So finding the parent of call 200 is one comparison of memory,
not 200 steps. Lines also keep SHA-256 states at the ends of prompts, from which the digest of a longer prompt is
continued instead of computed anew.

Only the writer's thread uses it. What is in here can always be had from the file again.
"""

import hashlib
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional

import numpy as np

from rolltape.tokens import IntArray, common_prefix

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

IDS_KEPT = 16_000_000
"""Over all rollouts: 64 MB, a hundred and more rollouts of 128k tokens."""
_TEXTS_KEPT = 4


@dataclass(slots=True, eq=False)
class _Line:
    """Ids `start:end` of the sequences through it. `ends`, `keys`: where which sequence stops, ascending."""

    start: int
    parent: Optional["_Line"] = None
    ids: IntArray = field(default_factory=lambda: np.empty(0, np.int32))
    end: int = 0
    ends: list[int] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    forks: dict[tuple[int, int], "_Line"] = field(default_factory=dict)
    hashed: list[int] = field(default_factory=list)
    states: list["Hash"] = field(default_factory=list)

    def tail(self, at: int) -> IntArray:
        return self.ids[at - self.start : self.end - self.start]

    def append(self, ids: IntArray) -> None:
        used, wanted = self.end - self.start, self.end - self.start + len(ids)
        if wanted > len(self.ids):
            grown = np.empty(max(wanted, used + used // 2), np.int32)
            grown[:used] = self.ids[:used]
            self.ids = grown
        self.ids[used:wanted] = ids
        self.end += len(ids)

    def end_here(self, at: int, key: int) -> None:
        place = bisect_right(self.ends, at)
        self.ends.insert(place, at)
        self.keys.insert(place, key)

    def hash_here(self, at: int, state: "Hash") -> None:
        place = bisect_left(self.hashed, at)
        if place == len(self.hashed) or self.hashed[place] != at:
            self.hashed.insert(place, at)
            self.states.insert(place, state)


@dataclass(slots=True)
class Found:
    """Where a prompt runs in a lineage.

    `base`/`depth`: a sequence that shares the most leading ids, and how many. `parent`/`parent_length`: the longest
    whole sequence that starts the prompt. None and 0 where there is none. `state` has hashed the whole prompt.
    """

    base: int | None
    depth: int
    parent: int | None
    parent_length: int
    state: "Hash"
    line: _Line

    @property
    def digest(self) -> bytes:
        return self.state.digest()


class Lineage:
    """The sequences of one rollout. `cursor` is the newest `seq` that it knows."""

    def __init__(self) -> None:
        self._root = _Line(0)
        self._places: dict[int, tuple[_Line, int]] = {}
        self._calls: dict[int, str] = {}
        self._texts: OrderedDict[int, bytes] = OrderedDict()
        self.cursor = 0
        self.size = 0
        """In ids, texts included."""
        self.counted = 0
        """How much of `size` the `Lineages` have counted."""

    def find(self, prompt: IntArray) -> Found:
        line, at = self._root, 0
        base, parent, parent_length = None, None, 0
        hashed, state = 0, hashlib.sha256()
        while True:
            at += common_prefix(line.tail(line.start), prompt[at:])
            if at > line.start:
                base = line.keys[bisect_left(line.ends, at)]
            if whole := bisect_right(line.ends, at):
                parent_length = line.ends[whole - 1]
                parent = line.keys[bisect_left(line.ends, parent_length)]
            if known := bisect_right(line.hashed, at):
                hashed, state = line.hashed[known - 1], line.states[known - 1]
            child = line.forks.get((at, int(prompt[at]))) if at < len(prompt) else None
            if child is None:
                break
            line = child
        state = state.copy()
        state.update(np.ascontiguousarray(prompt[hashed:], dtype="<i4").data)
        return Found(base, at, parent, parent_length, state, line)

    def add(self, key: int, call_id: str, prompt: IntArray, generation: IntArray, found: Found) -> None:
        """Insert prompt + generation of a call under `key`; `found` is what `find(prompt)` just said."""
        line, at, end = found.line, found.depth, len(prompt) + len(generation)
        if at < len(prompt):
            line = self._grow(line, at, np.concatenate([prompt[at:], generation]))
            line.hash_here(len(prompt), found.state)
        else:
            line.hash_here(at, found.state)
            line, at = self._walk(line, at, generation)
            line = self._grow(line, at, generation[at - len(prompt) :])
        if end:
            line.end_here(end, key)
        self._places[key] = (line, end)
        self._calls[key] = call_id
        self.cursor = max(self.cursor, key)

    def prefix(self, key: int, length: int) -> IntArray | None:
        """The first `length` ids of the sequence under `key`; None when it is not known or not as long."""
        line, end = self._places.get(key, (None, 0))
        if line is None or length > end:
            return None
        ids = np.empty(length, np.int32)
        while line is not None:
            if length > line.start:
                ids[line.start : length] = line.ids[: length - line.start]
                length = line.start
            line = line.parent
        return ids

    def call_id(self, key: int) -> str:
        """Whose sequence is under `key`."""
        return self._calls[key]

    def text(self, key: int) -> bytes | None:
        """The request text of `key` where it is still at hand; of few, those that were asked for last."""
        if (text := self._texts.get(key)) is not None:
            self._texts.move_to_end(key)
        return text

    def keep_text(self, key: int, text: bytes) -> None:
        self._texts[key] = text
        self.size += len(text) // 4
        while len(self._texts) > _TEXTS_KEPT:
            self.size -= len(self._texts.popitem(last=False)[1]) // 4

    def _walk(self, line: _Line, at: int, ids: IntArray) -> tuple[_Line, int]:
        start = at
        while True:
            at += common_prefix(line.tail(at), ids[at - start :])
            child = line.forks.get((at, int(ids[at - start]))) if at - start < len(ids) else None
            if child is None:
                return line, at
            line = child

    def _grow(self, line: _Line, at: int, ids: IntArray) -> _Line:
        if not len(ids):
            return line
        if line is self._root or at < line.end:
            fork = _Line(at, line, end=at)
            line.forks[at, int(ids[0])] = fork
            line = fork
        line.append(ids)
        self.size += len(ids)
        return line


class Lineages:
    """The lineages of the rollouts written last, within `ids_kept` ids together."""

    def __init__(self, ids_kept: int = IDS_KEPT) -> None:
        self._kept: OrderedDict[int, Lineage] = OrderedDict()
        self._limit = ids_kept
        self._total = 0
        self._lent: Lineage | None = None

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, rollout: int) -> Lineage:
        """The lineage of rollout number `rollout`, empty if it has to be read again."""
        self._count_growth()
        self._lent = self._kept.setdefault(rollout, Lineage())
        self._kept.move_to_end(rollout)
        while self._total > self._limit and len(self._kept) > 1:
            self._total -= self._kept.popitem(last=False)[1].counted
        return self._lent

    def forget(self) -> None:
        """Drop all, when what they hold may not be in the file."""
        self._kept.clear()
        self._total = 0
        self._lent = None

    def discard(self, rollouts: Iterable[int]) -> None:
        """Drop what nobody will continue."""
        self._count_growth()
        self._lent = None
        for rollout in rollouts:
            if (dropped := self._kept.pop(rollout, None)) is not None:
                self._total -= dropped.counted

    def _count_growth(self) -> None:
        if self._lent is not None:
            self._total += self._lent.size - self._lent.counted
            self._lent.counted = self._lent.size
