"""Its group has nothing to compare: the rewards of all members that have a vote are equal, or there is only one.

Members without a reward, with one that is no number, masked, excluded or failed by an earlier filter have no vote. They
are not labelled here: they have a reason of their own.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rolltape.pool.filters import Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class NoVariance:
    """`smallest`: the least spread between the highest and the lowest reward that counts as one."""

    smallest: float = 1e-8
    name: str = "no_variance"

    def find(self, rollouts: Sequence[Candidate]) -> Iterator[tuple[str, str]]:
        groups: dict[tuple[str, str], list[Candidate]] = defaultdict(list)
        for rollout in rollouts:
            if rollout.votes and rollout.group_id is not None:
                groups[rollout.run, rollout.group_id].append(rollout)
        for (_, group), members in groups.items():
            rewards = [one.reward for one in members if one.reward is not None]
            if max(rewards) - min(rewards) < self.smallest:
                why = f"all {len(rewards)} rewards are {rewards[0]:g}" if len(rewards) > 1 else "only one has a vote"
                yield from ((one.uid, f"group {group}: {why}") for one in members)
