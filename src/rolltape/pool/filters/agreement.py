"""A trainer's log-probs do not agree with the recorded ones. A rollout that no trainer was asked about passes."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rolltape.pool.filters import Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """`threshold`: the least correlation of probabilities. A correlation that is undefined is no pass."""

    threshold: float = 0.99
    name: str = "agreement"

    def find(self, rollouts: Sequence[Candidate]) -> Iterator[tuple[str, str]]:
        for rollout in rollouts:
            known = rollout.agreement
            if known is not None and (math.isnan(known) or known < self.threshold):
                yield rollout.uid, f"correlation {known:.4f} is below {self.threshold:g}"
