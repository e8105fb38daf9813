"""It was sampled by weights that are too far behind the current ones.

Versions that are whole numbers are compared as such; others need `order`, the known versions from the oldest. A version
that nobody recorded, or that is in no order, cannot be shown to be fresh.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rolltape.errors import ConfigError
from rolltape.pool.filters import Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Stale:
    """`current`: the version that trains; `lag`: how many versions behind is still fresh."""

    current: str
    lag: int = 1
    order: Sequence[str] = ()
    name: str = "stale"

    def __post_init__(self) -> None:
        if self._place(str(self.current)) is None:
            hint = "give whole numbers, or the order of the versions"
            raise ConfigError(f"the policy version {self.current!r} has no place in an order", hint=hint)

    def find(self, rollouts: Sequence[Candidate]) -> Iterator[tuple[str, str]]:
        for rollout in rollouts:
            reason = self._reason(rollout)
            if reason is not None:
                yield rollout.uid, reason

    def _reason(self, rollout: Candidate) -> str | None:
        if not rollout.policy_versions:
            return "nobody recorded which weights sampled it"
        now = self._place(str(self.current))
        assert now is not None
        for version in rollout.policy_versions:
            place = self._place(version)
            if place is None:
                return f"policy version {version!r} has no place in an order"
            if now - place > self.lag:
                return f"sampled by policy version {version}, {now - place} behind {self.current}"
        return None

    def _place(self, version: str) -> int | None:
        if self.order:
            return list(self.order).index(version) if version in self.order else None
        try:
            return int(version)
        except ValueError:
            return None
