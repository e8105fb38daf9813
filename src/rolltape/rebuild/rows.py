"""Rows: which sampled token is trained where.

Four forms of one tree. `forest`: one row per path that ends in a trained call, the ids of that call's prompt and
generation and no others. `chain`: the one path that ends in the terminal call. `calls`: one row per call. `packed`: the
rows of `forest`, to be laid into one sequence (see `packed`). In each of them a sampled token is owned by at most one
row's loss; what no row owns has a named reason.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any, Literal, assert_never

import numpy as np
from numpy.typing import NDArray

from rolltape.rebuild.attempts import Attempts, Standing
from rolltape.rebuild.policy import KindPolicy, kind_of
from rolltape.rebuild.tree import CallTree
from rolltape.rebuild.weights import weigh
from rolltape.record import LogProbKind, Outcome, Row, Span, TokenEntry

DeliveryForm = Literal["chain", "forest", "calls", "packed"]


class Status(StrEnum):
    """What one call is in the rebuilt rollout."""

    TRAINED = "trained"
    REJECTED = "rejected"
    """Trained, though its harness asked again after it."""
    CONTEXT = "context"
    """In the tree, without loss: off the delivered chain, or none of its log-probs can be used."""
    QUARANTINED = "quarantined"
    """Its kind or its engine is not trained."""
    ABANDONED = "abandoned"
    UNRESOLVED = "unresolved"
    DUPLICATE = "duplicate"
    """Token-equal to another attempt, which stands for it."""
    DAMAGED = "damaged"
    EMPTY = "empty"
    FAILED = "failed"
    REFUSED = "refused"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Ownership:
    """Sampled tokens start..end (end excluded) of one call's generation: the row that owns them, or why none does."""

    model_call_id: str
    start: int
    end: int
    row_id: str | None
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "model_call_id": self.model_call_id,
            "start": self.start,
            "end": self.end,
            "row_id": self.row_id,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Dealt:
    rows: tuple[Row, ...]
    status: Mapping[str, Status]
    ledger: tuple[Ownership, ...]


@dataclass(frozen=True, slots=True)
class _Candidates:
    """What each node could train, before any row is made."""

    form: DeliveryForm
    standing: Mapping[str, Status]
    reasons: Mapping[str, str]
    """Why a call that could have been sampled for a row has no loss at all."""
    usable: Mapping[str, NDArray[np.bool_]]
    """(G,) for the calls that may own something."""


def deal(
    form: DeliveryForm,
    tree: CallTree,
    attempts: Attempts,
    policy: KindPolicy,
    terminal: str | None,
    outcome: Mapping[str, Any],
) -> Dealt:
    """All rows of a rollout, the terminal call's first. `outcome["reward"]` goes to each; `policy` weighs them."""
    able = _candidates(form, tree, attempts, policy)
    owners: dict[str, str] = {}
    reward = _reward(outcome)
    rows = []
    for path in _paths(form, tree, able, terminal):
        row_id = _row_id(tree.entries[path[-1]])
        owned = _take(path, able, owners, row_id)
        rows.append(_row(tree, path, owned, able, row_id, reward))
    sizes = {call: int(np.count_nonzero(able.usable[call])) for call in owners}
    rows = weigh(rows, {call: kind_of(tree.entries[call]) for call in owners}, sizes, policy)
    return Dealt(tuple(rows), _statuses(able, owners), tuple(_ledger(tree, able, owners)))


def _candidates(form: DeliveryForm, tree: CallTree, attempts: Attempts, policy: KindPolicy) -> _Candidates:
    standing: dict[str, Status] = {}
    reasons: dict[str, str] = {}
    usable: dict[str, NDArray[np.bool_]] = {}
    for call, entry in tree.entries.items():
        standing[call], reasons[call] = _standing(call, entry, tree, attempts, policy)
        if standing[call] not in (Status.TRAINED, Status.REJECTED):
            continue
        trainable = entry.trainable
        whole = form != "chain" or bool(trainable.all())  # a payload's item cannot leave a hole in its generation
        if whole and trainable.any():
            usable[call] = trainable
        else:
            reasons[call] = _first_fault(entry) if not trainable.any() else "partly_unusable_log_probs"
    return _Candidates(form, standing, reasons, usable)


def _standing(
    call: str, entry: TokenEntry, tree: CallTree, attempts: Attempts, policy: KindPolicy
) -> tuple[Status, str]:
    if entry.outcome is not Outcome.COMPLETED:
        return Status(entry.outcome.value), f"outcome: {entry.outcome}"
    if not entry.ids_exact:
        return Status.DAMAGED, f"damaged: {_first_fault(entry)}"
    if not len(entry.generation_token_ids):
        return Status.EMPTY, "empty"
    if call in tree.duplicates:
        return Status.DUPLICATE, f"duplicate: {tree.duplicates[call]}"
    if not policy.trains(entry):
        return Status.QUARANTINED, policy.reason(entry)
    if call in attempts.retries and not policy.trains_retries:
        return Status.QUARANTINED, "kind: retry"
    match attempts.standing[call]:
        case Standing.STANDS:
            return Status.TRAINED, ""
        case Standing.REJECTED:
            return Status.REJECTED, ""
        case Standing.ABANDONED:
            return Status.ABANDONED, "abandoned"
        case Standing.UNRESOLVED:
            return Status.UNRESOLVED, "unresolved_retry"
        case other:
            assert_never(other)


def _first_fault(entry: TokenEntry) -> str:
    return entry.faults[0] if entry.faults else "grammar_masked"


def _paths(form: DeliveryForm, tree: CallTree, able: _Candidates, terminal: str | None) -> Iterator[list[str]]:
    """Paths from a root to a call that may own something, each owning at least one token."""
    match form:
        case "calls":
            yield from ([call] for call in tree.nodes if call in able.usable)
        case "chain":
            last = _deepest_usable(tree, able, terminal)
            if last is not None:
                yield tree.path(last)
        case "forest" | "packed":
            for leaf in _leaves(tree, able, _deepest_usable(tree, able, terminal)):
                yield tree.path(leaf)
        case other:
            assert_never(other)


def _deepest_usable(tree: CallTree, able: _Candidates, terminal: str | None) -> str | None:
    return next((c for c in tree.upwards(terminal) if c in able.usable), None) if terminal is not None else None


def _leaves(tree: CallTree, able: _Candidates, terminal: str | None) -> list[str]:
    """Calls that may own something, with none such below them: those of the terminal call, then longer ones."""
    inner: set[str] = set()
    for call in reversed(tree.nodes):  # longer prompts first: children before parents
        parent = tree.parents[call]
        if parent is not None and (call in able.usable or call in inner):
            inner.add(parent)
    leaves = [call for call in tree.nodes if call in able.usable and call not in inner]
    ends_well = _below(tree, terminal)
    return sorted(leaves, key=lambda call: (call not in ends_well, -tree.entries[call].length, call))


def _below(tree: CallTree, call: str | None) -> set[str]:
    found: set[str] = set()
    waiting = [] if call is None else [call]
    while waiting:
        found.add(at := waiting.pop())
        waiting.extend(tree.children.get(at, ()))
    return found


def _take(path: Sequence[str], able: _Candidates, owners: dict[str, str], row_id: str) -> set[str]:
    """The calls of `path` that nobody owns yet, now owned by `row_id`."""
    taken: set[str] = set()
    for call in reversed(path):
        if call in owners:
            break  # whoever owns this call took all that could be taken above it
        if call in able.usable:
            owners[call] = row_id
            taken.add(call)
    return taken


def _row_id(last: TokenEntry) -> str:
    return f"{last.rollout_id}:{last.model_call_id}"


def _row(
    tree: CallTree, path: Sequence[str], owned: set[str], able: _Candidates, row_id: str, reward: float | None
) -> Row:
    last = tree.entries[path[-1]]
    ids = np.concatenate([last.prompt_token_ids, last.generation_token_ids])
    mask = np.zeros(len(ids), np.int8)
    log_probs = np.full(len(ids), np.nan, np.float32)
    spans = []
    for call in path:
        entry = tree.entries[call]
        start = len(entry.prompt_token_ids)
        if call in owned:
            use = able.usable[call]
            mask[start : entry.length] = use
            log_probs[start : entry.length] = np.where(use, entry.generation_log_probs, np.nan)
        spans.append(Span(call, start, entry.length, call in owned, entry.policy_version, entry.log_prob_kind))
    for array in (ids, mask, log_probs):
        array.flags.writeable = False
    return Row(row_id, last.rollout_id, ids, mask, log_probs, tuple(spans), kind_of(last), reward, media=last.media)


def _reward(outcome: Mapping[str, Any]) -> float | None:
    """A reward that is no finite number is none: null is excluded downstream, 0 would teach a lesson."""
    reward = outcome.get("reward")
    known = isinstance(reward, int | float) and not isinstance(reward, bool) and math.isfinite(reward)
    return float(reward) if known and reward is not None else None


def _statuses(able: _Candidates, owners: Mapping[str, str]) -> dict[str, Status]:
    trained = (Status.TRAINED, Status.REJECTED)
    return {
        call: Status.CONTEXT if status in trained and call not in owners else status
        for call, status in able.standing.items()
    }


def _ledger(tree: CallTree, able: _Candidates, owners: Mapping[str, str]) -> Iterator[Ownership]:
    for call, entry in tree.entries.items():
        sampled = len(entry.generation_token_ids)
        if call in owners:
            yield from _owned_runs(call, entry, able.usable[call], owners[call])
        elif sampled:
            yield Ownership(call, 0, sampled, None, able.reasons[call] or "off_chain")


def _owned_runs(call: str, entry: TokenEntry, usable: NDArray[np.bool_], row_id: str) -> Iterator[Ownership]:
    if usable.all():
        yield Ownership(call, 0, len(usable), row_id)
        return
    why = np.where(usable, 0, np.where(grammar_masked(entry), 1, 2))
    cuts = [0, *(np.flatnonzero(np.diff(why)) + 1).tolist(), len(why)]
    for start, end in pairwise(cuts):
        reason = (None, LogProbKind.GRAMMAR_MASKED.value, "log_prob_invalid")[why[start]]
        yield Ownership(call, start, end, row_id if reason is None else None, reason)


def grammar_masked(entry: TokenEntry) -> NDArray[np.bool_]:
    """(G,) where a log-prob is of what a grammar left over."""
    masked = np.full(len(entry.generation_token_ids), entry.log_prob_kind == LogProbKind.GRAMMAR_MASKED)
    for start, end, kind in entry.log_prob_spans:
        masked[start:end] = kind == LogProbKind.GRAMMAR_MASKED
    return masked
