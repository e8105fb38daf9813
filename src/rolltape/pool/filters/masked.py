"""The rebuild masked it: what was trained, and what not, could not be told apart."""

from rolltape.pool.filters import ByRollout, Candidate


def _reason(rollout: Candidate) -> str | None:
    return ("; ".join(rollout.mask_reasons) or "masked") if rollout.masked else None


def masked() -> ByRollout:
    return ByRollout("masked", _reason)
