"""What a call passes before it is sampled: a pause for new weights, and the budget of its rollout.

Budgets travel with the rollout, in its labels, so every worker reads the same ones; use is counted from the store once
and kept up here. A rollout over budget is stopped with 403, the status that ends most harnesses at once.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from rolltape.errors import RequestError, StoreError
from rolltape.gateway.limits import Rates
from rolltape.store import PolicyState, RolloutBook

log = logging.getLogger("rolltape.gateway")

_REMEMBERED = 10_000  # rollouts; a forgotten one is read again from the store
_PAUSE_POLL_SECONDS = 0.1


_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Rate = Annotated[int, msgspec.Meta(ge=1, le=2**53)]


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Bounds of one rollout; null = unbounded. `tokens` are sampled ones, `seconds` count from the first call.

    A rollout that has spent `calls`, `tokens` or `seconds` is stopped. Over `calls_per_minute` or `calls_at_once` a
    call is told to come again; null = what the gateway's own limits say.
    """

    calls: _Count | None = None
    tokens: _Count | None = None
    seconds: Annotated[float, msgspec.Meta(ge=0)] | None = None
    calls_per_minute: _Rate | None = None
    calls_at_once: _Rate | None = None


@dataclass(slots=True)
class _Use:
    budget: Budget
    calls: int
    tokens: int
    since: float
    labels: Mapping[str, Any]
    noted: bool = False
    """The store knows that a call was refused."""


class Admission:
    """Decides whether a call may start now."""

    def __init__(self, store: RolloutBook) -> None:
        self._store = store
        self._uses: OrderedDict[str, _Use] = OrderedDict()
        self._policy = PolicyState()

    async def admit(self, rollout_id: str | None) -> PolicyState:
        """Waits out a pause, charges one call. Returns the policy that is serving; raises 403 over budget."""
        policy = await self.policy()
        while policy.state == "paused":
            await asyncio.sleep(_PAUSE_POLL_SECONDS)
            policy = await self.policy()
        if rollout_id is not None:
            await self._charge_call(rollout_id)
        return policy

    async def policy(self) -> PolicyState:
        """The policy that is serving; while the store cannot be read, the last one known."""
        try:
            self._policy = await self._store.policy()
        except StoreError as error:
            log.warning("the policy cannot be read: %s", error)
        return self._policy

    async def rates(self, rollout_id: str | None, usual: Rates) -> Rates:
        """The rates in a rollout's budget, each the usual one where it has none or the store cannot tell."""
        if rollout_id is None:
            return usual
        try:
            budget = (self._uses.get(rollout_id) or await self._load(rollout_id)).budget
        except StoreError as error:
            log.warning("the rates of %s cannot be read: %s", rollout_id, error)
            return usual
        return Rates(budget.calls_per_minute or usual.per_minute, budget.calls_at_once or usual.at_once)

    async def announced(self, rollout_id: str) -> Mapping[str, Any]:
        """The labels that a rollout was announced with; none where the store cannot tell."""
        try:
            use = self._uses.get(rollout_id) or await self._load(rollout_id)
        except StoreError as error:
            log.warning("the labels of %s cannot be read: %s", rollout_id, error)
            return {}
        return use.labels

    def labels(self, rollout_id: str | None) -> Mapping[str, Any]:
        """The labels of a rollout that was admitted; empty where nobody gave it any."""
        use = self._uses.get(rollout_id or "")
        return use.labels if use else {}

    def charge_tokens(self, rollout_id: str, sampled: int) -> None:
        use = self._uses.get(rollout_id)
        if use is not None:
            use.tokens += sampled

    async def _charge_call(self, rollout_id: str) -> None:
        try:
            use = self._uses.get(rollout_id) or await self._load(rollout_id)
        except StoreError as error:
            log.warning("the budget of %s cannot be read: %s", rollout_id, error)
            return
        self._uses.move_to_end(rollout_id)
        over = _exceeded(use, time.time())
        if over:
            await self._note_spent(rollout_id, use)
            raise RequestError(403, "budget_exhausted", f"rollout {rollout_id} is over its budget of {over}")
        use.calls += 1

    async def _note_spent(self, rollout_id: str, use: _Use) -> None:
        """Tell whoever runs the rollout, in whatever process it is, that it ends here: the ending `budget`."""
        if use.noted:
            return
        use.noted = True
        try:
            state = await self._store.rollout(rollout_id)
            if state is not None and state.ending is None:
                await self._store.set_outcome(rollout_id, reward=None, ending="budget", labels=state.labels)
        except StoreError as error:
            log.warning("that the budget of %s is spent cannot be noted: %s", rollout_id, error)

    async def _load(self, rollout_id: str) -> _Use:
        state = await self._store.rollout(rollout_id)
        labels: Any = state.labels if state else {}
        budget = _budget(rollout_id, labels)
        fresh = _Use(
            budget,
            calls=state.n_entries + state.n_open_calls if state else 0,
            tokens=state.generated_tokens if state else 0,
            since=state.created_at if state and state.n_entries else time.time(),
            labels=labels,
        )
        use = self._uses.setdefault(rollout_id, fresh)
        if len(self._uses) > _REMEMBERED:
            self._uses.popitem(last=False)
        return use


def _budget(rollout_id: str, labels: Mapping[str, Any]) -> Budget:
    """The budget in a rollout's labels; none where whoever wrote them meant something else by that name."""
    try:
        return msgspec.convert(labels.get("budget") or {}, Budget)
    except msgspec.ValidationError as error:
        log.warning("the label `budget` of %s bounds nothing: %s", rollout_id, error)
        return Budget()


def _exceeded(use: _Use, now: float) -> str:
    """The bound that is reached, in words, or ""."""
    budget = use.budget
    if budget.calls is not None and use.calls >= budget.calls:
        return f"{budget.calls} calls"
    if budget.tokens is not None and use.tokens >= budget.tokens:
        return f"{budget.tokens} sampled tokens"
    if budget.seconds is not None and now - use.since >= budget.seconds:
        return f"{budget.seconds:g} seconds"
    return ""
