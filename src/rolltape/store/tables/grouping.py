"""Operations that wait for a commit, and who awaits them: the queue before every group commit.

Lazy jobs (a delivery note) wait for the next batch, half a second at most. Futures are resolved in the event loops that
made them, once a batch for each.
"""

import asyncio
import queue
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rolltape.errors import StoreError
from rolltape.store.tables.connection import Connection

Operation: TypeAlias = Callable[[Connection], Any]

LAZY_SECONDS = 0.5


@dataclass(slots=True, eq=False)
class Job:
    """One operation and who awaits it (nobody: `future` None). `amends`: what to write instead if it fails, or None.

    A job whose own operation is its amends is tried again until the disk takes it.
    """

    operation: Operation
    future: asyncio.Future[Any] | None = None
    amends: Operation | None = None
    lazy: bool = False
    key: str = ""
    """The rollout whose row it locks, for databases in which rows are locked one by one."""
    call: str | None = None
    """The call that it begins or puts, which makes its rollout where there is none yet; None for other jobs."""


class Waiting:
    """The jobs that wait. Any thread adds; one thread takes."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._closed = False
        self._owed: list[Job] = []

    @property
    def empty(self) -> bool:
        return self._queue.empty()

    def submit(
        self, operation: Operation, *, amends: Operation | None = None, key: str = "", call: str | None = None
    ) -> asyncio.Future[Any]:
        """Queue an operation; the future resolves after the commit. Raises `StoreError` when closed."""
        future = asyncio.get_running_loop().create_future()
        self._put(Job(operation, future, amends, key=key, call=call))
        return future

    def submit_lazily(self, operation: Operation, *, key: str = "") -> None:
        """Queue an operation that nobody awaits and that is worth no sync of its own."""
        self._put(Job(operation, lazy=True, key=key))

    def close(self) -> None:
        """Take no more jobs; the last `take` says so. Idempotent."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)

    def _put(self, job: Job) -> None:
        if self._closed:
            raise StoreError("the store is closed")
        self._queue.put(job)

    def take(self) -> tuple[list[Job], bool]:
        """Everything that waits, as soon as something does that cannot wait longer; and whether to close."""
        batch, self._owed = self._owed, []
        deadline = time.monotonic() + LAZY_SECONDS
        urgent = False
        while True:
            try:
                if urgent:
                    job = self._queue.get_nowait()
                else:
                    job = self._queue.get(timeout=max(0.0, deadline - time.monotonic()) if batch else None)
            except queue.Empty:
                return batch, False
            if job is None:
                return batch, True
            if not batch:
                deadline = time.monotonic() + LAZY_SECONDS
            batch.append(job)
            urgent = urgent or not job.lazy

    def owe(self, batch: Sequence[Job]) -> None:
        """Their amends are due with a later batch."""
        self._owed += [
            Job(job.amends, amends=job.amends, lazy=True, key=job.key) for job in batch if job.amends is not None
        ]


def resolve(results: Iterable[tuple[Job, Any]]) -> None:
    """Wake the callers, once for each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = defaultdict(list)
    for job, result in results:
        if job.future is not None:
            by_loop[job.future.get_loop()].append((job.future, result))
    for loop, pairs in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, pairs)
        except RuntimeError:  # the loop ended: nobody waits any more
            continue


def _settle(pairs: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, result in pairs:
        if future.done():
            continue
        if isinstance(result, StoreError):
            future.set_exception(result)
        else:
            future.set_result(result)
