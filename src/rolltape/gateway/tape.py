"""Where a call is recorded: the intent before, the entry after, and the mark when either cannot be written.

`Tape` records, `NoTape` is a call that is served and not captured. A fault of the recording is noted on the rollout and
kept from the harness, unless the gateway is strict.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from rolltape.errors import FrozenError, RequestError, RetiredError, StoreError
from rolltape.record import Delivery, TokenEntry
from rolltape.store import CallSink, TokenSink

log = logging.getLogger("rolltape.gateway")


class RolloutClosed(RequestError):
    """The rollout takes no calls: there is nothing to sample, and nothing to record."""

    def __init__(self, rollout_id: str, how: str) -> None:
        super().__init__(403, f"rollout_{how}", f"rollout {rollout_id} is {how}: it takes no calls")


class CaptureFailed(RequestError):
    """A strict gateway could not record a call, so the call fails."""

    def __init__(self) -> None:
        super().__init__(503, "capture_failed", "the call could not be recorded, and this gateway is strict")


class Recording(Protocol):
    """Where one call is recorded."""

    async def begun(self) -> None:
        """Returns once the intent is durable or its loss is noted. Raises `RolloutClosed`, `CaptureFailed`."""
        ...

    async def record(self, entry: TokenEntry) -> None:
        """Returns once the entry is durable or its loss is noted. Raises `CaptureFailed`."""
        ...

    async def settle(self, delivery: Delivery) -> None:
        """Notes whether the reply reached the harness."""
        ...


class NoTape:
    """The recording of a call that is served and not captured."""

    async def begun(self) -> None:
        return

    async def record(self, entry: TokenEntry) -> None:
        return

    async def settle(self, delivery: Delivery) -> None:
        return


class Marks:
    """Marks on rollouts that lost something. What the store cannot take now is tried again until it does."""

    def __init__(self, store: TokenSink) -> None:
        self._store = store
        self._pending: set[tuple[str, str]] = set()
        self._retrying: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._pending)

    async def add(self, rollout_id: str, model_call_id: str) -> None:
        """Mark the rollout, now if the store takes it."""
        self._pending.add((rollout_id, model_call_id))
        try:
            await self.flush()
        except StoreError:
            if self._retrying is None or self._retrying.done():
                self._retrying = asyncio.create_task(self._retry())

    async def flush(self) -> None:
        """Write what is pending. Raises `StoreError` if the store still cannot take it."""
        for mark in tuple(self._pending):
            await self._store.mark_incomplete(*mark)
            self._pending.discard(mark)

    async def _retry(self) -> None:
        wait = 0.05
        while self._pending:
            await asyncio.sleep(wait)
            wait = min(2 * wait, 5.0)
            try:
                await self.flush()
            except StoreError:
                continue

    async def close(self) -> None:
        """One last try; what is still pending is visible as an intent without outcome."""
        if self._retrying is not None:
            self._retrying.cancel()
        try:
            await self.flush()
        except StoreError as error:
            log.critical("%d marks could not be written: %s", len(self._pending), error)


class Tape:
    """The recording of a captured call. Its intent is on the way as soon as it exists."""

    def __init__(
        self,
        store: CallSink,
        marks: Marks,
        rollout_id: str,
        model_call_id: str,
        *,
        patience: float,
        strict: bool,
        on_fault: Callable[[str], None],
    ) -> None:
        self._store, self._marks = store, marks
        self._rollout_id, self._call_id = rollout_id, model_call_id
        self._patience, self._strict, self._on_fault = patience, strict, on_fault
        self._recorded = False
        self._intent = asyncio.create_task(store.begin_call(rollout_id, model_call_id))
        self._intent.add_done_callback(_retrieve)

    async def begun(self) -> None:
        try:
            await asyncio.wait_for(asyncio.shield(self._intent), self._patience)
        except FrozenError as error:
            raise RolloutClosed(self._rollout_id, "frozen") from error
        except RetiredError as error:
            raise RolloutClosed(self._rollout_id, "retired") from error
        except (StoreError, TimeoutError) as error:
            await self._lost("begin_call", error)

    async def record(self, entry: TokenEntry) -> None:
        put = asyncio.create_task(self._put(entry))
        put.add_done_callback(_retrieve)
        try:
            await asyncio.wait_for(asyncio.shield(put), self._patience)
        except (FrozenError, RetiredError):
            return  # refused at the door, and said so: there is no call to record
        except (StoreError, TimeoutError) as error:
            await self._lost("put", error)

    async def _put(self, entry: TokenEntry) -> None:
        """The entry never overtakes its intent, but a *failed* intent is no reason not to keep the entry."""
        try:
            await asyncio.shield(self._intent)
        except (FrozenError, RetiredError):
            raise
        except StoreError as error:
            log.warning("recording %s/%s without its intent: %s", self._rollout_id, self._call_id, error)
        await self._store.put(entry)
        self._recorded = True

    async def settle(self, delivery: Delivery) -> None:
        if not self._recorded:
            return
        try:
            await self._store.settle_delivery(self._rollout_id, self._call_id, delivery)
        except StoreError as error:
            log.warning("the delivery of %s/%s is not noted: %s", self._rollout_id, self._call_id, error)

    async def _lost(self, step: str, error: Exception) -> None:
        log.error("%s of %s/%s failed: %s", step, self._rollout_id, self._call_id, error or type(error).__name__)
        self._on_fault(step)
        await self._marks.add(self._rollout_id, self._call_id)
        if self._strict:
            raise CaptureFailed from error


def _retrieve(task: "asyncio.Task[None]") -> None:
    """Look at a task's exception, so that one whose waiter gave up is not reported as never retrieved."""
    if not task.cancelled():
        task.exception()
