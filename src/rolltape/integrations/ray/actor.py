"""The actor: gateway, token source and rollouts in one process. Every method is a call over Ray.

    start -> begin -> next, retire, next, retire... -> end -> shutdown

Nothing here decides that a rollout was accepted: handing one out, or being asked for another, retires nothing. `retire`
does, for exactly the snapshot that was handed out.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from rolltape.config import ServeConfig
from rolltape.delivery import MASK_KEY, METRICS_KEY, ROLLOUT_ID_KEY, Built, finalize_rollout_token_capture
from rolltape.errors import ConfigError, RolltapeError
from rolltape.harness import Ending
from rolltape.integrations.ray.agent import AgentLoop, HarnessLoop, Seat
from rolltape.integrations.ray.arrived import Arrived, group_id_of, media_of
from rolltape.integrations.ray.batch import Batch, Slot
from rolltape.integrations.ray.site import GatewayAt, Site, TokenSourceFactory, open_site
from rolltape.rebuild import DeliveryForm, KindPolicy
from rolltape.rollouts.run import NO_CALLS, NOT_CAPTURED


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What the driver sends to the actor."""

    gateway: ServeConfig | GatewayAt
    agent: AgentLoop
    token_source_factory: TokenSourceFactory | None
    concurrency: int
    delivery: DeliveryForm
    policy: KindPolicy | None
    budget: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, Any] = field(default_factory=dict)


class RolloutActor:
    """What `spinup_rollout_actor` puts on a node."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._stop = asyncio.Event()
        self._site: Site | None = None
        self._life: asyncio.Task[None] | None = None
        self._batches: dict[str, Batch] = {}
        self._unaccepted: dict[str, tuple[str | None, int | None]] = {}

    async def start(self) -> None:
        """Raises `ConfigError` for whatever cannot run: then no rollout was begun."""
        self._check(())
        ready: asyncio.Future[Site] = asyncio.get_running_loop().create_future()
        self._life = asyncio.create_task(self._live(ready))
        self._site = await ready

    async def begin(self, examples: Sequence[Mapping[str, Any]], group_size: int) -> str:
        """Start `group_size` rollouts of each example; the name of the batch. Raises `ConfigError` before the first."""
        self._open()
        if group_size < 1:
            raise ConfigError(f"group_size must be at least 1, not {group_size}")
        self._check(examples)
        groups = [group_id_of(example, index) for index, example in enumerate(examples)]
        work = [
            Slot(example, index, rollout, groups[index])
            for index, example in enumerate(examples)
            for rollout in range(group_size)
        ]
        name = uuid4().hex
        self._batches[name] = Batch(work, self._one, self._setup.concurrency)
        return name

    async def next(self, batch: str) -> Arrived | None:
        """The next rollout that has finished, None after the last. It retires nothing."""
        if batch not in self._batches:
            raise RolltapeError(f"there is no batch {batch!r} here: it was ended, or the actor was shut down")
        try:
            return await self._batches[batch].next()
        except ConfigError:
            raise
        except RolltapeError as error:
            raise RolltapeError(error.message, hint=error.hint) from None  # not each of them survives being pickled

    async def retire(self, rollout_id: str, snapshot_id: str, version: int) -> bool:
        """The consumer has accepted this snapshot. False where anything stays: another state, or not handed out."""
        if self._unaccepted.get(rollout_id) != (snapshot_id, version):
            return False
        dropped = await self._open().source.drop(rollout_id, snapshot_id=snapshot_id, version=version)
        if dropped:
            self._unaccepted.pop(rollout_id, None)
        return dropped

    async def unaccepted(self) -> list[dict[str, Any]]:
        """What could be retired and was not: `{rollout_id, snapshot_id, version}`, fetched by a consumer or not."""
        return [
            {"rollout_id": rollout_id, "snapshot_id": snapshot_id, "version": version}
            for rollout_id, (snapshot_id, version) in self._unaccepted.items()
        ]

    async def end(self, batch: str) -> None:
        """End a batch and its harnesses. What was not accepted stays in the store. Idempotent."""
        ended = self._batches.pop(batch, None)
        if ended is not None:
            await ended.end()

    async def shutdown(self) -> None:
        """End the rollouts, then close the source, then the gateway. Idempotent."""
        for batch in tuple(self._batches):
            await self.end(batch)
        self._site = None
        self._stop.set()
        if self._life is not None:
            await self._life

    async def _live(self, ready: "asyncio.Future[Site]") -> None:
        agent = self._setup.agent
        profiles = (agent.profile,) if isinstance(agent, HarnessLoop) else ()
        try:
            async with open_site(self._setup.gateway, self._setup.token_source_factory, profiles) as site:
                ready.set_result(site)
                await self._stop.wait()
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)

    def _open(self) -> Site:
        if self._site is None:
            raise RolltapeError("the rollout actor was shut down, or not started")
        return self._site

    def _check(self, examples: Sequence[Mapping[str, Any]]) -> None:
        check = getattr(self._setup.agent, "check", None)
        if check is not None:
            check(examples)

    async def _one(self, slot: Slot) -> Arrived:
        site, rollout_id = self._open(), str(uuid4())
        labels = self._labels(slot)
        made = await site.connection.create(rollout_id, labels, self._setup.budget)
        try:
            result = await self._try(slot, self._seat(site, rollout_id, made))
        except asyncio.CancelledError:
            with contextlib.suppress(RolltapeError):
                await site.connection.outcome(rollout_id, reward=None, ending=Ending.INTERRUPTED, labels=labels)
            raise
        await site.connection.outcome(rollout_id, reward=result["reward"], ending=result["ending"], labels=labels)
        captured = made.get("captured", True)
        media = media_of((result.get("response") or {}).get("output") or ())
        built = await finalize_rollout_token_capture(
            result, site.source if captured else None, delivery=self._setup.delivery, policy=self._setup.policy
        )
        _judge(result, captured, built)
        return self._arrived(slot, rollout_id, result, built, media)

    def _labels(self, slot: Slot) -> dict[str, Any]:
        agent = self._setup.agent
        who = {"harness": agent.profile.name} if isinstance(agent, HarnessLoop) else {}
        return {**self._setup.labels, **who, "group_id": slot.group_id, "rollout_index": slot.rollout_index}

    def _seat(self, site: Site, rollout_id: str, made: Mapping[str, Any]) -> Seat:
        async def budget_spent() -> bool:
            return bool((await site.connection.state(rollout_id))["ending"] == Ending.BUDGET)

        return Seat(
            rollout_id=rollout_id,
            base_urls=made["base_urls"],
            api_key=made["api_key"],
            model=site.model,
            context_length=site.context_length,
            directory=site.workspaces / rollout_id,
            budget_spent=budget_spent if self._setup.budget else None,
        )

    async def _try(self, slot: Slot, seat: Seat) -> dict[str, Any]:
        """The agent's own result, or that of a crash: no reward, and the run goes on."""
        began = time.time()
        try:
            told = dict(await self._setup.agent(slot.example, seat))
        except Exception as error:  # the boundary: an agent loop may raise anything
            why = f"{type(error).__name__}: {error}"
            told = {"ending": str(Ending.CRASHED), "exclude": True, "excluded_reason": f"crashed: {why}", "detail": why}
        known = {"reward": None, "ending": str(Ending.FINISHED), "exclude": False, "excluded_reason": None}
        ours = {
            ROLLOUT_ID_KEY: seat.rollout_id,
            "group_id": slot.group_id,
            "rollout_index": slot.rollout_index,
            "model": seat.model,
            "started_at": began,
        }
        return {**known, **told, **ours}

    def _arrived(
        self,
        slot: Slot,
        rollout_id: str,
        result: dict[str, Any],
        built: Built | None,
        media: tuple[Mapping[str, Any], ...],
    ) -> Arrived:
        state: tuple[str | None, int | None] = (None, None)
        if built is not None and built.retirable:
            state = (built.snapshot_id, built.version)
            self._unaccepted[rollout_id] = state
        rows = built.rebuilt.rows if built is not None and built.rebuilt is not None else ()
        indices = (slot.example_index, slot.rollout_index)
        return Arrived(rollout_id, slot.group_id, *indices, result, tuple(rows), media, *state)


def _judge(result: dict[str, Any], captured: bool, built: Built | None) -> None:
    """What the tokens say about the rollout's use: no call at all can't be the policy's own doing."""
    result.setdefault(MASK_KEY, False)
    if built is not None and (built.redundant or (result.get(METRICS_KEY) or {}).get("n_calls")):
        return
    result["exclude"] = True
    result["excluded_reason"] = result["excluded_reason"] or (NO_CALLS if captured else NOT_CAPTURED)
