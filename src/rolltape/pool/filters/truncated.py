"""It was cut off: the last reply by its length, or the rollout by its budget. Its reward stands all the same."""

from rolltape.pool.filters import ByRollout, Candidate


def _reason(rollout: Candidate) -> str | None:
    if rollout.ending == "budget":
        return "its budget of calls, tokens or time was spent"
    return "its last reply was cut at its length" if rollout.finish_reason == "length" else None


def truncated() -> ByRollout:
    return ByRollout("truncated", _reason)
