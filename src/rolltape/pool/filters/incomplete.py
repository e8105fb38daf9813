"""A call is known to be lost or damaged, and nothing can say where it belonged."""

from rolltape.pool.filters import ByRollout, Candidate


def _reason(rollout: Candidate) -> str | None:
    if not rollout.incomplete:
        return None
    return "; ".join(rollout.mask_reasons) or "the capture is incomplete"


def incomplete() -> ByRollout:
    return ByRollout("incomplete", _reason)
