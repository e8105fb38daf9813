"""The harness crashed, or the runner went away while it ran: nothing it did is the policy's last word."""

from rolltape.pool.filters import ByRollout, Candidate


def _reason(rollout: Candidate) -> str | None:
    if rollout.ending not in ("crashed", "interrupted"):
        return None
    return rollout.excluded_reason or f"the harness {rollout.ending}".replace("harness interrupted", "run was cut off")


def crashed() -> ByRollout:
    return ByRollout("crashed", _reason)
