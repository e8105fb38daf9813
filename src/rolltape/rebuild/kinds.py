"""What kind a call is that no profile marked, read from its tokens alone. Pure.

Structure never overrules a mark, and what it cannot prove stays what it was: an agent's call. Three things show:

    probe       one token was asked for, and nothing goes on from it
    subagent    a conversation begins with another system prompt, around words that a call sampled which goes on itself
    compaction  the history was dropped, and a reply that nobody extends stands in the new, shorter one

Only conversations that begin afresh are searched for what others sampled: a prompt that holds another call's whole
prompt continues it, whatever became of the reply. The search is linear in their tokens.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rolltape.rebuild.strands import Point
from rolltape.rebuild.tree import CallTree
from rolltape.record import TokenEntry
from rolltape.tokens import IntArray, common_prefix

Kind: TypeAlias = tuple[str, str]
"""A kind and its evidence in words."""
Codes: TypeAlias = NDArray[np.uint64]

BLOCK = 8
QUOTE = 16
"""Ids that two texts hardly share by chance."""
SUMMARY = 32
_TAIL = 64  # ids before the reply's own header, in which a prompt's last message shows
_CANDIDATES = 8  # more replies than these in one prompt is a history, not a summary
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def by_structure(tree: CallTree) -> dict[str, Kind]:
    """The calls that no one classified and that structure proves to be no agent's, with the evidence."""
    if not any(tree.entries[call].kind is None for call in tree.nodes):
        return {}
    found = dict(_probes(tree))
    beginnings = _beginnings(tree, found)
    if len(beginnings) > 1:
        sampled = _Sampled.of(tree, found)
        for group in beginnings:
            for call, kind in _told_by(tree, group, sampled):
                found.setdefault(call, kind)
    return found


def _probes(tree: CallTree) -> Iterator[tuple[str, Kind]]:
    short = [call for call in tree.nodes if _may_be_probe(tree, call)]
    if not short or len(short) == sum(tree.parents[call] is None for call in tree.nodes):
        return  # a rollout of nothing else: then one token is how its agent answers
    longest = max(entry.length for entry in tree.entries.values())
    for call in short:
        entry = tree.entries[call]
        asked = _asked(entry)
        if asked is not None and asked <= 1:
            yield call, ("probe", "structure: one token was asked for, and nothing goes on from it")
        elif asked is None and entry.finish_reason == "length" and entry.length < longest:
            yield call, ("probe", "structure: cut after one token with room for more, and nothing goes on from it")


def _may_be_probe(tree: CallTree, call: str) -> bool:
    entry = tree.entries[call]
    alone = tree.parents[call] is None and call not in tree.followed
    return alone and entry.kind is None and len(entry.generation_token_ids) == 1


def _asked(entry: TokenEntry) -> int | None:
    """How many tokens the harness allowed; None = nobody recorded it."""
    for told in (entry.sampling_asked, entry.extra):
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            if isinstance(value := told.get(name), int):
                return value
    return None


def _beginnings(tree: CallTree, found: Mapping[str, Kind]) -> list[list[str]]:
    """Calls without parent, by prompt; without those that hold another's whole prompt."""
    groups: dict[Point, list[str]] = defaultdict(list)
    for call in tree.nodes:
        if tree.parents[call] is None and call not in found:
            groups[tree.prompts[call]].append(call)
    continued = {
        one.call
        for one in tree.breaks
        if one.nearest is not None and one.first_divergence >= len(tree.entries[one.nearest].prompt_token_ids)
    }
    return [group for group in groups.values() if continued.isdisjoint(group)]


@dataclass(frozen=True, slots=True)
class _Sampled:
    """Every aligned block of sampled ids, by code."""

    codes: Codes
    calls: NDArray[np.int64]
    offsets: NDArray[np.int64]
    names: Sequence[str]
    roots: Mapping[str, str]
    likely: NDArray[np.bool_]

    @classmethod
    def of(cls, tree: CallTree, found: Mapping[str, Kind]) -> "_Sampled":
        names = [call for call in tree.nodes if call not in found]
        codes = [_codes(tree.entries[call].generation_token_ids)[::BLOCK] for call in names]
        sizes = [len(one) for one in codes]
        flat = np.concatenate(codes) if codes else np.empty(0, np.uint64)
        order = np.argsort(flat, kind="stable")
        likely = np.zeros(1 << 16, np.bool_)
        likely[flat & np.uint64(0xFFFF)] = True
        calls = np.repeat(np.arange(len(names)), sizes)[order]
        offsets = np.concatenate([np.arange(size) * BLOCK for size in sizes] or [np.empty(0, np.int64)])[order]
        return cls(flat[order], calls, offsets, names, _roots(tree), likely)

    def hits(self, codes: Codes) -> "_Hits":
        """The blocks that a prompt with these codes holds."""
        at = np.flatnonzero(self.likely[codes & np.uint64(0xFFFF)])
        first = np.searchsorted(self.codes, codes[at], side="left")
        many = np.minimum(np.searchsorted(self.codes, codes[at], side="right") - first, _CANDIDATES)
        at, first, many = at[many > 0], first[many > 0], many[many > 0]
        which = np.repeat(first - np.cumsum(many) + many, many) + np.arange(many.sum())
        return _Hits(self.calls[which], self.offsets[which], np.repeat(at, many))


@dataclass(frozen=True, slots=True)
class _Hits:
    """Parallel: a call's number, the offset in what it sampled, the position in the prompt."""

    calls: NDArray[np.int64]
    offsets: NDArray[np.int64]
    places: NDArray[np.int64]

    def of(self, call: int) -> list[tuple[int, int]]:
        """(offset, position) of the call's blocks."""
        own = self.calls == call
        return list(zip(self.offsets[own].tolist(), self.places[own].tolist(), strict=True))


def _codes(ids: IntArray) -> Codes:
    """A code for each run of `BLOCK` ids; equal runs have equal codes."""
    codes, factor = ids.astype(np.uint64) + np.uint64(1), _FACTOR
    for step in (1, 2, 4):
        codes = codes[:-step] * factor + codes[step:]
        factor = np.uint64(int(factor) ** 2 & (2**64 - 1))
    return codes


@dataclass(frozen=True, slots=True)
class _Quote:
    """Sampled ids `start`.. of `call` stand at `at` in a prompt, `length` of them."""

    call: str
    start: int
    at: int
    length: int


def _told_by(tree: CallTree, group: Sequence[str], sampled: _Sampled) -> Iterator[tuple[str, Kind]]:
    """What the prompt that `group` shares proves of other calls, or of the group."""
    first = tree.entries[group[0]]
    prompt = first.prompt_token_ids
    codes = _codes(prompt)
    hits = sampled.hits(codes)
    others = [i for i in np.unique(hits.calls).tolist() if sampled.roots[sampled.names[i]] not in group]
    summaries = [i for i in others if _may_be_summary(tree, sampled.names[i], first)]
    for i in summaries if len(summaries) <= _CANDIDATES else ():
        quote = _longest(tree, sampled.names[i], hits.of(i), prompt)
        if _is_summary(tree, quote, sampled.roots[quote.call], prompt, codes):
            where = (
                f"{quote.length} of its {_size(tree, quote.call)} sampled ids open the shorter history of {group[0]}"
            )
            yield quote.call, ("compaction", f"structure: nothing extends it, and {where}")
    if len(others) == 1 and all(tree.entries[call].kind is None for call in group):
        quote = _longest(tree, sampled.names[others[0]], hits.of(others[0]), prompt)
        if _is_task(tree, quote, sampled.roots[quote.call], first, codes):
            what = f"it begins otherwise, around {quote.length} ids that {quote.call} sampled, which goes on"
            yield from _family(tree, group, f"structure: {what}")


def _roots(tree: CallTree) -> dict[str, str]:
    roots: dict[str, str] = {}
    for call in tree.nodes:  # parents first
        parent = tree.parents[call]
        roots[call] = call if parent is None else roots[parent]
    return roots


def _size(tree: CallTree, call: str) -> int:
    return len(tree.entries[call].generation_token_ids)


def _longest(tree: CallTree, call: str, hits: Sequence[tuple[int, int]], prompt: IntArray) -> _Quote:
    """The longest run around any of `hits`, and on each diagonal only what no run has covered."""
    ids = tree.entries[call].generation_token_ids
    best, covered = _Quote(call, 0, 0, 0), dict[int, int]()
    for start, at in hits:
        if at < covered.get(at - start, 0):
            continue
        ahead = common_prefix(ids[start:], prompt[at:])
        behind = common_prefix(ids[:start][::-1], prompt[:at][::-1])
        covered[at - start] = at + ahead
        if ahead + behind > best.length:
            best = _Quote(call, start - behind, at - behind, ahead + behind)
    return best


def _may_be_summary(tree: CallTree, call: str, after: TokenEntry) -> bool:
    entry = tree.entries[call]
    ends = entry.kind is None and call not in tree.followed
    return ends and len(entry.prompt_token_ids) > len(after.prompt_token_ids) and _size(tree, call) >= SUMMARY


def _is_summary(tree: CallTree, quote: _Quote, root: str, prompt: IntArray, codes: Codes) -> bool:
    """One conversation (its beginning is shared), whose history has gone and whose last request is not repeated."""
    asked = tree.entries[quote.call].prompt_token_ids
    shared = common_prefix(asked, prompt)
    beginning = len(tree.entries[root].prompt_token_ids)
    whole = quote.length >= max(SUMMARY, 0.6 * _size(tree, quote.call))
    dropped = 2 * (quote.at - shared) <= len(asked) - shared
    return whole and dropped and 2 * shared >= beginning and not _repeats(asked, shared, codes, quote.at)


def _is_task(tree: CallTree, quote: _Quote, root: str, first: TokenEntry, codes: Codes) -> bool:
    """A part of what a call sampled that others extend, in a prompt that leaves that call's conversation early."""
    caller, main = tree.entries[quote.call], tree.entries[root]
    shared = common_prefix(main.prompt_token_ids, first.prompt_token_ids)
    begins_otherwise = 2 * shared < min(len(main.prompt_token_ids), len(first.prompt_token_ids))
    part = QUOTE <= quote.length <= _size(tree, quote.call) - 4
    late = not first.started_at or not caller.created_at or first.started_at >= caller.created_at
    goes_on = quote.call in tree.followed and caller.kind in (None, "agent", "subagent")
    return begins_otherwise and part and late and goes_on and not _repeats(caller.prompt_token_ids, 0, codes, quote.at)


def _repeats(asked: IntArray, shared: int, codes: Codes, before: int) -> bool:
    """Whether what `asked` ends with, its reply's header apart, stands in the prompt before position `before`."""
    tail = _codes(asked[max(shared, len(asked) - _TAIL - BLOCK) : -BLOCK])
    return bool(np.isin(tail, codes[max(0, before - 4 * _TAIL) : before]).any())


def _family(tree: CallTree, group: Sequence[str], evidence: str) -> Iterator[tuple[str, Kind]]:
    yield from ((call, ("subagent", evidence)) for call in group)
    waiting = [*group]
    while waiting:
        for call in tree.children.get(waiting.pop(), ()):
            if tree.entries[call].kind is None:
                yield call, ("subagent", f"structure: goes on from {group[0]}")
            waiting.append(call)
