"""What a journal holds, given to a queue that lacks it: after a crash between the two, or to one that began empty.

Everything is a key that names its content, so giving it back twice, or by two gateways that share a journal, changes
nothing. In the partition `NAMESPACE:queue` every journal says that it exists before anything of it is read from this
queue, and that it is ready when all of it is there: until then nobody can take a rollout for whole that an older queue
may have held. There it also learns which rollouts were frozen and retired.
"""

import time
from collections.abc import Iterable
from typing import Any

from rolltape.record import TokenEntry
from rolltape.store.contract import PolicyState
from rolltape.store.transferqueue import payload
from rolltape.store.transferqueue.events import Listing, View, fold, key, members, parsed
from rolltape.store.transferqueue.journal import Holding, Journal
from rolltape.store.transferqueue.queue import Queue

POLICY = key("policy")


def partition_of(namespace: str, rollout_id: str) -> str:
    return f"{namespace}:rollout:{rollout_id}"


def common_partition(namespace: str) -> str:
    return f"{namespace}:queue"


def put_key(entry: TokenEntry, *, step: int | None) -> str:
    """The event of this entry. `step`: where its producer says that it stands."""
    doubt = "" if not entry.damaged else f"its ids are in doubt: {'; '.join(entry.faults)}"
    digest = payload.digest_of(entry)
    return key("put", entry.model_call_id, digest, len(entry.generation_token_ids), step, doubt)


class Nobody:
    """The keeper of a store without a journal."""

    async def give_back(self, queue: Queue) -> None:
        """There is nothing to give."""

    async def catch_up(self, queue: Queue) -> None:
        """There is nothing to learn."""


class Restorer:
    """The keeper of a gateway's store."""

    def __init__(self, journal: Journal, namespace: str, *, texts: bool) -> None:
        self._journal = journal
        self._namespace = namespace
        self._common = common_partition(namespace)
        self._texts = texts
        self._learned: set[str] = set()

    async def give_back(self, queue: Queue) -> None:
        self._learned.clear()
        listing = await queue.listing(self._common)
        met = members(listing)
        for name in sorted(self._journal.peers() - met.journals):
            await queue.put(self._common, key("journal", name))
        if self._journal.name in met.left:
            await queue.clear(self._common, [key("left", self._journal.name)])
        await self._learn(listing)
        everything = await queue.listings()
        for state in await self._journal.rollouts():
            if state.retired_at is None and (holding := await self._journal.holding(state)) is not None:
                there = everything.get(partition_of(self._namespace, state.rollout_id), {})
                await self._rollout(queue, holding, there)
        policy = await self._journal.policy()
        if POLICY not in listing and policy != PolicyState():
            await queue.put(self._common, POLICY, tag={"version": policy.version, "state": policy.state})
        await queue.put(self._common, key("ready", self._journal.name))

    async def catch_up(self, queue: Queue) -> None:
        await self._learn(await queue.listing(self._common))

    async def leave(self, queue: Queue) -> None:
        """Say that this journal holds nothing that a lost queue would lack."""
        if all(state.retired_at is not None for state in await self._journal.rollouts()):
            await queue.put(self._common, key("left", self._journal.name))

    async def _learn(self, listing: Listing) -> None:
        met = members(listing)
        self._journal.meet(met.journals, met.left)
        for spelled in listing.keys() - self._learned:
            kind, *parts = parsed(spelled)
            if kind == "frozen":
                await self._journal.fence(parts[0])
            elif kind == "retired":
                await self._journal.retire(parts[0])
            self._learned.add(spelled)

    async def _rollout(self, queue: Queue, holding: Holding, listing: Listing) -> None:
        rollout_id = holding.state.rollout_id
        view = fold(rollout_id, listing)
        if view.retired_at is not None:
            await self._journal.retire(rollout_id)
            return
        place = partition_of(self._namespace, rollout_id)
        for entry in holding.snapshot.entries:
            if entry.model_call_id not in view.entries:
                await self._entry(queue, place, entry, begun=entry.model_call_id in view.intents)
        for spelled, tag in self._events(holding, view, {parsed(there)[0] for there in listing}):
            await queue.put(place, spelled, tag={"at": time.time()} | tag)

    async def _entry(self, queue: Queue, place: str, entry: TokenEntry, *, begun: bool) -> None:
        data = key("data", entry.model_call_id, payload.digest_of(entry))
        await queue.put(place, data, row=payload.row_of(entry, texts=self._texts))
        tag = {"at": entry.created_at or time.time()}
        await queue.put(place, put_key(entry, step=None if begun else entry.step_index), tag=tag)

    def _events(self, holding: Holding, view: View, kinds: set[str]) -> Iterable[tuple[str, dict[str, Any]]]:
        """What else the queue lacks, in the order in which it has to come."""
        name, state = self._journal.name, holding.state
        if "create" not in kinds:
            yield key("create", name), {"restored": True, "labels": dict(state.labels)}
        for call_id, reason in holding.marks:
            if (call_id, reason) not in view.marks:
                yield key("mark", call_id, reason, name), {}
        for call_id in holding.open_calls:
            if call_id not in view.intents and call_id not in view.entries:
                yield key("begin", call_id, name), {}
        if state.frozen and view.frozen_at is None:
            yield key("fence"), {}
        if "outcome" not in kinds and (state.reward is not None or state.ending is not None):
            labels = dict(state.labels)
            yield key("outcome"), {"reward": state.reward, "ending": state.ending, "labels": labels}
