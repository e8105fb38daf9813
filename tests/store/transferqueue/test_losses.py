"""A writer that is killed, a queue that vanishes, a journal that stays away: nothing acknowledged is lost silently."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray

from rolltape.errors import FrozenError, RetiredError, StoreError
from rolltape.record import TokenCaptureSnapshot
from rolltape.store import PolicyState, TokenCaptureStore
from rolltape.store.transferqueue import TransferQueueStore
from rolltape.testing.contracts import assert_same, entry

from ..crashing import expected
from .cluster import ENVIRONMENT, Cluster
from .conftest import Make

pytestmark = pytest.mark.real


async def _eventually(asked, seconds: float = 20.0):
    """The first answer of `asked` that is true; errors of the store count as not yet."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if answer := await asked():
                return answer
        except StoreError:
            pass
        await asyncio.sleep(0.1)
    raise AssertionError(f"not within {seconds} seconds")


def _another_queue(cluster: Cluster, *, kill: bool = False) -> None:
    cluster.undrive(kill=kill)
    cluster.drive()


async def test_a_writer_that_is_killed_loses_nothing_that_it_acknowledged(
    cluster: Cluster, make: Make, namespace: str, tmp_path: Path
) -> None:
    """The gateway is a process of its own; the trainer here reads what it wrote through the queue alone."""
    log = tmp_path / "log"
    for _ in range(2):
        size = log.stat().st_size if log.exists() else 0
        writer = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, Path(__file__).with_name("writer.py"), cluster.address, namespace, tmp_path / "a", log],
            env=os.environ | ENVIRONMENT,
            start_new_session=True,
        )
        try:
            await _eventually(lambda before=size: _has_grown(log, before), 60)
            await asyncio.sleep(random.Random(size).random())
        finally:
            os.killpg(writer.pid, signal.SIGKILL)
            writer.wait()
    acknowledged = [line.split()[:2] for line in log.read_text().splitlines() if line.endswith(".")]
    async with make(None, settle_seconds=0) as trainer:
        snapshots = {rollout_id: await trainer.freeze(rollout_id) for rollout_id in {one for one, _ in acknowledged}}
    assert len(acknowledged) > 20
    for rollout_id, call_id in acknowledged:
        found = {one.model_call_id: one for one in snapshots[rollout_id].entries}
        wanted = expected(rollout_id, call_id)
        assert_same(found[call_id], wanted, apart_from=["request_text"])
    for snapshot in snapshots.values():
        begun = [reason for reason in snapshot.incomplete_reasons if reason.endswith("has no outcome")]
        assert list(snapshot.incomplete_reasons) == begun, "what was in flight is named, and nothing else"


async def _has_grown(log: Path, before: int) -> bool:
    return log.exists() and log.stat().st_size > before + 400  # noqa: ASYNC240


async def test_what_only_the_journal_took_is_given_when_the_gateway_starts_again(make: Make, tmp_path: Path) -> None:
    async with make("a") as gateway:
        await gateway.begin_call("R", "k1")
        await gateway.put(entry("k1", [1], [60, 2]))
        await gateway.begin_call("R", "k2")
    async with TokenCaptureStore(tmp_path / "a") as journal:
        await journal.put(entry("k2", [1, 60, 2, 5], [61, 2]))
        await journal.begin_call("R", "k3")
        await journal.mark_incomplete("S", "k9")
    async with make(None) as trainer:
        assert (await trainer.freeze("S")).incomplete
        async with make("a"):
            snapshot = await trainer.freeze("R")
            other = await trainer.freeze("S")
    assert [(one.model_call_id, one.step_index) for one in snapshot.entries] == [("k1", 0), ("k2", 1)]
    assert snapshot.incomplete_reasons == ("k3: the call began and has no outcome",)
    assert other.incomplete_reasons == ("k9: marked by its writer",)


async def test_another_queue_gets_all_that_is_not_retired_and_a_store_never_makes_one(
    cluster: Cluster, make: Make, namespace: str
) -> None:
    async with make("a") as gateway, make(None) as trainer:
        for rollout_id in ("frozen", "open", "retired"):
            await gateway.create_rollout(rollout_id, {"task": rollout_id})
            await gateway.begin_call(rollout_id, "k0")
            await gateway.put(entry("k0", [1], [60, 2], rollout_id=rollout_id, policy_version="7"))
            await gateway.put(entry("k1", [1, 60, 2, 5], [61, 2], rollout_id=rollout_id))
        await gateway.set_outcome("frozen", reward=0.5, ending="finished", labels={"more": 1})
        await gateway.set_policy(PolicyState("7", "serving"))
        seen = await trainer.freeze("frozen")
        gone = await trainer.freeze("retired")
        assert await trainer.drop("retired", snapshot_id=gone.snapshot_id, version=gone.version)
        for rollout_id, refusal in (("frozen", FrozenError), ("retired", RetiredError)):
            with pytest.raises(refusal):  # so the journal learns of it
                await gateway.begin_call(rollout_id, "k2")
        await gateway.begin_call("open", "k2")
        old = trainer._queue.controller

        cluster.undrive(kill=True)
        await _eventually(lambda: _refuses(trainer, "there is no TransferQueue controller"))
        with pytest.raises(StoreError, match="no TransferQueue controller runs") as refused:
            make("b")
        assert "transfer_queue.init()" in refused.value.hint
        await gateway.put(entry("k2", [1, 60, 2, 5, 61, 2, 6], [62, 2], rollout_id="open"))
        with pytest.raises(StoreError, match="no TransferQueue controller"):
            await gateway.begin_call("open", "k3")
        names = [one["name"] for one in ray.util.list_named_actors(all_namespaces=True)]
        assert "TransferQueueController" not in names

        cluster.drive()
        await _eventually(lambda: _has(trainer, "open", 3))
        assert trainer._queue.controller != old
        again = await trainer.freeze("frozen")
        with pytest.raises(FrozenError):
            await gateway.begin_call("frozen", "k3")
        _same(again, seen)
        assert await trainer.drop("frozen", snapshot_id=seen.snapshot_id, version=seen.version)
        opened = await trainer.freeze("open")
        assert [one.model_call_id for one in opened.entries] == ["k0", "k1", "k2"]
        assert opened.incomplete_reasons == ("k3: the call began and has no outcome",)
        assert await trainer.policy() == PolicyState("7", "serving")
        assert await trainer.rollout("retired") is None, "what its consumer took is not handed out again"


async def _refuses(store: TransferQueueStore, words: str) -> bool:
    try:
        await store.rollouts()
    except StoreError as error:
        return words in error.message
    return False


async def _has(store: TransferQueueStore, rollout_id: str, n_entries: int) -> bool:
    state = await store.rollout(rollout_id)
    return state is not None and state.n_entries >= n_entries


def _same(a: TokenCaptureSnapshot, b: TokenCaptureSnapshot) -> None:
    assert (a.snapshot_id, a.version, a.incomplete, a.outcome) == (b.snapshot_id, b.version, b.incomplete, b.outcome)
    for one, other in zip(a.entries, b.entries, strict=True):
        assert_same(one, other)


async def test_until_every_journal_has_given_back_what_it_holds_a_rollout_is_not_whole(
    cluster: Cluster, make: Make
) -> None:
    """Two gateways served one rollout; when the queue is lost, one of them stays away for a while."""
    async with make(None) as trainer, make("a") as a:
        away = make("b")
        await a.put(entry("k0", [1], [60, 2]))
        await away.put(entry("k1", [1, 60, 2, 5], [61, 2]))
        await a._queue.run(a._restorer.catch_up(a._queue))  # as it does every few seconds
        await asyncio.to_thread(away._queue.close)
        await away._journal.close()
        _another_queue(cluster)
        await _eventually(lambda: _has(trainer, "R", 1))
        partial = await trainer.freeze("R")
        assert [one.model_call_id for one in partial.entries] == ["k0"]
        assert [reason.split()[-1] for reason in partial.incomplete_reasons] == ["holds"]
        await a.create_rollout("new")
        await a.put(entry("k0", [1], [60, 2], rollout_id="new"))
        assert not (await trainer.freeze("new")).incomplete, "what was announced to this queue is all in it"
        async with make("b"):
            whole = await trainer.freeze("R")
        assert [one.model_call_id for one in whole.entries] == ["k0", "k1"]
        assert not whole.incomplete
        assert not await trainer.drop("R", snapshot_id=partial.snapshot_id, version=partial.version)
