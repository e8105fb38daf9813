"""Filters between pool and update: each says of which rollouts it would rather not train on, and why.

A filter sees what is known of rollouts (`Candidate`) and returns reasons; the pool writes them down as labels, and
deletes nothing. Each filter is one small module here and one entry point in the group `rolltape.filters`, which names
its class; the class takes its thresholds as keywords. Any callable that takes a candidate and returns a reason or None
is a filter too (`ByRollout`).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rolltape.record import Row

COLUMNS = (
    "uid", "run", "rollout_id", "task_id", "group_id", "harness", "policy_versions", "finish_reason", "reward",
    "ending", "excluded", "excluded_reason", "agreement", "verdict", "certificate_digest", "masked", "mask_reasons",
    "incomplete", "calls", "tokens", "loss_tokens", "tokens_digest", "added_at",
)  # fmt: skip
DEFAULT = (
    "crashed",
    "environment",
    "incomplete",
    "masked",
    "no_reward",
    "empty",
    "duplicate",
    "agreement",
    "no_variance",
)
"""Those that hold whatever the training is, in the order in which they run. Groups come last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One rollout as filters see it; the columns of the pool's view `rollouts`. None = not known.

    `failed` names the filters that it fails already, `said` their reasons. `rows` reads its training rows.
    """

    uid: str
    run: str = ""
    rollout_id: str = ""
    task_id: str | None = None
    group_id: str | None = None
    harness: str | None = None
    policy_versions: Sequence[str] = ()
    finish_reason: str | None = None
    reward: float | None = None
    ending: str | None = None
    excluded: bool = False
    excluded_reason: str | None = None
    agreement: float | None = None
    verdict: str | None = None
    certificate_digest: str | None = None
    masked: bool = False
    mask_reasons: Sequence[str] = ()
    incomplete: bool = False
    calls: int | None = None
    tokens: int = 0
    loss_tokens: int = 0
    tokens_digest: str | None = None
    added_at: float = 0.0
    failed: tuple[str, ...] = ()
    said: Mapping[str, str] = field(default_factory=dict)
    rows: Callable[[], Iterator[Row]] = field(default=lambda: iter(()), repr=False, compare=False)

    @property
    def votes(self) -> bool:
        """Whether its reward counts in its group: it has one, and nothing keeps the rollout out."""
        known = self.reward is not None and math.isfinite(self.reward)
        return known and not (self.masked or self.excluded or self.failed)


class Filter(Protocol):
    """`name` is what its labels are called."""

    @property
    def name(self) -> str: ...

    def find(self, rollouts: Sequence[Candidate]) -> Iterable[tuple[str, str]]:
        """(uid, reason) of each rollout that fails."""
        ...


@dataclass(frozen=True, slots=True)
class ByRollout:
    """A filter made of a callable that looks at one rollout and returns a reason, or None where it passes."""

    name: str
    reason: Callable[[Candidate], Any]

    def find(self, rollouts: Sequence[Candidate]) -> Iterator[tuple[str, str]]:
        for rollout in rollouts:
            found = self.reason(rollout)
            if found is not None and found is not False:
                yield rollout.uid, str(found)
