"""The store's methods over a queue and, in a gateway, a journal. All of it runs in the queue's own loop.

A write goes to the journal first. What the journal took and a queue that is gone did not, is acknowledged: it is
durable here, and no later queue passes for whole before it has it. What a queue that runs did not take is an error, and
is given to it again as soon as it answers.
"""

import asyncio
import logging
import math
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rolltape import tokens
from rolltape.errors import ConflictError, FrozenError, RetiredError, StoreError
from rolltape.record import Delivery, TokenCaptureSnapshot, TokenEntry
from rolltape.store.contract import RETENTION_SECONDS, LineageMatch, PolicyState, RolloutState, Swept
from rolltape.store.transferqueue import payload, restore
from rolltape.store.transferqueue.events import View, clearable, fold, headstone, key, members
from rolltape.store.transferqueue.journal import Journal
from rolltape.store.transferqueue.queue import Queue, QueueGone
from rolltape.store.transferqueue.reading import Reader, state_of
from rolltape.tokens import IntArray

log = logging.getLogger("rolltape.store")

_POLL_SECONDS = 0.02
_CONFLICT = "put again with another payload; the first is kept"


class TransferQueueStore:
    """Sink, source and lineage store in the TransferQueue that a framework runs; `store.CaptureStore` in full.

    `dir` is where a gateway keeps its journal; without one, as in a trainer, calls cannot be written, only read and
    retired. `address` is that of the Ray cluster's GCS, for a process that is not connected to one. Stores with another
    `namespace` share nothing. `texts` False keeps neither requests nor output items. `settle_seconds` is how long a
    freeze waits for calls in flight.

    Raises `StoreError` where no cluster answers or no controller runs in it: it never makes one.
    """

    def __init__(
        self,
        dir: str | Path | None = None,
        *,
        address: str | None = None,
        namespace: str = "rolltape",
        texts: bool = True,
        settle_seconds: float = 5.0,
    ) -> None:
        self._namespace = namespace
        self._common = restore.common_partition(namespace)
        self._texts = texts
        self._settle_seconds = settle_seconds
        self._closed = False
        self._journal = None if dir is None else Journal(dir, texts=texts)
        self._restorer = restore.Restorer(self._journal, namespace, texts=texts) if self._journal else None
        try:
            self._queue = Queue(address, self._restorer or restore.Nobody())
        except BaseException:
            if self._journal is not None:
                self._journal.abandon()
            raise
        self._reader = Reader(self._queue)

    async def close(self) -> None:
        """Release the queue's client and the journal; the queue itself is its maker's. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._restorer is not None:
            try:
                await self._queue.run(self._restorer.leave(self._queue))
            except StoreError as error:
                log.warning("the queue was not told that its journal closed: %s", error.message)
        await asyncio.to_thread(self._queue.close)
        if self._journal is not None:
            await self._journal.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # The sink

    async def begin_call(self, rollout_id: str, model_call_id: str) -> None:
        """The durable intent. Raises `FrozenError`, `RetiredError`, or `ConflictError` for a call already recorded."""
        await self._queue.run(self._begin(rollout_id, model_call_id))

    async def put(self, entry: TokenEntry) -> None:
        """Make `entry` durable. Raises `ConflictError`, `RetiredError`, or `StoreError` when the queue lacks it."""
        await self._queue.run(self._put(entry))

    async def mark_incomplete(self, rollout_id: str, model_call_id: str = "") -> None:
        """Say durably that evidence was lost."""
        await self._queue.run(self._mark(rollout_id, model_call_id, "marked by its writer"))

    async def settle_delivery(self, rollout_id: str, model_call_id: str, delivery: Delivery) -> None:
        """Note whether the reply arrived."""
        await self._queue.run(self._settle(rollout_id, model_call_id, Delivery(delivery)))

    # The source

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        """Fence, wait for calls in flight, then snapshot.

        A rollout that this queue knows and that made no call is empty; one it has never heard of is empty and
        incomplete. Raises `RetiredError` after `drop`.
        """
        return await self._queue.run(self._freeze(rollout_id))

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        """Retire exactly this frozen state, and clear what the queue held of it; False for any other."""
        return await self._queue.run(self._drop(rollout_id, snapshot_id, version))

    async def read(self, rollout_id: str, *, texts: bool = False) -> TokenCaptureSnapshot | None:
        """What the queue holds, without freezing it; what is retired, and request texts, from this node's journal."""
        return await self._queue.run(self._read(rollout_id, texts=texts))

    # The lineage

    async def record(self, rollout_id: str, model_call_id: str, cumulative_token_ids: IntArray) -> None:
        """Remember a sequence whose entry another sink keeps. A no-op for a call that was put here."""
        sequence = tokens.token_ids(cumulative_token_ids, "cumulative_token_ids")
        await self._queue.run(self._record(rollout_id, model_call_id, sequence))

    async def resolve(self, rollout_id: str, prompt_token_ids: IntArray) -> LineageMatch | None:
        """The call whose whole sequence is the longest exact prefix of the prompt, whichever gateway put it."""
        prompt = tokens.token_ids(prompt_token_ids, "prompt_token_ids")
        return await self._queue.run(self._resolve(rollout_id, prompt))

    # The rollouts

    async def create_rollout(self, rollout_id: str, labels: Mapping[str, Any] | None = None) -> None:
        """Announce a rollout. Raises `ConflictError` if it exists."""
        await self._queue.run(self._create(rollout_id, dict(labels or {})))

    async def rollouts(self) -> Sequence[RolloutState]:
        """All rollouts that this queue knows, oldest first, retired ones among them."""
        return await self._queue.run(self._states())

    async def rollout(self, rollout_id: str) -> RolloutState | None:
        """The state of one rollout; None = unknown."""
        return await self._queue.run(self._state(rollout_id))

    async def set_outcome(
        self, rollout_id: str, *, reward: float | None, ending: str | None, labels: Mapping[str, Any]
    ) -> None:
        """What the runner says of a rollout; its last word counts. Raises `StoreError` for a NaN or infinite reward."""
        if reward is not None and not math.isfinite(reward):
            raise StoreError(f"reward {reward!r} is no number", hint="use None for a rollout without a reward")
        outcome = {"reward": reward, "ending": ending, "labels": dict(labels)}
        await self._queue.run(self._set_outcome(rollout_id, outcome))

    async def policy(self) -> PolicyState:
        """Which policy the engines serve, as last set by any process."""
        return await self._queue.run(self._policy())

    async def set_policy(self, policy: PolicyState) -> None:
        """Tell every process which policy the engines serve."""
        await self._queue.run(self._set_policy(policy))

    async def sweep(
        self,
        seconds: float = RETENTION_SECONDS,
        *,
        quota_bytes: int | None = None,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> Swept:
        """Delete from this node's journal what was retired so long ago: a drop has cleared the queue already."""
        if self._journal is None:
            return Swept()
        return await self._journal.sweep(seconds, quota_bytes=quota_bytes, limit=limit, dry_run=dry_run)

    # In the queue's loop: the sink

    async def _begin(self, rollout_id: str, call_id: str) -> None:
        journal = self._insist_on_journal()
        try:
            await self._refuse_closed(rollout_id)
        except QueueGone:
            pass  # the intent is durable all the same
        except (FrozenError, RetiredError) as refused:
            await self._learn(journal, rollout_id, refused)
            raise
        await journal.begin_call(rollout_id, call_id)
        await self._queue.at_hand()
        try:
            await self._append(rollout_id, key("begin", call_id, _once()))
        except (FrozenError, RetiredError, ConflictError) as refused:
            await self._learn(journal, rollout_id, refused)
            await journal.withdraw(rollout_id, call_id)
            raise

    async def _refuse_closed(self, rollout_id: str) -> None:
        """Before the journal writes an intent that it would have to take back, the step that it took included."""
        await self._queue.at_hand()
        view = await self._view(rollout_id)
        if view.retired_at is not None:
            raise RetiredError(f"rollout {rollout_id!r} was retired")
        if view.frozen_at is not None:
            raise FrozenError(f"rollout {rollout_id!r} is frozen")

    async def _put(self, entry: TokenEntry) -> None:
        journal = self._insist_on_journal()
        rollout_id, call_id = entry.rollout_id, entry.model_call_id
        try:
            await journal.put(entry)
        except RetiredError:
            raise
        except StoreError as error:
            reason = _CONFLICT if isinstance(error, ConflictError) else "its put failed"
            await self._tolerated(self._mark_queue(rollout_id, call_id, reason))
            raise
        try:
            await self._queue.at_hand()
            await self._send(entry)
        except QueueGone as error:
            log.warning("call %s of rollout %s is in the journal alone: %s", call_id, rollout_id, error.message)
        except (RetiredError, ConflictError) as refused:
            await self._learn(journal, rollout_id, refused, call_id)
            raise
        except StoreError:
            self._queue.behind()
            raise

    async def _send(self, entry: TokenEntry) -> None:
        rollout_id, call_id, digest = entry.rollout_id, entry.model_call_id, payload.digest_of(entry)
        data, spelled = key("data", call_id, digest), restore.put_key(entry, step=entry.step_index)
        view = await self._view(rollout_id)
        if view.retired_at is not None:
            raise RetiredError(f"rollout {rollout_id!r} was retired")
        known = view.entries.get(call_id)
        if known is not None and known.digest == digest:
            return
        if known is None:
            await self._queue.put(self._place(rollout_id), data, row=payload.row_of(entry, texts=self._texts))
        try:
            await self._append(rollout_id, spelled)
        except RetiredError:
            await self._queue.clear(self._place(rollout_id), [data, spelled])
            raise

    async def _mark(self, rollout_id: str, call_id: str, reason: str) -> None:
        if self._journal is not None:
            await self._journal.note(rollout_id, call_id, reason)
        try:
            await self._mark_queue(rollout_id, call_id, reason)
        except QueueGone:
            if self._journal is None:
                raise
        except StoreError:
            self._queue.behind()
            raise

    async def _mark_queue(self, rollout_id: str, call_id: str, reason: str) -> None:
        await self._queue.at_hand()
        await self._append(rollout_id, key("mark", call_id, reason, _once()))

    async def _settle(self, rollout_id: str, call_id: str, delivery: Delivery) -> None:
        if self._journal is not None:
            await self._journal.settle_delivery(rollout_id, call_id, delivery)
        await self._tolerated(self._settle_queue(rollout_id, call_id, delivery))

    async def _settle_queue(self, rollout_id: str, call_id: str, delivery: Delivery) -> None:
        await self._queue.at_hand()
        if call_id in (await self._view(rollout_id)).entries:
            await self._queue.put(self._place(rollout_id), key("delivery", call_id), tag={"delivery": str(delivery)})

    async def _learn(self, journal: Journal, rollout_id: str, refused: StoreError, call_id: str = "") -> None:
        """What the queue knows better than the journal."""
        if isinstance(refused, RetiredError):
            await journal.retire(rollout_id)
        elif isinstance(refused, FrozenError):
            await journal.fence(rollout_id)
        elif call_id:
            await journal.note(rollout_id, call_id, _CONFLICT)

    # In the queue's loop: the source

    async def _freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        await self._queue.at_hand()
        view = await self._view(rollout_id)
        if view.retired_at is None and view.frozen_at is None:
            await self._append(rollout_id, key("fence"))
            await self._queue.put(self._common, key("frozen", rollout_id))
        deadline = time.monotonic() + self._patience(view)
        while True:
            view = await self._view(rollout_id)
            if view.retired_at is not None:
                raise RetiredError(f"rollout {rollout_id!r} was retired")
            if not view.intents or time.monotonic() >= deadline:
                break
            await asyncio.sleep(_POLL_SECONDS)
        return await self._snapshot(view)

    def _patience(self, view: View) -> float:
        """Seconds for which calls in flight are waited for: counted from the first freeze, whoever asked for it."""
        since = view.frozen_at or time.time()
        return min(self._settle_seconds, since + self._settle_seconds - time.time())

    async def _drop(self, rollout_id: str, snapshot_id: str, version: int) -> bool:
        await self._queue.at_hand()
        place = self._place(rollout_id)
        listing = await self._queue.listing(place)
        view = fold(rollout_id, listing)
        if view.frozen_at is None or view.retired_at is not None:
            return False
        if (view.snapshot_id, view.version) != (snapshot_id, version):
            return False
        spelled = key("retire", snapshot_id, version, _once())
        try:
            await self._append(rollout_id, spelled)
        except QueueGone:
            raise
        except StoreError:  # something came before it, a late entry or another drop
            await self._queue.clear(place, [spelled])
            return False
        await self._queue.put(place, spelled, tag={"at": time.time()} | headstone(view))
        await self._queue.put(self._common, key("retired", rollout_id))
        if self._journal is not None:
            await self._journal.retire(rollout_id)
        await self._queue.clear(place, clearable(listing))
        return True

    async def _read(self, rollout_id: str, *, texts: bool) -> TokenCaptureSnapshot | None:
        await self._queue.at_hand()
        listing = await self._queue.listing(self._place(rollout_id))
        view = fold(rollout_id, listing)
        here = None
        if self._journal is not None and (texts or not listing or view.retired_at is not None):
            here = await self._journal.read(rollout_id, texts=texts)
        if not listing or view.retired_at is not None:
            return here
        snapshot = await self._snapshot(view)
        return _with_texts(snapshot, here) if here is not None and texts else snapshot

    async def _snapshot(self, view: View) -> TokenCaptureSnapshot:
        heard = members(await self._queue.listing(self._common))
        return await self._reader.snapshot(self._place(view.rollout_id), view, heard)

    # In the queue's loop: the lineage and the rollouts

    async def _record(self, rollout_id: str, call_id: str, sequence: IntArray) -> None:
        journal = self._insist_on_journal()
        await self._queue.at_hand()
        view, digest = await self._view(rollout_id), tokens.digest(sequence)
        if view.retired_at is None and key("ids", call_id, digest) not in view.sequences.values():
            place = self._place(rollout_id)
            await self._queue.put(place, key("ids", call_id, digest), row=payload.sequence_row(sequence))
        await self._append(rollout_id, key("sequence", call_id, digest))
        await journal.record(rollout_id, call_id, sequence)

    async def _resolve(self, rollout_id: str, prompt: IntArray) -> LineageMatch | None:
        await self._queue.at_hand()
        view = await self._view(rollout_id)
        if view.retired_at is not None:
            return None
        return await self._reader.resolve(self._place(rollout_id), view, prompt)

    async def _create(self, rollout_id: str, labels: dict[str, Any]) -> None:
        await self._queue.at_hand()
        spelled = key("create", _once())
        try:
            await self._append(rollout_id, spelled, labels=labels)
        except ConflictError:
            await self._queue.clear(self._place(rollout_id), [spelled])
            raise
        if self._journal is not None:
            await self._journal.create_rollout(rollout_id, labels)

    async def _states(self) -> list[RolloutState]:
        await self._queue.at_hand()
        prefix = self._place("")
        found = {place: listing for place, listing in (await self._queue.listings()).items() if listing}
        return [
            state_of(fold(place.removeprefix(prefix), listing))
            for place, listing in found.items()
            if place.startswith(prefix)
        ]

    async def _state(self, rollout_id: str) -> RolloutState | None:
        await self._queue.at_hand()
        listing = await self._queue.listing(self._place(rollout_id))
        return state_of(fold(rollout_id, listing)) if listing else None

    async def _set_outcome(self, rollout_id: str, outcome: dict[str, Any]) -> None:
        if self._journal is not None:
            await self._journal.set_outcome(rollout_id, **outcome)
        await self._queue.at_hand()
        await self._append(rollout_id, key("outcome"), **outcome)

    async def _policy(self) -> PolicyState:
        await self._queue.at_hand()
        tag = (await self._queue.listing(self._common)).get(restore.POLICY, {})
        return PolicyState(tag["version"], tag["state"]) if "state" in tag else PolicyState()

    async def _set_policy(self, policy: PolicyState) -> None:
        if self._journal is not None:
            await self._journal.set_policy(policy)
        await self._queue.at_hand()
        await self._queue.put(self._common, restore.POLICY, tag={"version": policy.version, "state": policy.state})

    # In the queue's loop: parts

    async def _append(self, rollout_id: str, spelled: str, **tag: Any) -> View:
        """Let it happen. Raises what the keys before it say against it."""
        await self._queue.put(self._place(rollout_id), spelled, tag={"at": time.time()} | tag)
        view = await self._view(rollout_id)
        if (refused := view.verdicts.get(spelled)) is not None:
            raise refused
        return view

    async def _view(self, rollout_id: str) -> View:
        return fold(rollout_id, await self._queue.listing(self._place(rollout_id)))

    def _place(self, rollout_id: str) -> str:
        return restore.partition_of(self._namespace, rollout_id)

    def _insist_on_journal(self) -> Journal:
        if self._journal is None:
            raise StoreError(
                "calls are written to a journal first, and this store has none",
                hint="give a gateway's store a `dir` on its own disk: a queue keeps nothing when its maker ends",
            )
        return self._journal

    async def _tolerated(self, doing: Any) -> None:
        """What the journal holds anyhow, and gives back when the queue lacks it."""
        try:
            await doing
        except QueueGone:
            return
        except StoreError as error:
            log.warning("TransferQueue is behind its journal: %s", error.message)
            self._queue.behind()


def _once() -> str:
    return uuid.uuid4().hex[:12]


def _with_texts(snapshot: TokenCaptureSnapshot, here: TokenCaptureSnapshot) -> TokenCaptureSnapshot:
    texts = {entry.model_call_id: entry.request_text for entry in here.entries}
    return TokenCaptureSnapshot(
        rollout_id=snapshot.rollout_id,
        entries=tuple(entry.with_(request_text=texts.get(entry.model_call_id)) for entry in snapshot.entries),
        incomplete=snapshot.incomplete,
        snapshot_id=snapshot.snapshot_id,
        version=snapshot.version,
        incomplete_reasons=snapshot.incomplete_reasons,
        outcome=snapshot.outcome,
    )
