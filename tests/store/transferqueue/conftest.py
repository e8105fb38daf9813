"""One cluster for all of these tests; each test has a namespace of its own in its queue.

Ray and TransferQueue are extras, which `make test-real` installs: without them there is nothing here to collect.
"""

import itertools
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .cluster import ENVIRONMENT, Cluster

if TYPE_CHECKING:
    from rolltape.store.transferqueue import TransferQueueStore

collect_ignore_glob = [] if find_spec("transfer_queue") else ["test_*.py"]
Make = Callable[..., "TransferQueueStore"]
_numbers = itertools.count()


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    before = dict(os.environ)
    os.environ.update(ENVIRONMENT)
    import ray  # reads its settings now

    try:
        with Cluster() as running:
            running.drive()
            ray.init(address=running.address, log_to_driver=False)
            yield running
            ray.shutdown()
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture
def namespace() -> str:
    return f"test{next(_numbers)}"


@pytest.fixture
def make(cluster: Cluster, namespace: str, tmp_path: Path) -> Make:
    """A store of this test's namespace: of the gateway whose journal has that name, or of a trainer for None."""
    from rolltape.store.transferqueue import TransferQueueStore

    def made(journal: str | None = "a", **options: object) -> TransferQueueStore:
        given: dict[str, object] = {"namespace": namespace, "settle_seconds": 0.2} | options
        return TransferQueueStore(None if journal is None else tmp_path / journal, **given)  # type: ignore[arg-type]

    return made
