"""Which calls a rollout trains on, and how much each token counts: by kind and by engine. A value.

It never looks at tokens. In a file it is a mapping, and what a file leaves out stays as it is by default:

    kinds: {compaction: {use: train, weight: 1.0, cap: 0.25}, title: drop}
    engines: [vllm]
    sharing: per_token
    structure: true
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from rolltape.errors import ConfigError
from rolltape.record import TokenEntry

DEFAULT_KIND = "agent"
"""What a call counts as that nobody classified."""
RETRY = "retry"
"""An attempt beside the one that stands: told by structure, where nobody classified the call."""
KINDS = ("agent", "subagent", "compaction", "title", "probe", "judge", RETRY, "other")


class Use(StrEnum):
    """What becomes of a call's sampled tokens."""

    TRAIN = "train"
    """They carry loss."""
    CONTEXT = "context"
    """They carry none; where a trained call extends them they are named context of its row."""
    DROP = "drop"
    """The call is no part of the tree; a later prompt that holds its tokens holds them as plain prompt."""


class Sharing(StrEnum):
    """How the rows of one rollout share what the rollout counts. All but the last add up to 1 a rollout."""

    PER_TOKEN = "per_token"
    """Every trained token counts the same: a broken chain counts as much as the same chain unbroken."""
    PER_ROW = "per_row"
    """Every row counts the same, whatever its length."""
    LAST_ROW = "last_row"
    """The row of the terminal call counts, the others do not: for rewards that say nothing of the rest."""
    UNSCALED = "unscaled"
    """Every row counts 1: for trainers that scale by themselves."""


def _default_kinds() -> Mapping[str, Use]:
    return dict.fromkeys(("compaction", "title", "probe", "judge"), Use.CONTEXT)


def _default_caps() -> Mapping[str, float]:
    return dict.fromkeys(("compaction", "title", "probe", "judge"), 0.5)


@dataclass(frozen=True, slots=True)
class KindPolicy:
    """`kinds` says what to do with a kind; one that is not named there trains.

    `engines` are those that serve the policy in training; None = all. Where it is given, a call that another engine
    answered, or whose engine nobody recorded, is never trained. Neither is a call that its gateway recorded as another
    engine's answer. `weights` (1 where not named) multiply what a kind's tokens count; `caps` bound a kind's share of
    the rollout's loss, 0 to 1. `structure`: calls that nobody classified are classified by their tokens.
    """

    kinds: Mapping[str, Use] = field(default_factory=_default_kinds)
    engines: frozenset[str] | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    caps: Mapping[str, float] = field(default_factory=_default_caps)
    sharing: Sharing = Sharing.PER_TOKEN
    structure: bool = True

    def use(self, entry: TokenEntry) -> Use:
        use = self.use_of(kind_of(entry))
        return Use.CONTEXT if use is Use.TRAIN and not self._own_engine(entry) else use

    def use_of(self, kind: str) -> Use:
        use = self.kinds.get(kind, Use.TRAIN)
        return use if isinstance(use, Use) else Use(use)

    def trains(self, entry: TokenEntry) -> bool:
        return self.use(entry) is Use.TRAIN

    @property
    def trains_retries(self) -> bool:
        return self.use_of(RETRY) is Use.TRAIN

    def trains_kind(self, entry: TokenEntry) -> bool:
        """True where the kind trains, whatever engine answered."""
        return self.use_of(kind_of(entry)) is Use.TRAIN

    def reason(self, entry: TokenEntry) -> str:
        """Why the call is not trained, "" if it is."""
        if not self.trains_kind(entry):
            return f"kind: {kind_of(entry)}"
        return "" if self._own_engine(entry) else f"engine: {entry.other_engine or entry.engine or 'unknown'}"

    def _own_engine(self, entry: TokenEntry) -> bool:
        return entry.other_engine is None and (self.engines is None or entry.engine in self.engines)

    def to_json(self) -> dict[str, Any]:
        """All of it, in the form that `read_policy` reads: equal policies are equal here."""
        kinds = {
            kind: {"use": str(self.use_of(kind)), "weight": self.weights.get(kind, 1.0), "cap": self.caps.get(kind)}
            for kind in sorted({*KINDS, *self.kinds, *self.weights, *self.caps})
        }
        engines = None if self.engines is None else sorted(self.engines)
        return {"kinds": kinds, "engines": engines, "sharing": str(self.sharing), "structure": self.structure}


def kind_of(entry: TokenEntry) -> str:
    return entry.kind or DEFAULT_KIND


class _Kind(msgspec.Struct, forbid_unknown_fields=True):
    use: Use | None = None
    weight: float = 1.0
    cap: float | msgspec.UnsetType | None = msgspec.UNSET


class _File(msgspec.Struct, forbid_unknown_fields=True):
    kinds: dict[str, _Kind | str] = {}
    engines: list[str] | None = None
    sharing: Sharing = Sharing.PER_TOKEN
    structure: bool = True


def read_policy(body: object) -> KindPolicy:
    """The policy that a file's `body` describes, over the defaults; raises `ConfigError` naming what it does not know.

    A kind is a word (`title: drop`) or a mapping of `use`, `weight` and `cap`; a cap of null takes the default's away.
    """
    try:
        given = msgspec.convert({} if body is None else body, _File)
        kinds = {name: _kind(name, told) for name, told in given.kinds.items()}
    except msgspec.ValidationError as error:
        raise ConfigError(f"the policy is none: {error}", hint="kinds: {title: drop}, sharing: per_row") from error
    default = KindPolicy()
    told_caps = {name: kind.cap for name, kind in kinds.items() if not isinstance(kind.cap, msgspec.UnsetType)}
    caps = {**default.caps, **told_caps}
    return KindPolicy(
        kinds={**default.kinds, **{name: kind.use for name, kind in kinds.items() if kind.use is not None}},
        engines=None if given.engines is None else frozenset(given.engines),
        weights={name: kind.weight for name, kind in kinds.items() if kind.weight != 1.0},
        caps={name: cap for name, cap in caps.items() if cap is not None},
        sharing=given.sharing,
        structure=given.structure,
    )


def _kind(name: str, told: _Kind | str) -> _Kind:
    if name not in KINDS:
        raise ConfigError(f"the policy names a kind {name!r}", hint=f"kinds are {', '.join(KINDS)}")
    kind = msgspec.convert({"use": told}, _Kind) if isinstance(told, str) else told
    if not (math.isfinite(kind.weight) and kind.weight >= 0):
        raise ConfigError(f"the weight of {name} is {kind.weight}: a weight is a finite number, 0 or more")
    if isinstance(kind.cap, float) and not 0 <= kind.cap <= 1:
        raise ConfigError(f"the cap of {name} is {kind.cap}: a cap is a share of the loss, 0 to 1")
    return kind
