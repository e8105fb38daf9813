"""Calls with one identical prompt: which of them the harness went on with.

Evidence decides, in this order: a call that extends an attempt; the harness's own output; delivery. Time never does.
Where the harness went on from this prompt with a turn that is no attempt's by its tokens (rewritten, or rendered
differently), every attempt that arrived is a turn the policy took, and none of them is what the rollout ended with.
What is left open stays open, and masks the rollout: a guess would be off-policy every other time.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rolltape.rebuild.policy import KindPolicy
from rolltape.rebuild.tree import CallTree, shown
from rolltape.record import Delivery


class Standing(StrEnum):
    """What became of a node of the tree."""

    STANDS = "stands"
    REJECTED = "rejected"
    """Delivered, and its harness asked again: trained in a row of its own, since dropping it would hide failure."""
    ABANDONED = "abandoned"
    """Nobody went on with it and it is not known to have been delivered."""
    UNRESOLVED = "unresolved"
    """One of several that the evidence cannot tell apart."""


@dataclass(frozen=True, slots=True)
class Attempts:
    standing: Mapping[str, Standing]
    """Of every node."""
    unresolved: tuple[tuple[str, ...], ...]
    """Groups of trained attempts that stay open."""
    retries: Mapping[str, str] = field(default_factory=dict)
    """Attempts that nobody classified and that do not stand -> one that does."""


def settle(tree: CallTree, chosen: Collection[str], policy: KindPolicy) -> Attempts:
    """`chosen` are the nodes that the harness's result names or its output holds."""
    groups: dict[object, list[str]] = defaultdict(list)
    for call in tree.nodes:
        groups[tree.prompts[call], shown(tree.entries[call]), policy.trains(tree.entries[call])].append(call)
    standing: dict[str, Standing] = {}
    unresolved = []
    for group in groups.values():
        standing |= _settle_group(tree, group, chosen)
        is_open = tuple(call for call in group if standing[call] is Standing.UNRESOLVED)
        if is_open and policy.trains(tree.entries[group[0]]):
            unresolved.append(is_open)
    return Attempts(standing, tuple(unresolved), _retries(tree, groups.values(), standing) if policy.structure else {})


def _retries(tree: CallTree, groups: Iterable[list[str]], standing: Mapping[str, Standing]) -> dict[str, str]:
    found = dict(tree.duplicates)
    for group in groups:
        stands = next((call for call in group if standing[call] is Standing.STANDS), None)
        if stands is not None:
            found.update({call: stands for call in group if standing[call] is not Standing.STANDS})
    return {call: other for call, other in found.items() if tree.entries[call].kind is None}


def _settle_group(tree: CallTree, group: list[str], chosen: Collection[str]) -> dict[str, Standing]:
    used = [call for call in group if call in tree.followed or call in chosen]
    if used:
        return {call: Standing.STANDS if call in used else _unused(tree, call) for call in group}
    left = [call for call in group if tree.entries[call].delivery is not Delivery.UNDELIVERED]
    arrived = [call for call in group if tree.entries[call].delivery is Delivery.DELIVERED]
    if arrived and tree.passed.issuperset(arrived):
        return {call: Standing.STANDS if call in arrived else Standing.ABANDONED for call in group}
    outcome = Standing.STANDS if len(left) == 1 else Standing.UNRESOLVED
    return {call: outcome if call in left else Standing.ABANDONED for call in group}


def _unused(tree: CallTree, call: str) -> Standing:
    delivered = tree.entries[call].delivery is Delivery.DELIVERED
    return Standing.REJECTED if delivered else Standing.ABANDONED
