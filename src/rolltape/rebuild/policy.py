"""Which calls a rollout trains on: by kind and by engine. A value; it never looks at tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rolltape.record import TokenEntry

DEFAULT_KIND = "agent"
"""What a call counts as that nobody classified."""


class Use(StrEnum):
    """What becomes of a call's sampled tokens."""

    TRAIN = "train"
    """They carry loss."""
    CONTEXT = "context"
    """They carry none; where a trained call extends them they are named context of its row."""
    DROP = "drop"
    """The call is no part of the tree; a later prompt that holds its tokens holds them as plain prompt."""


def _default_kinds() -> Mapping[str, Use]:
    return dict.fromkeys(("compaction", "title", "probe", "judge"), Use.CONTEXT)


@dataclass(frozen=True, slots=True)
class KindPolicy:
    """`kinds` says what to do with a kind; one that is not named there trains.

    `engines` are those that serve the policy in training; None = all. Where it is given, a call that another engine
    answered, or whose engine nobody recorded, is never trained. Nor is, whatever is given, a call whose entry itself
    says that another engine than the policy's answered it.
    """

    kinds: Mapping[str, Use] = field(default_factory=_default_kinds)
    engines: frozenset[str] | None = None

    def use(self, entry: TokenEntry) -> Use:
        use = Use(self.kinds.get(kind_of(entry), Use.TRAIN))
        return Use.CONTEXT if use is Use.TRAIN and not self._own_engine(entry) else use

    def trains(self, entry: TokenEntry) -> bool:
        return self.use(entry) is Use.TRAIN

    def trains_kind(self, entry: TokenEntry) -> bool:
        """True where the kind trains, whatever engine answered."""
        return Use(self.kinds.get(kind_of(entry), Use.TRAIN)) is Use.TRAIN

    def reason(self, entry: TokenEntry) -> str:
        """Why the call is not trained, "" if it is."""
        if not self.trains_kind(entry):
            return f"kind: {kind_of(entry)}"
        return "" if self._own_engine(entry) else f"engine: {entry.other_engine or entry.engine or 'unknown'}"

    def _own_engine(self, entry: TokenEntry) -> bool:
        return entry.other_engine is None and (self.engines is None or entry.engine in self.engines)


def kind_of(entry: TokenEntry) -> str:
    return entry.kind or DEFAULT_KIND
