"""One cluster of two nodes for all of these tests. Actors go to the second one, by its resource `second`.

Ray is an extra, which `make test-real` installs: without it there is nothing here to collect.
"""

import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rolltape.config import EngineConfig, ServeConfig

collect_ignore_glob = [] if find_spec("ray") else ["test_*.py"]

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_AUTH_MODE": "disabled",  # a head would ask for a token that a process which imported Ray before does not know
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "PYTHONWARNINGS": "ignore",
}
NODE = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False}
SPIN: dict[str, Any] = {"options": {"num_cpus": 0, "resources": {"second": 0.01}}, "start_seconds": 60}

Spin = Callable[..., Any]


@pytest.fixture(scope="package")
def cluster() -> Iterator[str]:
    """Its address; this process is connected to it."""
    folder = tempfile.mkdtemp(prefix="rt-", dir="/tmp")  # paths of sockets must stay under 107 bytes
    before = dict(os.environ)
    os.environ.update(ENVIRONMENT, RAY_TMPDIR=folder, PYTHONPATH=str(Path(__file__).parents[2]))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield from _cluster()
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)


def _cluster() -> Iterator[str]:
    import ray
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args=NODE)
    try:
        nodes.add_node(**NODE, resources={"second": 1})
        nodes.wait_for_nodes()
        ray.init(address=nodes.address, namespace="rolltape", log_to_driver=False)
        yield nodes.address
    finally:
        ray.shutdown()
        nodes.shutdown()


@pytest.fixture
def gateway(tmp_path: Path) -> ServeConfig:
    return ServeConfig(engine=EngineConfig(kind="scripted"), dir=str(tmp_path / "data"))


@pytest.fixture
def spin(cluster: str, gateway: ServeConfig) -> Iterator[Spin]:
    """`spinup_rollout_actor` on the second node; shut down after the test."""
    import ray

    from integrations.ray.side import asks_twice
    from rolltape.integrations.ray import spinup_rollout_actor

    actors = []

    def spun(**changes: Any) -> Any:
        actors.append(spinup_rollout_actor(**{"gateway": gateway, "agent": asks_twice, **SPIN, **changes}))
        return actors[-1]

    yield spun
    for actor in actors:
        ray.get(actor.shutdown.remote())
        ray.kill(actor)
