"""Whatever is done to it in whatever order, the store in a queue says what the reference in memory says."""

import itertools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import rule

from rolltape.record import TokenCaptureSnapshot
from rolltape.store.transferqueue import TransferQueueStore
from rolltape.store.transferqueue.reading import UNKNOWN

from ..test_against_the_reference import Stores, rollout_ids

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("cluster")]
numbers = itertools.count()


class OnTransferQueue(Stores):
    """The same steps, but that nobody freezes what was never heard of; the second store is opened again."""

    namespace: str | None = None

    def make(self) -> TransferQueueStore:  # type: ignore[override]
        if self.namespace is None:
            self.namespace = f"reference{next(numbers)}"
        return TransferQueueStore(Path(self.folder.name), namespace=self.namespace, settle_seconds=0)

    @rule(rollout_id=rollout_ids)
    def freeze(self, rollout_id: str) -> None:
        a, b = self.both(lambda store: store.freeze(rollout_id))
        if isinstance(b, TokenCaptureSnapshot) and b.incomplete_reasons == (UNKNOWN,):
            self.compare(a, b)
        elif isinstance(a, TokenCaptureSnapshot):
            self.compare(a, b)
            self.seen[rollout_id] = a, b
        else:
            assert a == b

    def compare(self, a: TokenCaptureSnapshot, b: TokenCaptureSnapshot) -> None:
        if b.incomplete_reasons == (UNKNOWN,):
            assert not a.entries
        else:
            super().compare(a, b)


TestTransferQueueAgrees = OnTransferQueue.TestCase
TestTransferQueueAgrees.settings = settings(
    max_examples=30,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,  # a step here takes milliseconds: what fails has to be the same on every machine
    suppress_health_check=list(HealthCheck),
)
