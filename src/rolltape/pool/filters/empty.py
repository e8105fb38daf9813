"""No token of it carries loss."""

from rolltape.pool.filters import ByRollout


def empty() -> ByRollout:
    return ByRollout("empty", lambda rollout: None if rollout.loss_tokens else "no token carries loss")
