"""A store over tables: its async methods, over one way to write and one way to read.

Every write is an operation that the writer commits with whatever else waits; every read sees one consistent state.
Nothing here touches the disk or the network in the event loop's thread.
"""

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from rolltape.errors import StoreError
from rolltape.record import Delivery, TokenCaptureSnapshot, TokenEntry
from rolltape.store.contract import RETENTION_SECONDS, LineageMatch, PolicyState, RolloutState, Swept
from rolltape.store.tables import entries, retention, rollouts
from rolltape.store.tables.codec import Packer
from rolltape.store.tables.connection import Connection
from rolltape.store.tables.grouping import Operation
from rolltape.tokens import IntArray, token_ids

T = TypeVar("T")

_POLL_SECONDS = 0.02


class TableStore(ABC):
    """`store.CaptureStore` in full; a subclass knows its database."""

    def __init__(self, *, texts: bool, settle_seconds: float) -> None:
        self._shelf = entries.Shelf(texts=texts)
        self._settle_seconds = settle_seconds

    @abstractmethod
    async def _write(
        self, key: str, operation: Operation, amends: Operation | None = None, call: str | None = None
    ) -> Any:
        """What the operation returns, once it is durable. `key`: the rollout whose row it locks. `call`: see `Job`."""

    @abstractmethod
    def _write_lazily(self, key: str, operation: Operation) -> None:
        """Write with the next batch; nobody awaits it."""

    @abstractmethod
    async def _read(self, operation: Callable[[Connection], T]) -> T:
        """What the operation reads outside of any write."""

    @abstractmethod
    async def close(self) -> None:
        """Write what is queued and release everything. Idempotent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # The sink

    async def begin_call(self, rollout_id: str, model_call_id: str) -> None:
        """The durable intent. Raises `FrozenError`, `RetiredError`, or `ConflictError` for a call already recorded."""
        begin = partial(rollouts.begin_call, rollout_id=rollout_id, call_id=model_call_id)
        await self._write(rollout_id, begin, call=model_call_id)

    async def put(self, entry: TokenEntry) -> None:
        """Make `entry` durable. Raises `ConflictError`, `RetiredError`, or `StoreError` when it could not be stored."""
        failed = partial(
            rollouts.mark_incomplete,
            rollout_id=entry.rollout_id,
            call_id=entry.model_call_id,
            reason="its put failed",
        )
        put = partial(entries.put, shelf=self._shelf, entry=entry)
        await self._write(entry.rollout_id, put, amends=failed, call=entry.model_call_id)

    async def mark_incomplete(self, rollout_id: str, model_call_id: str = "") -> None:
        """Say durably that evidence was lost."""
        mark = partial(
            rollouts.mark_incomplete, rollout_id=rollout_id, call_id=model_call_id, reason="marked by its writer"
        )
        await self._write(rollout_id, mark, amends=mark)

    async def settle_delivery(self, rollout_id: str, model_call_id: str, delivery: Delivery) -> None:
        """Note whether the reply arrived: with the next batch, half a second from now at the latest."""
        self._write_lazily(
            rollout_id,
            partial(
                rollouts.settle_delivery, rollout_id=rollout_id, call_id=model_call_id, delivery=str(Delivery(delivery))
            ),
        )

    # The source

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        """Fence, wait for calls in flight, then snapshot. A rollout without a call gives an empty snapshot.

        Raises `RetiredError` after `drop`.
        """
        since = await self._write(rollout_id, partial(rollouts.fence, rollout_id=rollout_id))
        await self._settled(rollout_id, since)
        snapshot = await self._snapshot(rollout_id)
        if snapshot is None:
            raise StoreError(f"rollout {rollout_id!r} was swept while it was frozen")
        return snapshot

    async def _settled(self, rollout_id: str, frozen_at: float) -> None:
        """Return when no call is in flight, or `settle_seconds` after the rollout was first frozen.

        Any process may settle a call: hence the poll.
        """
        patience = min(self._settle_seconds, frozen_at + self._settle_seconds - time.time())
        deadline = time.monotonic() + patience
        while await self._read(partial(rollouts.n_open_calls, rollout_id=rollout_id)):
            if (left := deadline - time.monotonic()) <= 0:
                return
            await asyncio.sleep(min(left, _POLL_SECONDS))

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        """Retire exactly this frozen state; False for any other."""
        operation = partial(rollouts.drop, rollout_id=rollout_id, snapshot_id=snapshot_id, version=version)
        return bool(await self._write(rollout_id, operation))

    async def read(self, rollout_id: str, *, texts: bool = False) -> TokenCaptureSnapshot | None:
        """What the store holds, without freezing it; also after retirement. None = nothing, or swept."""
        return await self._snapshot(rollout_id, requests=texts)

    # The lineage

    async def record(self, rollout_id: str, model_call_id: str, cumulative_token_ids: IntArray) -> None:
        """Remember a sequence whose entry another sink keeps. A no-op for a call that was put here."""
        sequence = token_ids(cumulative_token_ids, "cumulative_token_ids")
        await self._write(
            rollout_id,
            partial(entries.record, shelf=self._shelf, rollout_id=rollout_id, call_id=model_call_id, sequence=sequence),
        )

    async def resolve(self, rollout_id: str, prompt_token_ids: IntArray) -> LineageMatch | None:
        """The call whose whole sequence is the longest exact prefix of the prompt."""
        prompt = token_ids(prompt_token_ids, "prompt_token_ids")
        match: LineageMatch | None = await self._write(
            rollout_id, partial(entries.resolve, shelf=self._shelf, rollout_id=rollout_id, prompt=prompt)
        )
        return match

    # The rollouts

    async def create_rollout(self, rollout_id: str, labels: Mapping[str, Any] | None = None) -> None:
        """Announce a rollout. Raises `ConflictError` if it exists."""
        await self._write(rollout_id, partial(rollouts.create, rollout_id=rollout_id, labels=labels or {}))

    async def rollouts(self) -> Sequence[RolloutState]:
        """All rollouts, oldest first, retired ones among them."""
        return await self._read(rollouts.states)

    async def rollout(self, rollout_id: str) -> RolloutState | None:
        """The state of one rollout; None = unknown."""
        found = await self._read(partial(rollouts.states, rollout_id=rollout_id))
        return found[0] if found else None

    async def set_outcome(
        self, rollout_id: str, *, reward: float | None, ending: str | None, labels: Mapping[str, Any]
    ) -> None:
        """What the runner says of a rollout; its last word counts. Raises `StoreError` for a NaN or infinite reward."""
        if reward is not None and not math.isfinite(reward):
            raise StoreError(f"reward {reward!r} is no number", hint="use None for a rollout without a reward")
        outcome = {"reward": reward, "ending": ending, "labels": dict(labels)}
        await self._write(rollout_id, partial(rollouts.set_outcome, rollout_id=rollout_id, outcome=outcome))

    async def policy(self) -> PolicyState:
        """Which policy the engines serve, as last set by any process."""
        return await self._read(rollouts.policy)

    async def set_policy(self, policy: PolicyState) -> None:
        """Tell every process which policy the engines serve."""
        await self._write("", partial(rollouts.set_policy, policy=policy))

    async def sweep(
        self,
        seconds: float = RETENTION_SECONDS,
        *,
        quota_bytes: int | None = None,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> Swept:
        """Delete what retention says has to go: see `store.RetainingStore`. Looks first, and writes only if it must."""
        rule = retention.Rule(seconds, quota_bytes, limit)
        found = await self._read(partial(retention.due, rule=rule))
        if dry_run or not found.rollout_ids:
            return found
        swept: Swept = await self._write("", partial(self._swept, rule=rule))
        return swept

    def _swept(self, db: Connection, rule: retention.Rule) -> Swept:
        swept, numbers = retention.sweep(db, rule)
        self._shelf.lineages.discard(numbers)
        return swept

    async def _snapshot(self, rollout_id: str, *, requests: bool = False) -> TokenCaptureSnapshot | None:
        return await self._read(
            partial(_snapshot, rollout_id=rollout_id, requests=requests),
        )


def _snapshot(db: Connection, rollout_id: str, requests: bool) -> TokenCaptureSnapshot | None:
    return rollouts.snapshot(db, Packer(), rollout_id, requests=requests)
