"""A foreign sink in the place of a store: calls go to the sink, what is known of rollouts stays in this process.

A sink is written to and never read, so whoever wants tokens back asks the transport's own `TokenSource`; what would
need them here raises `ElsewhereError`. Announced rollouts, their budgets and outcomes, and the policy are kept in
memory: they are this worker's, and end with it.

Whatever a foreign class raises becomes a `StoreError` without the values its constructor was given; a `StoreError` of
its own (`FrozenError` from `begin_call`, say) passes as it is.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from rolltape import tokens
from rolltape.errors import ConflictError, ElsewhereError, StoreError
from rolltape.record import Delivery, TokenCaptureSnapshot, TokenEntry
from rolltape.store.contract import LineageMatch, PolicyState, RolloutState
from rolltape.tokens import IntArray

log = logging.getLogger("rolltape.store")

_REMEMBERED = 100_000  # rollouts; the one that was quiet longest is forgotten, budget and all
_CLOSE_SECONDS = 10.0
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Hired:
    """A foreign object, its name for messages, and what takes secrets out of a text."""

    it: Any
    name: str
    scrub: Callable[[object], str] = str

    async def do(self, step: str, *args: Any) -> Any:
        """`await it.step(*args)`, its faults as `StoreError`."""
        try:
            return await getattr(self.it, step)(*args)
        except StoreError:
            raise
        except Exception as error:  # the boundary: a foreign class may raise anything
            raise StoreError(f"{self.name}.{step}: {type(error).__name__}: {self.scrub(error)}") from None

    def offers(self, step: str) -> bool:
        return getattr(self.it, step, None) is not None


@dataclass(slots=True)
class _Known:
    """What this process has seen of one rollout."""

    labels: dict[str, Any] = field(default_factory=dict)
    created_at: float = field(default_factory=time.time)
    updated_at: float = field(default_factory=time.time)
    open_calls: set[str] = field(default_factory=set)
    calls: dict[str, int] = field(default_factory=dict)
    """Sampled tokens by call."""
    version: int = 1
    incomplete: bool = False
    reward: float | None = None
    ending: str | None = None


class RolloutMemory:
    """A `RolloutBook` in this process's memory, fed by what passes through it."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._policy = PolicyState()

    def touch(self, rollout_id: str) -> _Known:
        known = self._known.setdefault(rollout_id, _Known())
        self._known.move_to_end(rollout_id)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        known.version += 1
        known.updated_at = time.time()
        return known

    async def create_rollout(self, rollout_id: str, labels: Mapping[str, Any] | None = None) -> None:
        if rollout_id in self._known:
            raise ConflictError(f"rollout {rollout_id!r} exists")
        self.touch(rollout_id).labels = dict(labels or {})

    async def rollouts(self) -> Sequence[RolloutState]:
        return [_state(rollout_id, known) for rollout_id, known in self._known.items()]

    async def rollout(self, rollout_id: str) -> RolloutState | None:
        known = self._known.get(rollout_id)
        return None if known is None else _state(rollout_id, known)

    async def set_outcome(
        self, rollout_id: str, *, reward: float | None, ending: str | None, labels: Mapping[str, Any]
    ) -> None:
        known = self.touch(rollout_id)
        known.reward, known.ending = reward, ending
        known.labels |= dict(labels)

    async def policy(self) -> PolicyState:
        return self._policy

    async def set_policy(self, policy: PolicyState) -> None:
        self._policy = policy


class Relay(RolloutMemory):
    """A `store.CaptureStore` over a foreign sink, and over a foreign lineage store where there is one.

    Closes what it was given: it was built for this gateway. Without a sink nothing is captured, and `why` says so.
    """

    def __init__(self, sink: Hired | None, *, why: str) -> None:
        super().__init__()
        self._sink, self._why = sink, why
        self.lineage: Hired | None = None
        self._closed = False

    async def begin_call(self, rollout_id: str, model_call_id: str) -> None:
        sink = self._writable()
        if sink.offers("begin_call"):
            await sink.do("begin_call", rollout_id, model_call_id)
        self.touch(rollout_id).open_calls.add(model_call_id)

    async def put(self, entry: TokenEntry) -> None:
        filled = entry.with_(
            parent_call_id=entry.parent_call_id or await self._parent(entry),
            prompt_digest=tokens.digest(entry.prompt_token_ids),
        )
        await self._writable().do("put", filled)
        known = self.touch(entry.rollout_id)
        known.open_calls.discard(entry.model_call_id)
        known.calls[entry.model_call_id] = len(entry.generation_token_ids)
        await self._remember(entry)

    async def mark_incomplete(self, rollout_id: str, model_call_id: str = "") -> None:
        await self._writable().do("mark_incomplete", rollout_id, model_call_id)
        known = self.touch(rollout_id)
        known.open_calls.discard(model_call_id)
        known.incomplete = True

    async def settle_delivery(self, rollout_id: str, model_call_id: str, delivery: Delivery) -> None:
        sink = self._writable()
        if sink.offers("settle_delivery"):
            await sink.do("settle_delivery", rollout_id, model_call_id, delivery)

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        self._refuse("freeze")

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        self._refuse("retire")

    async def read(self, rollout_id: str, *, texts: bool = False) -> TokenCaptureSnapshot | None:
        self._refuse("read")

    async def record(self, rollout_id: str, model_call_id: str, cumulative_token_ids: IntArray) -> None:
        if self.lineage is not None:
            await self.lineage.do("record", rollout_id, model_call_id, cumulative_token_ids)

    async def resolve(self, rollout_id: str, prompt_token_ids: IntArray) -> LineageMatch | None:
        if self.lineage is None:
            return None
        found: LineageMatch | None = await self.lineage.do("resolve", rollout_id, prompt_token_ids)
        return found

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for hired in (self._sink, self.lineage):
            if hired is not None:
                await _close(hired)

    def _writable(self) -> Hired:
        if self._sink is None:
            self._refuse("record")
        return self._sink

    def _refuse(self, what: str) -> NoReturn:
        raise ElsewhereError(f"this gateway cannot {what}: {self._why}")

    async def _parent(self, entry: TokenEntry) -> str | None:
        """The call that this one extends. Evidence only: without it, exact tokens tell the same."""
        found = await self._tolerated(self.resolve(entry.rollout_id, entry.prompt_token_ids), entry)
        return found.model_call_id if found else None

    async def _remember(self, entry: TokenEntry) -> None:
        await self._tolerated(self.record(entry.rollout_id, entry.model_call_id, entry.sequence), entry)

    async def _tolerated(self, asked: Awaitable[Answer], entry: TokenEntry) -> Answer | None:
        try:
            return await asked
        except StoreError as error:
            log.warning("the lineage of %s/%s is unknown: %s", entry.rollout_id, entry.model_call_id, error)
            return None


async def _close(hired: Hired) -> None:
    """Close it, and go on whatever it does: another may still wait to be closed."""
    try:
        await asyncio.wait_for(hired.do("close"), _CLOSE_SECONDS)
    except (StoreError, TimeoutError) as error:
        log.warning("closing %s failed: %s", hired.name, error or type(error).__name__)


def _state(rollout_id: str, known: _Known) -> RolloutState:
    return RolloutState(
        rollout_id=rollout_id,
        created_at=known.created_at,
        updated_at=known.updated_at,
        n_entries=len(known.calls),
        n_open_calls=len(known.open_calls),
        generated_tokens=sum(known.calls.values()),
        frozen=False,
        incomplete=known.incomplete,
        version=known.version,
        reward=known.reward,
        ending=known.ending,
        labels=known.labels,
    )


OFFERED = ("begin_call", "settle_delivery")
"""What a sink may have beside what it must; awaited before and after the entry."""
SINK_METHODS = {
    "put": "a sink takes token entries: async def put(self, entry), durable when it returns",
    "mark_incomplete": "without it a rollout that lost a call would look complete: "
    "async def mark_incomplete(self, rollout_id, model_call_id='')",
    "close": "whoever builds a client closes it: async def close(self)",
}
LINEAGE_METHODS = {
    "record": "async def record(self, rollout_id, model_call_id, cumulative_token_ids)",
    "resolve": "async def resolve(self, rollout_id, prompt_token_ids) -> LineageMatch | None",
    "close": "whoever builds a client closes it: async def close(self)",
}
