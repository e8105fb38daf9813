"""There is no reward, or one that is no number: a crash is not a low reward, and NaN would make the whole batch NaN."""

import math

from rolltape.pool.filters import ByRollout, Candidate


def _reason(rollout: Candidate) -> str | None:
    if rollout.reward is None:
        return "there is no reward"
    return None if math.isfinite(rollout.reward) else f"the reward is {rollout.reward}"


def no_reward() -> ByRollout:
    return ByRollout("no_reward", _reason)
