"""What a consumer accepted is gone, and nothing else is: by loops that end, break, fail, go on or are killed."""

import asyncio
import sys
from typing import Any

import pytest
import ray

from integrations.ray import side
from integrations.ray.conftest import SPIN, Spin
from rolltape.config import ServeConfig
from rolltape.integrations.ray import Rollouts
from rolltape.record import TokenEntry
from rolltape.store import TokenCaptureStore

pytestmark = pytest.mark.real

ONE = [{"id": "t", "prompt": "hi"}]


async def retired(gateway: ServeConfig) -> set[str]:
    async with TokenCaptureStore(gateway.dir) as store:
        return {one.rollout_id for one in await store.rollouts() if one.retired_at is not None}


def unaccepted(actor: Any) -> set[str]:
    return {one["rollout_id"] for one in ray.get(actor.unaccepted.remote())}


async def readable(gateway: ServeConfig, rollout_ids: set[str]) -> bool:
    """Whether a source gets all of their calls."""
    async with TokenCaptureStore(gateway.dir) as store:
        return all([len((await store.freeze(rollout_id)).entries) == 2 for rollout_id in rollout_ids])


async def test_asking_for_the_next_accepts_the_one_before_and_no_other(spin: Spin, gateway: ServeConfig) -> None:
    actor = spin()
    seen: list[str] = []
    with Rollouts(actor, ONE, group_size=4) as rollouts:
        for one in rollouts:
            await asyncio.sleep(0.2)  # all that may run ahead has done so
            assert await retired(gateway) == set(seen)
            assert await readable(gateway, {one.rollout_id})
            seen.append(one.rollout_id)
        assert len(seen) == 4
        assert await retired(gateway) == set(seen)
        assert next(rollouts, None) is None
    assert unaccepted(actor) == set()
    assert rollouts.kept == []


async def test_the_same_holds_in_an_event_loop(spin: Spin, gateway: ServeConfig) -> None:
    seen: list[str] = []
    async with Rollouts(spin(), ONE, group_size=3) as rollouts:
        async for one in rollouts:
            assert await retired(gateway) == set(seen)
            seen.append(one.rollout_id)
    assert await retired(gateway) == set(seen)


async def test_a_loop_that_breaks_leaves_the_one_at_hand_and_all_that_follow(spin: Spin, gateway: ServeConfig) -> None:
    actor = spin(concurrency=2)
    seen: list[str] = []
    with Rollouts(actor, ONE, group_size=5) as rollouts:
        for one in rollouts:
            seen.append(one.rollout_id)
            if len(seen) == 2:
                break
    assert await retired(gateway) == {seen[0]}
    assert seen[1] in unaccepted(actor)
    assert await readable(gateway, unaccepted(actor))


def take_and_fail(rollouts: Rollouts, seen: list[str]) -> None:
    for one in rollouts:
        seen.append(one.rollout_id)
        raise OSError("disk full")


async def test_a_loop_that_fails_may_go_on_and_the_failed_one_stays(spin: Spin, gateway: ServeConfig) -> None:
    actor = spin()
    seen: list[str] = []
    with Rollouts(actor, ONE, group_size=3) as rollouts:
        with pytest.raises(OSError, match="disk full"):
            take_and_fail(rollouts, seen)
        seen += [one.rollout_id for one in rollouts]
    assert len(set(seen)) == 3
    assert await retired(gateway) == set(seen[1:])
    assert unaccepted(actor) == {seen[0]}


async def test_an_async_loop_that_fails_leaves_the_one_at_hand(spin: Spin, gateway: ServeConfig) -> None:
    actor = spin()
    seen: list[str] = []

    async def consumer() -> None:
        async with Rollouts(actor, ONE, group_size=2) as rollouts:
            async for one in rollouts:
                seen.append(one.rollout_id)
                raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        await consumer()
    assert await retired(gateway) == set()
    assert seen[0] in unaccepted(actor)


async def test_a_killed_consumer_leaves_what_it_had_not_accepted(
    cluster: str, spin: Spin, gateway: ServeConfig
) -> None:
    actor = spin(concurrency=2, options={**SPIN["options"], "name": "to-be-left"})
    consumer = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "integrations.ray.side", cluster, "to-be-left", "3"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert consumer.stdout is not None
    try:
        seen = [(await consumer.stdout.readline()).decode().strip() for _ in range(3)]
    finally:
        consumer.kill()
        await consumer.communicate()
    await asyncio.sleep(1)

    assert len(set(seen)) == 3
    assert await retired(gateway) == set(seen[:2])
    left = unaccepted(actor)
    assert seen[2] in left
    assert await readable(gateway, left)
    async with TokenCaptureStore(gateway.dir) as store:
        assert len(await store.rollouts()) <= 3 + 2 * 2, "work went on for a consumer that is gone"


async def test_only_what_is_said_is_accepted_where_asking_says_nothing(spin: Spin, gateway: ServeConfig) -> None:
    actor = spin()
    with Rollouts(actor, ONE, group_size=3, accept_on_next=False) as rollouts:
        every = list(rollouts)
        assert await retired(gateway) == set()
        assert rollouts.accept(every[1])
        assert await rollouts.accept_async(every[2])
        assert rollouts.accept(every[2])
        assert rollouts.kept == []
    assert await retired(gateway) == {every[1].rollout_id, every[2].rollout_id}
    assert unaccepted(actor) == {every[0].rollout_id}


async def test_evidence_that_changed_after_it_was_handed_out_stays(spin: Spin, gateway: ServeConfig) -> None:
    with Rollouts(spin(), ONE) as rollouts:
        for one in rollouts:
            async with TokenCaptureStore(gateway.dir) as store:
                late: dict[str, Any] = {
                    "prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5]
                }  # fmt: skip
                await store.put(TokenEntry(rollout_id=one.rollout_id, model_call_id="late", **late))
    assert await retired(gateway) == set()
    assert rollouts.kept == [one.rollout_id]


async def test_a_masked_rollout_keeps_its_evidence_though_it_was_accepted(spin: Spin, gateway: ServeConfig) -> None:
    with Rollouts(spin(agent=side.LosesACall(gateway.dir)), ONE) as rollouts:
        (one,) = list(rollouts)
    assert one.result["mask_sample"] is True
    assert one.snapshot_id is None
    assert await retired(gateway) == set()
    assert rollouts.kept == []
    assert rollouts.metrics()["token_capture/masked_rollouts"] == 1


async def test_a_state_that_was_not_handed_out_retires_nothing(spin: Spin, gateway: ServeConfig) -> None:
    actor = spin()
    (one,) = list(Rollouts(actor, ONE, accept_on_next=False))
    for named in (
        (one.rollout_id, one.snapshot_id, (one.version or 0) + 1),
        (one.rollout_id, "another", one.version),
        ("another", one.snapshot_id, one.version),
    ):
        assert ray.get(actor.retire.remote(*named)) is False
    assert await retired(gateway) == set()


async def test_whoever_stops_waiting_loses_no_rollout(spin: Spin, gateway: ServeConfig) -> None:
    seen: list[str] = []
    given_up = 0
    async with Rollouts(spin(concurrency=1), ONE, group_size=3) as rollouts:
        while len(seen) < 3:
            try:
                seen.append((await asyncio.wait_for(anext(rollouts), 0.005)).rollout_id)
            except TimeoutError:
                given_up += 1
        assert given_up > 3
        with pytest.raises(StopAsyncIteration):
            await anext(rollouts)
    assert len(set(seen)) == 3
    assert await retired(gateway) == set(seen)
    assert rollouts.kept == []
