"""Running filters over rollouts: what fails which, and the labels that say so. Pure.

Filters run in the order given, and a later one sees what the earlier ones failed: a group without spread is judged by
the members that are left. What failed before and passes now gets a label that says so; nothing goes in silence.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rolltape.pool.filters import Candidate, Filter

CORRUPTED = ("crashed", "environment", "incomplete", "masked", "no_reward")
"""Filters whose failures say that an episode tells nothing of the policy."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A label to write: whether `uid` fails the filter `name`, and why."""

    uid: str
    name: str
    fails: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Filtered:
    """What filters came to. `failures` counts by filter, `reasons` are by uid and filter."""

    evaluated: int
    passed: int
    failures: Mapping[str, int]
    reasons: Mapping[str, Mapping[str, str]]
    corrupted_fraction: float | None
    lineage: str

    def to_json(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def judge(candidates: Sequence[Candidate], filters: Sequence[Filter]) -> dict[str, dict[str, str]]:
    """uid -> filter -> reason, of every failure."""
    running = {one.name for one in filters}
    seen = [replace(one, failed=tuple(name for name in one.failed if name not in running)) for one in candidates]
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for one in filters:
        for uid, reason in one.find(seen):
            found[uid][one.name] = reason
        seen = [
            replace(rollout, failed=(*rollout.failed, one.name)) if one.name in found.get(rollout.uid, {}) else rollout
            for rollout in seen
        ]
    return dict(found)


def changes(
    candidates: Sequence[Candidate], filters: Sequence[Filter], found: Mapping[str, Mapping[str, str]]
) -> list[Verdict]:
    """The labels that say what is new since the labels that stand."""
    new = []
    for rollout in candidates:
        for one in filters:
            reason = found.get(rollout.uid, {}).get(one.name)
            stood = one.name in rollout.failed
            if reason is not None and rollout.said.get(one.name) != reason:
                new.append(Verdict(rollout.uid, one.name, True, reason))
            elif reason is None and stood:
                new.append(Verdict(rollout.uid, one.name, False, "passes now"))
    return new


def counts(found: Mapping[str, Mapping[str, str]]) -> dict[str, int]:
    return dict(sorted(Counter(name for reasons in found.values() for name in reasons).items()))


def corrupted_fraction(candidates: Sequence[Candidate], found: Mapping[str, Mapping[str, str]]) -> float | None:
    """Of all that were looked at; None of none."""
    bad = sum(any(name in CORRUPTED for name in found.get(one.uid, {})) for one in candidates)
    return bad / len(candidates) if candidates else None
