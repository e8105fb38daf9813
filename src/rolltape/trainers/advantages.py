"""Advantages: computed once a rollout, within its group, and only then spread to its rows.

A rollout may come to several rows. Were the baseline taken over rows, a rollout with many rows would pull the mean of
its group and be counted many times; so the group is made of rollouts, and every row of a rollout gets that rollout's
advantage. How much each row weighs in the loss is the row's own `weight`.

Who has no reward (None, NaN, infinite) and who is masked has no vote: it gets no advantage, moves no mean, and is named
with its reason. One NaN would make the loss of the whole batch NaN, and 0 for a crash would teach the wrong lesson.

Group-relative advantages: DeepSeekMath (arXiv 2402.03300); without the division by the spread: Dr. GRPO (arXiv
2503.20783); leave-one-out: RLOO (arXiv 2402.14740).
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev, stdev
from typing import TypeAlias

from rolltape.record import Row

Baseline: TypeAlias = Callable[[Sequence[float]], list[float]]
"""The rewards of one group -> their advantages."""

EPSILON = 1e-6
"""Added to the spread that is divided by."""


def grpo(rewards: Sequence[float]) -> list[float]:
    """(reward - mean) / (spread + EPSILON), with the sample's standard deviation, as TRL and verl compute it."""
    if len(rewards) < 2:
        return [0.0] * len(rewards)
    mean, spread = fmean(rewards), stdev(rewards)
    return [(reward - mean) / (spread + EPSILON) for reward in rewards]


def dr_grpo(rewards: Sequence[float]) -> list[float]:
    """reward - mean: a group that is nearly decided weighs no more than one that is open."""
    mean = fmean(rewards) if rewards else 0.0
    return [reward - mean for reward in rewards]


def rloo(rewards: Sequence[float]) -> list[float]:
    """reward - mean of the others."""
    if len(rewards) < 2:
        return [0.0] * len(rewards)
    total = math.fsum(rewards)
    return [reward - (total - reward) / (len(rewards) - 1) for reward in rewards]


@dataclass(frozen=True, slots=True)
class Group:
    """The rollouts of one group that have a vote, and what their rewards add up to.

    `mean` and `spread` (of the population) are None of none. `excluded` names who has no vote, and why.
    """

    rewards: Mapping[str, float]
    excluded: Mapping[str, str]

    @property
    def usable(self) -> int:
        return len(self.rewards)

    @property
    def mean(self) -> float | None:
        return fmean(self.rewards.values()) if self.rewards else None

    @property
    def spread(self) -> float | None:
        return pstdev(self.rewards.values()) if self.rewards else None


def grouped(
    rewards: Mapping[str, float | None], groups: Mapping[str, str], masked: Mapping[str, str] | None = None
) -> dict[str, Group]:
    """Group -> who votes in it. `masked` maps a rollout that must not be trained on to the reason."""
    votes: dict[str, dict[str, float]] = defaultdict(dict)
    excluded: dict[str, dict[str, str]] = defaultdict(dict)
    for rollout, reward in rewards.items():
        group = groups[rollout]
        reason = (masked or {}).get(rollout)
        if reason is not None:
            excluded[group][rollout] = f"masked: {reason}"
        elif reward is None:
            excluded[group][rollout] = "there is no reward"
        elif not math.isfinite(reward):
            excluded[group][rollout] = f"the reward is {reward}"
        else:
            votes[group][rollout] = reward
    return {group: Group(votes[group], excluded[group]) for group in dict.fromkeys(groups[one] for one in rewards)}


def advantages(
    rewards: Mapping[str, float | None],
    groups: Mapping[str, str],
    baseline: Baseline = grpo,
    *,
    masked: Mapping[str, str] | None = None,
) -> dict[str, float]:
    """Rollout id -> advantage, for the rollouts that have a vote; `grouped` names the others, with reasons.

    `groups` names for each rollout the task it is an attempt at. A group whose rewards are all equal gives zeros: there
    is nothing to prefer.
    """
    found: dict[str, float] = {}
    for group in grouped(rewards, groups, masked).values():
        values = list(group.rewards.values())
        equal = len(set(values)) == 1
        found.update(zip(group.rewards, [0.0] * len(values) if equal else baseline(values), strict=True))
    return found


def with_advantages(rows: Iterable[Row], given: Mapping[str, float]) -> list[Row]:
    """`rows` with the advantage of their rollout; None where it has no vote."""
    return [replace(row, advantage=given.get(row.rollout_id)) for row in rows]
