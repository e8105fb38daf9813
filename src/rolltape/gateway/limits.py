"""How often, and how many at once: of one rollout, and of the whole gateway process. Pure; the clock is handed in.

A rate is a token bucket that starts full: N calls at once, then one every 60/N seconds. A call that is refused takes
nothing, so a client that asks again too early does not push its own turn away.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rolltape.errors import RateLimited

_REMEMBERED = 10_000
"""Rollouts; an idle one that is forgotten starts with a full bucket."""
_TRY_AGAIN_SECONDS = 1.0
"""Nobody knows when a running call ends."""


@dataclass(frozen=True, slots=True)
class Rates:
    """None = unbounded."""

    per_minute: int | None = None
    at_once: int | None = None


@dataclass(slots=True)
class Gate:
    """What has passed under some rates. Times are seconds of any steady clock."""

    rates: Rates
    filled_at: float
    level: float = 0.0
    running: int = 0

    @classmethod
    def opened(cls, rates: Rates, now: float) -> "Gate":
        """Nothing has passed yet."""
        return cls(rates, now, float(rates.per_minute or 0))

    def bound(self, now: float) -> tuple[str, float] | None:
        """The bound that is reached, and in how many seconds to ask again; None = a call may pass."""
        if self.rates.at_once is not None and self.running >= self.rates.at_once:
            return "at_once", _TRY_AGAIN_SECONDS
        if self.rates.per_minute is not None:
            self._fill(now, self.rates.per_minute)
            if self.level < 1:
                return "per_minute", (1 - self.level) * 60 / self.rates.per_minute
        return None

    def _fill(self, now: float, per_minute: int) -> None:
        passed = max(0.0, now - self.filled_at)
        self.level, self.filled_at = min(float(per_minute), self.level + passed * per_minute / 60), now

    def enter(self) -> None:
        """One call passes."""
        self.running += 1
        self.level -= 1

    def leave(self) -> None:
        """It has ended."""
        self.running -= 1


class Limiter:
    """The gate of the whole process, and one for each rollout."""

    def __init__(self, everyone: Rates, now: float) -> None:
        self._all = Gate.opened(everyone, now)
        self._rollouts: OrderedDict[str, Gate] = OrderedDict()

    @contextmanager
    def passing(self, rollout_id: str | None, rates: Rates, now: float) -> Iterator[None]:
        """A call of a rollout that has these rates, while the body runs. Raises `RateLimited`."""
        gates = {"gateway": self._all}
        if rollout_id is not None:
            gates["rollout"] = self._gate(rollout_id, rates, now)
        for whose, gate in gates.items():
            reached = gate.bound(now)
            if reached is not None:
                raise _limited(whose, gate.rates, *reached)
        for gate in gates.values():
            gate.enter()
        try:
            yield
        finally:
            for gate in gates.values():
                gate.leave()

    def _gate(self, rollout_id: str, rates: Rates, now: float) -> Gate:
        gate = self._rollouts.get(rollout_id)
        if gate is None or gate.rates != rates:
            gate = self._rollouts[rollout_id] = Gate.opened(rates, now)
        self._rollouts.move_to_end(rollout_id)
        if len(self._rollouts) > _REMEMBERED:
            idle = next((name for name, one in self._rollouts.items() if not one.running), rollout_id)
            if idle != rollout_id:
                del self._rollouts[idle]
        return gate


def _limited(whose: str, rates: Rates, bound: str, seconds: float) -> RateLimited:
    words = {"at_once": f"{rates.at_once} calls at once", "per_minute": f"{rates.per_minute} calls a minute"}
    return RateLimited(f"this {whose} takes {words[bound]}", bound=f"{whose}_{bound}", retry_after=seconds)
