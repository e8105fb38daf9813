"""The call tree: which call extends which, by exact tokens and nothing else.

A call's parent is the call whose prompt + generation is the longest exact prefix of its prompt. Nodes are completed
calls whose sampled ids are exact and at least one. Calls that failed, were refused, cancelled or sampled nothing are
no nodes; but what their prompt extends is evidence of which attempt the harness went on with, so they get a parent.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rolltape.rebuild.policy import KindPolicy, Use
from rolltape.rebuild.strands import Nearest, Parts, Point, Route, Strands
from rolltape.record import Delivery, Outcome, TokenEntry
from rolltape.tokens import digest

_DELIVERY_RANK = {Delivery.DELIVERED: 0, Delivery.UNKNOWN: 1, Delivery.UNDELIVERED: 2}


@dataclass(frozen=True, slots=True)
class PrefixBreak:
    """A call whose prompt goes along with another call's ids and then leaves them.

    `first_divergence` is the first position where they differ; `nearest` is None where they share nothing. `cause` is
    one of `breaks.Cause`; without the texts of both calls it is mostly unknown.
    """

    call: str
    nearest: str | None
    first_divergence: int
    cause: str = "unknown"

    def to_json(self) -> dict[str, object]:
        return {
            "call": self.call,
            "nearest": self.nearest,
            "first_divergence": self.first_divergence,
            "cause": self.cause,
        }


@dataclass(frozen=True, slots=True)
class CallTree:
    """All calls of a rollout and how they hang together. Ids are model call ids."""

    entries: Mapping[str, TokenEntry]
    """Every call once."""
    conflicts: tuple[str, ...]
    """Ids that came with two different payloads; one of them is in `entries`."""
    nodes: tuple[str, ...]
    """Completed calls that sampled something, token-equal attempts once; shorter prompts first."""
    duplicates: Mapping[str, str]
    """Token-equal attempts -> the node that stands for them."""
    parents: Mapping[str, str | None]
    """Of nodes, duplicates and evidence calls; always a node."""
    children: Mapping[str, Sequence[str]]
    """Node -> nodes."""
    followed: frozenset[str]
    """Nodes that some call's prompt extends, however that call ended."""
    passed: frozenset[str]
    """Nodes whose own prompt some call's prompt extends: the conversation went on from there, in whatever tokens."""
    kept: Mapping[str, int]
    """How many of a call's first sampled ids some longer prompt has in their place: all where it is extended, some
    where the harness cut or rewrote the turn, or kept what it had of a reply that broke off."""
    prompts: Mapping[str, Point]
    """Equal points are identical prompts."""
    breaks: tuple[PrefixBreak, ...]
    """Where no whole call is a prefix, and where a call leaves another inside what that one sampled."""
    branches: tuple[PrefixBreak, ...]
    """Where a call that extends one whole call goes along with another of its successors, and leaves that one in text
    that nobody sampled: no break, but what its successor sampled is out of the call's history all the same."""
    unconfirmed: Mapping[str, str]
    """Call -> why the parent that its entry claims is none by its tokens."""

    def path(self, call: str) -> list[str]:
        """Root first, `call` last."""
        found = [*self.upwards(call)]
        return found[::-1]

    def upwards(self, call: str) -> Iterator[str]:
        at: str | None = call
        while at is not None:
            yield at
            at = self.parents[at]

    def node_for(self, call: str) -> str:
        return self.duplicates.get(call, call)


def is_node(entry: TokenEntry, policy: KindPolicy) -> bool:
    sampled = entry.outcome is Outcome.COMPLETED and len(entry.generation_token_ids) > 0
    return sampled and entry.ids_exact and policy.use(entry) is not Use.DROP


def unique(entries: Iterable[TokenEntry]) -> tuple[dict[str, TokenEntry], tuple[str, ...]]:
    """Each id once, in an order that depends on nothing but ids, and the ids that came with other contents too."""
    by_id: dict[str, list[TokenEntry]] = defaultdict(list)
    for entry in entries:
        by_id[entry.model_call_id].append(entry)
    conflicts = []
    kept = {}
    for call, same in sorted(by_id.items()):
        kept[call] = same[0] if len(same) == 1 else min(same, key=_preference)
        if len(same) > 1 and len({_content(entry) for entry in same}) > 1:
            conflicts.append(call)
    return kept, tuple(conflicts)


def _content(entry: TokenEntry) -> tuple[str, ...]:
    ids = digest(entry.prompt_token_ids), digest(entry.generation_token_ids)
    return (*ids, entry.generation_log_probs.tobytes().hex(), entry.outcome)


def _preference(entry: TokenEntry) -> tuple[object, ...]:
    told = (entry.created_at, entry.kind or "", entry.engine, entry.response_id or "", entry.parent_call_id or "")
    return (_content(entry), _DELIVERY_RANK[entry.delivery], *told)


def grow(entries: Iterable[TokenEntry], policy: KindPolicy) -> CallTree:
    """The tree of `entries`; their order does not matter."""
    calls, conflicts = unique(entries)
    sampled = [call for call, entry in calls.items() if is_node(entry, policy)]
    strands, routes = _lay(calls, sampled)
    prompts = {call: strands.point(routes[call], len(calls[call].prompt_token_ids)) for call in sampled}
    duplicates = _collapse(calls, sampled, prompts, routes, policy)
    nodes = sorted((c for c in sampled if c not in duplicates), key=lambda c: (len(calls[c].prompt_token_ids), c))
    for call in sorted(nodes, key=lambda c: calls[c].delivery is Delivery.UNDELIVERED):  # stable: shorter prompts first
        strands.end(routes[call], call)
    strands.close()
    routes |= {call: strands.find(_prompt(entry)) for call, entry in calls.items() if call not in routes}
    parents = {
        call: _seen_by(calls, entry, strands.longest_whole(routes[call], len(entry.prompt_token_ids)))
        for call, entry in calls.items()
        if call in prompts or entry.outcome is not Outcome.COMPLETED or entry.ids_exact
    }
    children: dict[str, list[str]] = defaultdict(list)
    for call in nodes:
        if (parent := parents[call]) is not None:
            children[parent].append(call)
    departures = [*_departures(calls, nodes, parents, prompts, strands, routes)]
    return CallTree(
        entries=calls,
        conflicts=conflicts,
        nodes=tuple(nodes),
        duplicates=duplicates,
        parents=parents,
        children=children,
        followed=frozenset(parent for parent in parents.values() if parent is not None),
        passed=frozenset(_passed(calls, nodes, prompts, routes)),
        kept=_kept(calls, strands, routes, frozenset(sampled)),
        prompts=prompts,
        breaks=tuple(found for found, broken in departures if broken),
        branches=tuple(found for found, broken in departures if not broken),
        unconfirmed=_unconfirmed(calls, parents, prompts, strands, routes),
    )


def shown(entry: TokenEntry) -> tuple[object, ...]:
    """What the placeholders of its prompt stand for: ids alone cannot tell two images of one size apart."""
    return tuple(one.get("sha256") or one.get("url") or str(one) for one in entry.media)


def _seen_by(calls: Mapping[str, TokenEntry], entry: TokenEntry, parent: str | None) -> str | None:
    """`parent`, unless it was shown other media than the beginning of `entry`."""
    if parent is None or not calls[parent].media:
        return parent
    told = shown(calls[parent])
    return parent if shown(entry)[: len(told)] == told else None


def _lay(calls: Mapping[str, TokenEntry], sampled: Sequence[str]) -> tuple[Strands[str], dict[str, Route]]:
    strands: Strands[str] = Strands()
    longest_first = sorted(sampled, key=lambda call: (-calls[call].length, call))
    parts = {call: Parts(calls[call].prompt_token_ids, calls[call].generation_token_ids) for call in sampled}
    return strands, {call: strands.add(parts[call]) for call in longest_first}


def _prompt(entry: TokenEntry) -> Parts:
    return Parts(entry.prompt_token_ids, entry.prompt_token_ids[:0])


def _collapse(
    calls: Mapping[str, TokenEntry],
    sampled: Sequence[str],
    prompts: Mapping[str, Point],
    routes: Mapping[str, Route],
    policy: KindPolicy,
) -> dict[str, str]:
    """Token-equal attempts -> the one that stands for them: a delivered one, then the smallest id."""
    equal: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for call in sampled:
        equal[prompts[call], routes[call][-1], shown(calls[call]), policy.trains(calls[call])].append(call)
    duplicates = {}
    for same in equal.values():
        if len(same) > 1:
            first = min(same, key=lambda call: (_DELIVERY_RANK[calls[call].delivery], call))
            duplicates.update({call: first for call in same if call != first})
    return duplicates


def _passed(
    calls: Mapping[str, TokenEntry],
    nodes: Sequence[str],
    prompts: Mapping[str, Point],
    routes: Mapping[str, Route],
) -> Iterator[str]:
    """Nodes whose prompt ends where a longer prompt goes on."""
    reach: dict[int, int] = defaultdict(int)
    for call, route in routes.items():
        longest = len(calls[call].prompt_token_ids) - 1
        for strand, leave in route:
            reach[strand] = max(reach[strand], min(leave, longest))
    for call in nodes:
        strand, depth = prompts[call]
        if depth <= reach.get(strand, -1):
            yield call


def _kept(
    calls: Mapping[str, TokenEntry], strands: Strands[str], routes: Mapping[str, Route], sampled: frozenset[str]
) -> dict[str, int]:
    prompts: Nearest[str] = Nearest(strands)
    for call, route in routes.items():
        size = len(calls[call].prompt_token_ids)
        prompts.note(tuple((at, min(leave, size)) for at, leave in route if strands.start(at) < size), call)
    found = {}
    for call, entry in calls.items():
        parts = Parts(entry.prompt_token_ids, entry.generation_token_ids)
        _, depth = prompts.to(routes[call] if call in sampled else strands.find(parts), entry.length)
        found[call] = max(0, depth - len(entry.prompt_token_ids))
    return found


def _departures(
    calls: Mapping[str, TokenEntry],
    nodes: Sequence[str],
    parents: Mapping[str, str | None],
    prompts: Mapping[str, Point],
    strands: Strands[str],
    routes: Mapping[str, Route],
) -> Iterator[tuple[PrefixBreak, bool]]:
    """`breaks` (True: roots after the first, and calls that leave another one inside what it sampled) and `branches`.

    Only calls with a shorter prompt can have come before, and the nearest of them is always a sibling: had the prompt
    gone past a sibling's end, that sibling would be its parent.
    """
    nearest: Nearest[str] = Nearest(strands)
    seen: set[Point] = set()
    for call in nodes:
        size, parent = len(calls[call].prompt_token_ids), parents[call]
        if seen and prompts[call] not in seen:
            other, depth = nearest.to(routes[call], size)
            if parent is None or (other is not None and _left_inside(calls[parent], calls[other], depth, size)):
                yield PrefixBreak(call, other, depth), True
            elif other is not None and calls[parent].length <= depth < min(size, calls[other].length):
                yield PrefixBreak(call, other, depth), False
        seen.add(prompts[call])
        nearest.note(routes[call], call)


def _left_inside(parent: TokenEntry, other: TokenEntry, depth: int, size: int) -> bool:
    return parent.length < depth < size and len(other.prompt_token_ids) <= depth < other.length


def _unconfirmed(
    calls: Mapping[str, TokenEntry],
    parents: Mapping[str, str | None],
    prompts: Mapping[str, Point],
    strands: Strands[str],
    routes: Mapping[str, Route],
) -> dict[str, str]:
    found = {}
    for call, parent in parents.items():
        claimed = calls[call].parent_call_id
        if claimed is None or claimed == parent or _off_the_tree(calls.get(claimed), calls[call], prompts):
            continue
        if claimed not in prompts:
            found[call] = "parent_call_id_missing" if parent is None else "parent_call_id_missing_recovered"
        elif not _extends(calls[call], calls[claimed], strands, routes[call], routes[claimed]):
            found[call] = "parent_tokens_mismatch"
    return found


def _off_the_tree(claimed: TokenEntry | None, entry: TokenEntry, prompts: Mapping[str, Point]) -> bool:
    """Whether the claim is true, of a call that has no place in the tree: it failed, or sampled nothing."""
    if claimed is None or claimed.model_call_id in prompts:
        return False
    return np.array_equal(entry.prompt_token_ids[: claimed.length], claimed.sequence)


def _extends(entry: TokenEntry, claimed: TokenEntry, strands: Strands[str], route: Route, claimed_route: Route) -> bool:
    """Whether all of `claimed` is a prefix of the entry's prompt."""
    depth = claimed.length
    return depth <= len(entry.prompt_token_ids) and strands.point(route, depth) == claimed_route[-1]
