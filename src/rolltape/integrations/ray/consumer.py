"""The consumer's side: rollouts one by one, and the word on what was accepted.

    with Rollouts(actor, examples) as rollouts:
        for arrived in rollouts:      # asking for the next one accepts the one before
            write_durably(arrived)

Leaving the loop by `break` or an exception accepts nothing: the rollout at hand, and all that come after it, keep their
evidence. So does a new loop over the same object, which goes on after the rollout that the earlier one stopped at.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import ray

from rolltape.delivery import MASK_KEY, METRICS_KEY, recorded_capture_metrics
from rolltape.errors import RolltapeError
from rolltape.integrations.ray.arrived import Arrived

log = logging.getLogger("rolltape.ray")


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Rolltape's own errors as they were raised in the actor, without the layers that carried them."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, RolltapeError):
            raise error.cause from None
        raise


class Rollouts:
    """`group_size` rollouts of each example, run by `actor`, as an iterator and as an async one; use one of the two.

    With `accept_on_next` (the default) asking for the next rollout, or finding that there is none, accepts the one
    before. Without it only `accept` does. Leaving it as a context manager ends what still runs in the actor.
    """

    def __init__(
        self, actor: Any, examples: Sequence[Mapping[str, Any]], *, group_size: int = 1, accept_on_next: bool = True
    ) -> None:
        self._actor, self._examples, self._group_size = actor, examples, group_size
        self._accept_on_next = accept_on_next
        self._batch: str | None = None
        self._at_hand: Arrived | None = None
        # Calls that were sent and not answered yet. Whoever stops waiting (a time limit, Ctrl-C) waits for the same one
        # later: sent twice, the first answer, and the rollout in it, would go to nobody.
        self._begun: Any = None
        self._asked: Any = None
        self._retiring: dict[str, Any] = {}
        self._retired: set[str] = set()
        self._records: list[Mapping[str, Any]] = []
        self.kept: list[str] = []
        """Rollouts that were accepted and whose evidence stayed all the same: it had changed since."""

    def metrics(self) -> dict[str, float]:
        """The `token_capture/*` numbers of what was handed out so far; {} of nothing."""
        return recorded_capture_metrics(self._records)

    def __iter__(self) -> Self:
        self._at_hand = None
        return self

    def __next__(self) -> Arrived:
        if self._at_hand is not None and self._accept_on_next:
            self.accept(self._at_hand)
        with plain_errors():
            if self._batch is None:
                self._batch = ray.get(self._begin())
            arrived = self._take(ray.get(self._ask()))
        if arrived is None:
            raise StopIteration
        return arrived

    def accept(self, arrived: Arrived) -> bool:
        """The result is durable where it is going: retire its evidence. False where that stays. Idempotent."""
        with plain_errors():
            retired = ray.get(self._retire(arrived)) if self._may_retire(arrived) else False
        return self._accepted(arrived, retired)

    def close(self) -> None:
        """End what still runs in the actor. What was not accepted stays. Idempotent."""
        self._at_hand = None
        if self._batch is not None:
            ray.get(self._actor.end.remote(self._batch))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        self._at_hand = None
        return self

    async def __anext__(self) -> Arrived:
        if self._at_hand is not None and self._accept_on_next:
            await self.accept_async(self._at_hand)
        with plain_errors():
            if self._batch is None:
                self._batch = await self._begin()
            arrived = self._take(await self._ask())
        if arrived is None:
            raise StopAsyncIteration
        return arrived

    async def accept_async(self, arrived: Arrived) -> bool:
        """`accept`, for an event loop."""
        with plain_errors():
            retired = await self._retire(arrived) if self._may_retire(arrived) else False
        return self._accepted(arrived, retired)

    async def aclose(self) -> None:
        """`close`, for an event loop."""
        self._at_hand = None
        if self._batch is not None:
            await self._actor.end.remote(self._batch)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _begin(self) -> Any:
        if self._begun is None:
            self._begun = self._actor.begin.remote(self._examples, self._group_size)
        return self._begun

    def _ask(self) -> Any:
        if self._asked is None:
            self._asked = self._actor.next.remote(self._batch)
        return self._asked

    def _take(self, arrived: Arrived | None) -> Arrived | None:
        self._asked = None
        self._at_hand = arrived
        if arrived is not None:
            self._records.append({name: arrived.result.get(name) for name in (METRICS_KEY, MASK_KEY)})
        return arrived

    def _may_retire(self, arrived: Arrived) -> bool:
        return arrived.snapshot_id is not None and arrived.rollout_id not in self._retired

    def _retire(self, arrived: Arrived) -> Any:
        name = arrived.rollout_id
        if name not in self._retiring:
            self._retiring[name] = self._actor.retire.remote(name, arrived.snapshot_id, arrived.version)
        return self._retiring[name]

    def _accepted(self, arrived: Arrived, retired: bool) -> bool:
        name = arrived.rollout_id
        self._retiring.pop(name, None)
        if self._at_hand is not None and self._at_hand.rollout_id == name:
            self._at_hand = None
        if retired:
            self._retired.add(name)
        elif self._may_retire(arrived) and name not in self.kept:
            self.kept.append(name)
            log.warning("rollout %s was accepted, and its evidence stays: it has changed since", name)
        return name in self._retired
