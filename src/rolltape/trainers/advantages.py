"""Advantages: computed once a rollout, within its group, and only then spread to its rows.

A rollout may come to several rows. Were the baseline taken over rows, a rollout with many rows would pull the mean of
its group and be counted many times; so the group is made of rollouts, and every row of a rollout gets that rollout's
advantage. How much each row weighs in the loss is the row's own `weight`.

Group-relative advantages: DeepSeekMath (arXiv 2402.03300); without the division by the spread: Dr. GRPO (arXiv
2503.20783); leave-one-out: RLOO (arXiv 2402.14740).
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev
from typing import TypeAlias

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


def advantages(
    rewards: Mapping[str, float | None], groups: Mapping[str, str], baseline: Baseline = grpo
) -> dict[str, float]:
    """Rollout id -> advantage, for the rollouts that have a reward.

    `groups` names for each rollout the task it is an attempt at. A reward of None (the harness crashed, the
    environment failed) is left out of the result and of its group's baseline. A group whose rewards are all equal
    gives zeros: there is nothing to prefer. Raises `ValueError` for a reward that is not finite.
    """
    members: dict[str, list[str]] = defaultdict(list)
    known: dict[str, float] = {}
    for rollout, reward in rewards.items():
        if reward is None:
            continue
        if not math.isfinite(reward):
            raise ValueError(f"the reward of {rollout} is {reward}")
        known[rollout] = reward
        members[groups[rollout]].append(rollout)
    found: dict[str, float] = {}
    for rollouts in members.values():
        values = [known[rollout] for rollout in rollouts]
        equal = len(set(values)) == 1
        found.update(zip(rollouts, [0.0] * len(values) if equal else baseline(values), strict=True))
    return found
