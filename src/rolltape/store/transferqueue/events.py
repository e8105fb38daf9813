"""A rollout as the ordered keys of its partition, and the state that follows from them. Pure.

TransferQueue has no transactions, but its controller takes one request at a time and lists keys in the order in which
they were made. So everything that happens to a rollout is a new key, and what happened is decided by reading the keys
in that order, the same for every reader: a call that began after the fence did not begin, a drop that came after a late
entry drops nothing. What decides is spelled in the key itself, since a key's tag arrives a moment after it.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from rolltape.errors import ConflictError, FrozenError, RetiredError, StoreError

Listing: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Keys with their tags, in the order in which the keys were made."""

KEPT = ("create", "retire", "outcome", "fence")
"""Kinds of keys that stay when a rollout's evidence is cleared: its fence and what is told of it."""


def key(kind: str, *parts: Any) -> str:
    return msgspec.json.encode([kind, *parts]).decode()


def parsed(spelled: str) -> list[Any]:
    """The parts of a key, its kind first; [""] for a key that somebody else made."""
    try:
        parts = msgspec.json.decode(spelled, type=list[Any])
    except msgspec.MsgspecError:
        return [""]
    return parts if parts and isinstance(parts[0], str) else [""]


@dataclass(frozen=True, slots=True)
class Held:
    """One accepted entry. `data` is the key of its tensors."""

    digest: str
    step: int
    generated: int
    data: str


@dataclass(slots=True)
class View:
    """A rollout after all events that were listed. `verdicts`: what became of each that was refused."""

    rollout_id: str
    entries: dict[str, Held] = field(default_factory=dict)
    intents: dict[str, int] = field(default_factory=dict)
    marks: dict[tuple[str, str], None] = field(default_factory=dict)
    sequences: dict[str, str] = field(default_factory=dict)
    """Call to the key of the tensors that hold its sequence, in the order in which they came."""
    deliveries: dict[str, str] = field(default_factory=dict)
    labels: dict[str, Any] = field(default_factory=dict)
    outcome: dict[str, Any] = field(default_factory=dict)
    verdicts: dict[str, StoreError] = field(default_factory=dict)
    known: bool = False
    """True when a producer or a runner spoke of it; a fence alone is only a question."""
    born_here: bool = False
    """True when it was announced to this very queue, so that no older one can hold more of it."""
    frozen_at: float | None = None
    retired_at: float | None = None
    created_at: float = 0.0
    updated_at: float = 0.0
    next_step: int = 0
    sealed: str = ""
    """The snapshot that was dropped."""
    gone: tuple[int, int, int] = (0, 0, 0)
    """(version - 1, entries, sampled tokens) that were cleared with a retired rollout."""

    @property
    def version(self) -> int:
        return 1 + self.gone[0] + len(self.entries) + len(self.marks)

    @property
    def n_entries(self) -> int:
        return self.gone[1] + len(self.entries)

    @property
    def generated_tokens(self) -> int:
        return self.gone[2] + sum(held.generated for held in self.entries.values())

    @property
    def snapshot_id(self) -> str:
        """Names exactly this evidence, whoever reads it and in whichever queue."""
        held = sorted((call_id, one.digest) for call_id, one in self.entries.items())
        if self.sealed:
            return self.sealed
        told = [self.rollout_id, self.version, held, sorted(self.marks)]
        return hashlib.sha256(msgspec.json.encode(told)).hexdigest()[:32]

    def told(self) -> dict[str, Any]:
        """What the runner said: reward, ending, labels; {} = nothing."""
        labels = self.labels | self.outcome.get("labels", {})
        return self.outcome | {"labels": labels} if self.outcome or labels else {}

    def reasons(self) -> list[str]:
        """Why the rollout is incomplete, as far as its keys say."""
        said = [worded(call_id, reason) for call_id, reason in self.marks]
        return said + [worded(call_id, "the call began and has no outcome") for call_id in self.intents]


def worded(call_id: str, reason: str) -> str:
    """A reason as people and metrics read it."""
    return f"{call_id}: {reason}" if call_id else reason


def fold(rollout_id: str, listing: Listing) -> View:
    """The state after the listed keys."""
    view = View(rollout_id)
    for spelled, tag in listing.items():
        kind, *parts = parsed(spelled)
        step = _STEPS.get(kind)
        if step is None:
            continue
        at = float(tag.get("at", 0.0))
        view.created_at = min(view.created_at or at, at) if at else view.created_at
        view.updated_at = max(view.updated_at, at)
        refused = step(view, parts, tag)
        if refused is not None:
            view.verdicts[spelled] = refused
        view.known = view.known or (kind != "fence" and refused is None)
    return view


def _create(view: View, parts: Sequence[Any], tag: Mapping[str, Any]) -> StoreError | None:
    restored = bool(tag.get("restored"))
    if not restored and (view.known or view.frozen_at is not None):
        return ConflictError(f"rollout {view.rollout_id!r} exists", hint="give every attempt an id of its own")
    view.born_here = view.born_here or not restored
    view.labels |= tag.get("labels", {})
    return None


def _begin(view: View, parts: Sequence[Any], tag: Mapping[str, Any]) -> StoreError | None:
    call_id = parts[0]
    if view.retired_at is not None:
        return _retired(view)
    if view.frozen_at is not None:
        return FrozenError(f"rollout {view.rollout_id!r} is frozen: no new call may begin")
    if call_id in view.entries:
        return ConflictError(f"call {call_id!r} of rollout {view.rollout_id!r} is already recorded")
    if call_id not in view.intents:
        view.intents[call_id] = view.next_step
        view.next_step += 1
    return None


def _put(view: View, parts: Sequence[Any], tag: Mapping[str, Any]) -> StoreError | None:
    call_id, digest, generated, asked, doubt = parts
    if view.retired_at is not None:
        return _retired(view)
    step = view.intents.pop(call_id, view.next_step)
    known = view.entries.get(call_id)
    if known is not None:
        if known.digest == digest:
            return None
        _note(view, call_id, "put again with another payload; the first is kept")
        return ConflictError(f"call {call_id!r} of rollout {view.rollout_id!r} has another payload")
    step = step if asked is None else asked
    held = Held(digest, step, generated, key("data", call_id, digest))
    view.entries[call_id] = held
    view.sequences[call_id] = held.data
    view.next_step = max(view.next_step, step + 1)
    if doubt:
        _note(view, call_id, doubt)
    return None


def _mark(view: View, parts: Sequence[Any], tag: Mapping[str, Any]) -> StoreError | None:
    view.intents.pop(parts[0], None)
    _note(view, parts[0], parts[1])
    return None


def _sequence(view: View, parts: Sequence[Any], tag: Mapping[str, Any]) -> StoreError | None:
    call_id, digest = parts
    if view.retired_at is not None:
        return _retired(view)
    data = key("ids", call_id, digest)
    known = view.sequences.setdefault(call_id, data)
    if call_id not in view.entries and known != data:
        return ConflictError(f"call {call_id!r} of rollout {view.rollout_id!r} has another sequence")
    return None


def _fence(view: View, parts: Sequence[Any], tag: Mapping[str, Any]) -> StoreError | None:
    if view.frozen_at is None:
        view.frozen_at = float(tag.get("at", 0.0))
    return None


def _retire(view: View, parts: Sequence[Any], tag: Mapping[str, Any]) -> StoreError | None:
    snapshot_id, version, _ = parts
    if view.retired_at is not None:
        return _retired(view)
    gone = tag.get("gone")
    if gone is None and (view.frozen_at is None or (snapshot_id, version) != (view.snapshot_id, view.version)):
        return StoreError(f"rollout {view.rollout_id!r} is not in that state")
    if gone is not None:
        view.marks = dict.fromkeys((call_id, reason) for call_id, reason in tag["marks"])
        view.entries, view.sequences, view.intents = {}, {}, dict(tag["open"])
        view.gone = (gone[0], gone[1], gone[2])
    view.retired_at, view.sealed = float(tag.get("at", 0.0)), snapshot_id
    return None


def _outcome(view: View, parts: Sequence[Any], tag: Mapping[str, Any]) -> StoreError | None:
    view.outcome = {name: tag[name] for name in ("reward", "ending", "labels") if name in tag}
    return None


def _delivery(view: View, parts: Sequence[Any], tag: Mapping[str, Any]) -> StoreError | None:
    if "delivery" in tag:
        view.deliveries[parts[0]] = tag["delivery"]
    return None


_STEPS = {
    "create": _create,
    "begin": _begin,
    "put": _put,
    "mark": _mark,
    "sequence": _sequence,
    "fence": _fence,
    "retire": _retire,
    "outcome": _outcome,
    "delivery": _delivery,
}


def _note(view: View, call_id: str, reason: str) -> None:
    view.marks.setdefault((call_id, reason))


def _retired(view: View) -> RetiredError:
    return RetiredError(f"rollout {view.rollout_id!r} was retired")


def headstone(view: View) -> dict[str, Any]:
    """The tag of an accepted drop: what is still told of a rollout when its evidence was cleared."""
    marks = [list(mark) for mark in view.marks]
    gone = [len(view.entries), len(view.entries), sum(held.generated for held in view.entries.values())]
    return {"gone": gone, "marks": marks, "open": view.intents}


def clearable(listing: Listing) -> list[str]:
    """What a drop clears of the keys it saw: everything but `KEPT`."""
    return [spelled for spelled in listing if parsed(spelled)[0] not in KEPT]


@dataclass(frozen=True, slots=True)
class Members:
    """Which journals a queue has heard of, and which have given it what they hold."""

    journals: frozenset[str]
    ready: frozenset[str]
    left: frozenset[str]

    @property
    def missing(self) -> list[str]:
        return sorted(self.journals - self.ready - self.left)


def members(keys: Iterable[str]) -> Members:
    found: dict[str, set[str]] = {"journal": set(), "ready": set(), "left": set()}
    for spelled in keys:
        kind, *parts = parsed(spelled)
        if kind in found:
            found[kind].add(str(parts[0]))
    return Members(*(frozenset(found[kind]) for kind in ("journal", "ready", "left")))
