"""The environment failed: harness, set-up or check could not start, or no call reached the gateway."""

from rolltape.pool.filters import ByRollout, Candidate


def _reason(rollout: Candidate) -> str | None:
    if rollout.ending == "could_not_start":
        return rollout.excluded_reason or "it could not start"
    if rollout.excluded and rollout.ending not in ("crashed", "interrupted"):
        return rollout.excluded_reason or "excluded by its runner"
    return None


def environment() -> ByRollout:
    return ByRollout("environment", _reason)
