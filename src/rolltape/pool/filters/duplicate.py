"""It is in the pool already: the same rollout added again under another run, or the same rollout rebuilt otherwise.

The newest stays. Two rollouts that happen to say the same are two draws from the policy and no duplicates; with
`same_tokens` they count as such within their task.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from rolltape.pool.filters import Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate:
    same_tokens: bool = False
    name: str = "duplicate"

    def find(self, rollouts: Sequence[Candidate]) -> Iterator[tuple[str, str]]:
        newest = sorted(rollouts, key=lambda one: (-one.added_at, one.uid))
        taken: dict[Hashable, Candidate] = {}
        for rollout in newest:
            keys = list(self._keys(rollout))
            other = next((taken[key] for key in keys if key in taken), None)
            if other is not None:
                yield rollout.uid, f"the same as {other.rollout_id} of run {other.run}, added later ({other.uid})"
                continue
            taken.update(dict.fromkeys(keys, rollout))

    def _keys(self, rollout: Candidate) -> Iterator[Hashable]:
        yield "rollout", rollout.run, rollout.rollout_id
        if rollout.tokens:
            yield "copy", rollout.rollout_id, rollout.tokens_digest
            if self.same_tokens:
                yield "tokens", rollout.task_id, rollout.tokens_digest
