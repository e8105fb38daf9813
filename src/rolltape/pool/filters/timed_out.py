"""The harness was ended at its time limit. Its reward stands unless this filter is asked for: slow is a way to fail."""

from rolltape.pool.filters import ByRollout


def timed_out() -> ByRollout:
    return ByRollout("timed_out", lambda rollout: "ended at the time limit" if rollout.ending == "timed_out" else None)
