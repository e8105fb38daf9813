"""The actor on a second node: what it runs, what it hands out, how it starts and ends."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import numpy as np
import pytest
import ray
from msgspec.structs import replace

from foreign_transport import KEY
from integrations.ray import side
from integrations.ray.conftest import Spin
from rolltape.config import ServeConfig, TokenIdCapture
from rolltape.errors import ConfigError, RolltapeError
from rolltape.integrations.ray import Arrived, GatewayAt, HarnessLoop, Rollouts, spinup_rollout_actor
from rolltape.rollouts.run import NO_CALLS, NOT_CAPTURED
from rolltape.store import TokenCaptureStore

pytestmark = pytest.mark.real

ONE = [{"id": "t", "prompt": "hi"}]


def all_of(actor: Any, examples: list[dict[str, Any]], **options: Any) -> list[Arrived]:
    with Rollouts(actor, examples, **options) as rollouts:
        return list(rollouts)


async def test_rows_hold_the_ids_that_the_store_on_the_other_node_holds(spin: Spin, gateway: ServeConfig) -> None:
    arrived = all_of(spin(), ONE, group_size=3)

    assert len({one.rollout_id for one in arrived}) == 3
    async with TokenCaptureStore(gateway.dir) as store:
        for one in arrived:
            assert str(UUID(one.rollout_id)) == one.rollout_id == one.result["_ng_rollout_id"]
            held = await store.read(one.rollout_id)
            assert held is not None
            first, last = sorted(held.entries, key=lambda entry: entry.length)
            (row,) = one.rows
            assert np.array_equal(row.token_ids, last.sequence)
            assert row.loss_mask.sum() == len(first.generation_token_ids) + len(last.generation_token_ids)
            carried = [item for item in one.result["response"]["output"] if "generation_token_ids" in item]
            assert carried[-1]["generation_token_ids"] == last.generation_token_ids.tolist()
            assert (one.result["reward"], one.result["ending"], one.result["exclude"]) == (0.5, "finished", False)
            told = await store.rollout(one.rollout_id)
            assert told is not None
            assert told.labels["group_id"] == "t"


def test_groups_are_those_of_the_dataset_whatever_was_sent(spin: Spin) -> None:
    examples = [
        {"group_id": "g", "id": "a", "prompt": "same words"},
        {"_ng_task_index": 7, "prompt": "same words"},
        {"group_id": "g", "id": "b", "prompt": "other words"},
    ]
    arrived = all_of(spin(), examples, group_size=2)

    groups = {(one.example_index, one.rollout_index): one.group_id for one in arrived}
    assert groups == {(0, 0): "g", (0, 1): "g", (1, 0): "7", (1, 1): "7", (2, 0): "g", (2, 1): "g"}


def test_media_are_those_of_the_output_before_it_was_rebuilt(spin: Spin) -> None:
    (one,) = all_of(spin(), ONE)

    assert one.media == ({"item": 1, "part": 1, "value": side.SHOWN},)
    assert side.IMAGE not in str(one.result["response"]["output"])


def test_a_harness_runs_on_the_actors_node(spin: Spin) -> None:
    actor = spin(agent="mini-swe-agent", budget={"calls": 20})
    (one,) = all_of(actor, [{"id": "t", "prompt": "say hi", "files": {"a": "A"}, "check": "grep A a", "split": "x"}])

    assert one.result["harness"] == "mini-swe-agent"
    assert (one.result["reward"], one.result["ending"], one.result["mask_sample"]) == (1.0, "finished", False)
    assert one.rows


def test_a_loop_that_fails_is_a_crash_without_a_reward_and_the_run_goes_on(spin: Spin) -> None:
    arrived = all_of(spin(agent=side.asks_and_fails), ONE, group_size=2)

    for one in arrived:
        assert (one.result["ending"], one.result["reward"], one.result["exclude"]) == ("crashed", None, True)
        assert one.result["excluded_reason"] == "crashed: OSError: the environment went away"
        assert one.rows


def test_a_rollout_without_a_call_is_left_out(spin: Spin) -> None:
    (one,) = all_of(spin(agent=side.asks_nothing), ONE)

    assert (one.result["exclude"], one.result["excluded_reason"]) == (True, NO_CALLS)


def test_a_gateway_that_captures_nothing_says_so_of_each_rollout(spin: Spin, gateway: ServeConfig) -> None:
    (one,) = all_of(spin(gateway=replace(gateway, token_id_capture=TokenIdCapture(enabled=False))), ONE)

    assert (one.result["exclude"], one.result["excluded_reason"]) == (True, NOT_CAPTURED)


def test_the_numbers_of_a_step_are_summed_up(spin: Spin) -> None:
    with Rollouts(spin(), ONE, group_size=2) as rollouts:
        assert rollouts.metrics() == {}
        list(rollouts)
    numbers = rollouts.metrics()
    assert numbers["token_capture/rollouts_rebuilt"] == 2
    assert numbers["token_capture/calls_per_rollout_mean"] == 2
    assert len(numbers) == 11


@pytest.mark.parametrize(
    ("factory", "why"),
    [
        (side.fails, "failed: ConnectionError: no such queue"),
        (side.nothing, "NoneType has no freeze, drop, close"),
        (side.a_dict, "dict has no freeze, drop, close"),
        (side.a_class, "the class WatchedSource itself"),
        (side.no_drop, "NoDrop has no drop"),
        (side.blocking, "Blocking.freeze cannot be awaited"),
        ("not.callable:Source", "is a str, which cannot be called"),
    ],
)
def test_a_factory_that_gives_no_source_stops_the_start(spin: Spin, factory: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as told:
        spin(token_source_factory=factory)
    assert "token_source_factory" in told.value.message
    assert told.value.hint or "failed" in why


def test_what_cannot_run_is_told_at_the_start(cluster: str, spin: Spin, gateway: ServeConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no harness profile 'mini-swe'"):
        spin(agent="mini-swe")
    with pytest.raises(ConfigError, match="no engine is named 'scriptd'"):
        spin(gateway=replace(gateway, engine=replace(gateway.engine, kind="scriptd")))
    with pytest.raises(ConfigError, match="dir must be absolute"):
        spin(gateway=replace(gateway, dir="data"))
    with pytest.raises(ConfigError, match="concurrency must be at least 1"):
        spin(concurrency=0)
    with pytest.raises(ConfigError, match="No module named 'no_such_package'") as told:
        spin(agent=side.Unknown())
    assert "installed on the actor's node" in told.value.hint
    options = {"num_cpus": 0, "resources": {"third": 1}}
    with pytest.raises(ConfigError, match="has not started after 1 s"):
        spinup_rollout_actor(gateway=gateway, agent=side.asks_twice, options=options, start_seconds=1)


def test_examples_that_cannot_run_are_told_before_the_first_rollout(spin: Spin, gateway: ServeConfig) -> None:
    actor = spin(agent=HarnessLoop("mini-swe-agent"))
    for examples, why in [
        ([*ONE, {"prompt": "hi"}], "example 1 does not say which prompt"),
        ([{"id": "t"}], "example 0 is no task"),
        ([{"id": "t", "prompt": "hi", "files": {"../x": ""}}], "no path inside the workspace"),
    ]:
        with pytest.raises(ConfigError, match=why):
            all_of(actor, examples)
    with pytest.raises(ConfigError, match="group_size must be at least 1"):
        all_of(actor, ONE, group_size=0)
    assert not (Path(gateway.dir) / "workspaces").exists()


def test_a_source_is_made_in_the_actor_and_closed_while_the_gateway_still_serves(spin: Spin, tmp_path: Path) -> None:
    actor = spin(agent=side.NotesItsAddress(tmp_path / "url"), token_source_factory=side.Watched(tmp_path))
    (one,) = all_of(actor, ONE)
    ray.get(actor.shutdown.remote())
    ray.get(actor.shutdown.remote())  # once more, to no effect

    made, *rest = (tmp_path / "log").read_text().splitlines()
    second = next(node["NodeID"] for node in ray.nodes() if "second" in node["Resources"])
    assert made.endswith(f"on {second}")
    assert ray.get_runtime_context().get_node_id() != second
    assert rest == [f"freeze {one.rollout_id}", f"drop {one.rollout_id}", "close, gateway 200"]
    with pytest.raises(aiohttp.ClientConnectorError):
        asyncio.run(get((tmp_path / "url").read_text()))
    with pytest.raises(RolltapeError, match="was shut down"):
        all_of(actor, ONE)


async def get(url: str) -> None:
    async with aiohttp.ClientSession() as session, session.get(url):
        pass


def test_a_framework_that_owns_the_tokens_brings_its_source(spin: Spin, gateway: ServeConfig, tmp_path: Path) -> None:
    block = TokenIdCapture(
        enabled=True, sink="foreign_transport:FolderSink", sink_kwargs={"folder": str(tmp_path), "key": KEY}
    )
    theirs = replace(gateway, token_id_capture=block)
    with pytest.raises(ConfigError, match="which it cannot read back") as told:
        spin(gateway=theirs)
    assert "token_source_factory" in told.value.hint

    with Rollouts(spin(gateway=theirs, token_source_factory=side.FromFolder(tmp_path)), ONE) as rollouts:
        for one in rollouts:
            file = tmp_path / f"{one.rollout_id}.jsonl"
            assert file.exists()
            assert one.rows
    assert not file.exists()


async def test_a_gateway_elsewhere_is_used_and_left_running(spin: Spin, gateway: ServeConfig, tmp_path: Path) -> None:
    from rolltape.gateway.serve import running

    async with running(replace(gateway, port=0)) as served:
        at = GatewayAt(served.url, served.control_token, str(tmp_path))
        assert served.control_token not in repr(at)
        actor = await asyncio.to_thread(lambda: spin(gateway=at))
        async with Rollouts(actor, ONE) as rollouts:
            (one,) = [one async for one in rollouts]
        await actor.shutdown.remote()
        state = await served.store.rollout(one.rollout_id)
        assert state is not None
        assert state.retired_at
        await get(served.url + "/healthz")


def test_shutting_down_ends_what_runs_and_says_so_in_the_store(spin: Spin, gateway: ServeConfig) -> None:
    actor = spin(agent=side.hangs)
    ray.get(actor.begin.remote(ONE, 2))

    async def states() -> list[Any]:
        async with TokenCaptureStore(gateway.dir) as store:
            return list(await store.rollouts())

    while [one.n_entries for one in asyncio.run(states())] != [2, 2]:
        pass
    ray.get(actor.shutdown.remote())
    assert {(one.ending, one.reward, one.retired_at) for one in asyncio.run(states())} == {("interrupted", None, None)}
