"""The rollouts of one request: some at a time, handed out in the order in which they finish.

A finished rollout waits for its consumer. As many may wait as run at a time; then nothing new is started, so that a
consumer that went away costs a bounded amount of work.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rolltape.errors import RolltapeError
from rolltape.integrations.ray.arrived import Arrived


@dataclass(frozen=True, slots=True)
class Slot:
    """One rollout that is wanted: the k-th of an example."""

    example: Mapping[str, Any]
    example_index: int
    rollout_index: int
    group_id: str


class Batch:
    """`work` in progress, from the moment it is made. Needs a running event loop."""

    def __init__(self, work: Sequence[Slot], run: Callable[[Slot], Awaitable[Arrived]], concurrency: int) -> None:
        self._run = run
        self._done: asyncio.Queue[Arrived | None] = asyncio.Queue(concurrency)
        self._failure: BaseException | None = None
        self._all = asyncio.create_task(self._work_all(iter(work), min(concurrency, len(work))))

    async def next(self) -> Arrived | None:
        """The next that has finished; None after the last. Raises what broke the batch, after what had finished."""
        arrived = await self._done.get()
        if arrived is None:
            self._done.put_nowait(None)  # for whoever asks again
            if self._failure is not None:
                raise self._failure
        return arrived

    async def end(self) -> None:
        """End what is running, and let go of what was not fetched: its evidence stays. Idempotent."""
        self._all.cancel()
        await asyncio.wait([self._all])
        while not self._done.empty():
            self._done.get_nowait()
        self._failure = RolltapeError("these rollouts were ended before all of them had been fetched")
        self._done.put_nowait(None)

    async def _work_all(self, waiting: Iterator[Slot], workers: int) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(self._work(waiting))
        except* Exception as failures:
            self._failure = _first(failures)
        await self._done.put(None)

    async def _work(self, waiting: Iterator[Slot]) -> None:
        for slot in waiting:
            await self._done.put(await self._run(slot))


def _first(failures: BaseExceptionGroup[Exception]) -> BaseException:
    failure: BaseException = failures
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure
