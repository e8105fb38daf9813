"""Exact prefixes among many token sequences, found without walking them node by node.

A trie with a node a turn is walked in as many steps as there are turns, and a rollout's worth of walks is quadratic.
Here every sequence that is no prefix of another is one *strand*; it leaves an older strand at one depth and the ids
before that are the older one's. Sequences come longest first, so the longest history is a strand of its own and a
shorter one is found on it in one vectorised comparison, however many turns, retries or broken links lie in between.

Ids stay where they are: a strand keeps views of one call's prompt and generation. Where prompts are slices of one
buffer even the comparison costs nothing (`tokens.common_prefix`).
"""

from bisect import bisect_right
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rolltape.tokens import IntArray, common_prefix

Key = TypeVar("Key", bound=Hashable)
Route = tuple[tuple[int, int], ...]
"""(strand, depth at which it is left), root first; the last depth is how far the sequence is known."""
Point = tuple[int, int]
"""(strand, depth): one place in the tree. Equal points are equal token sequences."""

_ROOT = -1
_GLANCE = 64  # sequences that have nothing to do with each other mostly differ within so many ids


@dataclass(frozen=True, slots=True)
class Parts:
    """One sequence in two arrays, never joined."""

    prompt: IntArray
    generation: IntArray

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.generation)

    def rest(self, at: int) -> IntArray:
        """The ids from `at` to the end of the array that holds it."""
        split = len(self.prompt)
        return self.prompt[at:] if at < split else self.generation[at - split :]

    def shared(self, other: "Parts", at: int) -> int:
        """How many leading ids both have, when they agree on the first `at`."""
        limit = min(self.length, other.length)
        while at < limit:
            a, b = self.rest(at), other.rest(at)
            same = common_prefix(a[:_GLANCE], b[:_GLANCE])
            if same == _GLANCE:
                same = common_prefix(a, b)
            at += same
            if same < min(len(a), len(b)):
                break
        return at


@dataclass(slots=True)
class _Strand(Generic[Key]):
    start: int
    ids: Parts
    ends: dict[int, Key] = field(default_factory=dict)
    depths: list[int] = field(default_factory=list)


class Strands(Generic[Key]):
    """Add the sequences longest first, then `close`, then ask."""

    def __init__(self) -> None:
        self._strands: list[_Strand[Key]] = []
        self._branches: dict[tuple[int, int, int], int] = {}

    def add(self, ids: Parts) -> Route:
        """Lay `ids`, which must not be longer than what was added before it."""
        route = self.find(ids)
        strand, at = route[-1] if route else (_ROOT, 0)
        if at == ids.length:
            return route
        self._branches[strand, at, int(ids.rest(at)[0])] = len(self._strands)
        self._strands.append(_Strand(at, ids))
        return (*route, (len(self._strands) - 1, ids.length))

    def find(self, ids: Parts) -> Route:
        """As far as `ids` runs along what was added."""
        hops: list[tuple[int, int]] = []
        strand, at, length = _ROOT, 0, ids.length
        while at < length:
            found = self._branches.get((strand, at, int(ids.rest(at)[0])))
            if found is None:
                break
            strand, at = found, self._strands[found].ids.shared(ids, at)
            hops.append((strand, at))
        return tuple(hops)

    def end(self, route: Route, key: Key) -> None:
        """A whole sequence ends where `route` does; a later key for the same place is ignored."""
        strand, depth = route[-1]
        self._strands[strand].ends.setdefault(depth, key)

    def close(self) -> None:
        for strand in self._strands:
            strand.depths = sorted(strand.ends)

    def start(self, strand: int) -> int:
        return self._strands[strand].start

    def point(self, route: Route, depth: int) -> Point:
        """The place at `depth` on `route`."""
        return next(((strand, depth) for strand, leave in route if leave >= depth), (_ROOT, depth))

    def longest_whole(self, route: Route, depth: int) -> Key | None:
        """The key of the longest sequence that ends on `route` at `depth` or before; None if none does."""
        for strand, leave in reversed(route):
            at = bisect_right(self._strands[strand].depths, min(leave, depth))
            if at:
                return self._strands[strand].ends[self._strands[strand].depths[at - 1]]
        return None


class Nearest(Generic[Key]):
    """The deepest point that a route shares with those noted so far."""

    def __init__(self, strands: Strands[Key]) -> None:
        self._strands = strands
        self._reached: dict[int, tuple[int, Key]] = {}

    def note(self, route: Route, key: Key) -> None:
        for strand, leave in route:
            if leave > self._reached.get(strand, (0, key))[0]:
                self._reached[strand] = (leave, key)

    def to(self, route: Route, depth: int) -> tuple[Key | None, int]:
        """(key, shared ids) for the first `depth` ids of `route`; (None, 0) if nothing shares any."""
        for strand, leave in reversed(route):
            if strand in self._reached and min(leave, depth) > self._strands.start(strand):
                reached, key = self._reached[strand]
                return key, min(leave, depth, reached)
        return None, 0
