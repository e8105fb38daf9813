"""Sink and source, as far as they go without Gym."""

import importlib.util
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.integrations.recorded import records

from rolltape.errors import ConfigError
from rolltape.integrations.nemo_gym import RolltapeLineage, RolltapeSink, RolltapeSource
from rolltape.store import TokenCaptureStore


@dataclass
class Recorded:
    """A recorded call that dumps as Gym's does."""

    body: Mapping[str, Any]

    def model_dump(self, *, mode: str) -> Mapping[str, Any]:
        assert mode == "json"
        return self.body


@pytest.fixture
async def sink(tmp_path: Path) -> AsyncIterator[RolltapeSink]:
    opened = RolltapeSink(dir=tmp_path / "store")
    yield opened
    await opened.close()
    await opened.close()


async def test_what_was_put_is_there_for_another_process(sink: RolltapeSink, store: TokenCaptureStore) -> None:
    for body in records("deltas"):
        await sink.begin_call("deltas", body["model_call_id"])
        await sink.put(Recorded(body))
        held = await store.read("deltas")
        assert held is not None
        assert held.entries[-1].model_call_id == body["model_call_id"]
    assert not (await store.freeze("deltas")).incomplete


async def test_a_conflict_is_the_value_error_that_gym_raises(sink: RolltapeSink, store: TokenCaptureStore) -> None:
    body = records("whole")[0]
    await sink.put(Recorded(body))
    await sink.put(Recorded(dict(body)))
    with pytest.raises(ValueError, match="another payload"):
        await sink.put(Recorded(body | {"created_at": 1.0}))
    assert (await store.freeze("whole")).incomplete


async def test_a_delta_of_a_call_that_is_not_there_is_refused(sink: RolltapeSink) -> None:
    with pytest.raises(ValueError, match="not recorded"):
        await sink.put(Recorded(records("deltas")[1]))


async def test_nothing_begins_after_a_freeze(sink: RolltapeSink, store: TokenCaptureStore) -> None:
    await sink.put(Recorded(records("whole")[0]))
    snapshot = await store.freeze("whole")
    with pytest.raises(RuntimeError, match="frozen"):
        await sink.begin_call("whole", "late")
    await sink.mark_incomplete("whole", "late")
    assert not await store.drop("whole", snapshot_id=snapshot.snapshot_id, version=snapshot.version)


def test_a_relative_directory_is_refused() -> None:
    with pytest.raises(ConfigError, match="relative"):
        RolltapeSink(dir="captures")


@pytest.mark.parametrize("endpoint", [RolltapeSource, RolltapeLineage])
def test_what_needs_gym_says_so_at_once_where_it_is_not_installed(endpoint: Any, tmp_path: Path) -> None:
    assert importlib.util.find_spec("nemo_gym") is None, "the tests' environment is meant to be without Gym"
    with pytest.raises(ConfigError, match="cannot import NeMo Gym"):
        endpoint(dir=tmp_path)
