"""The reference: every rule of the contract in few words, nothing durable. Tests compare other stores with it."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Any

import numpy as np

from rolltape import tokens
from rolltape.errors import ConflictError, FrozenError, RetiredError, StoreError
from rolltape.record import Delivery, TokenCaptureSnapshot, TokenEntry
from rolltape.store.contract import RETENTION_SECONDS, LineageMatch, PolicyState, RolloutState, Swept
from rolltape.tokens import IntArray

_FILLED = ("step_index", "parent_call_id", "common_prefix_len", "prompt_digest", "delivery", "output_items")
_POLL_SECONDS = 0.01


@dataclass(slots=True)
class _Rollout:
    labels: dict[str, Any] = field(default_factory=dict)
    created_at: float = field(default_factory=time.time)
    updated_at: float = field(default_factory=time.time)
    entries: dict[str, TokenEntry] = field(default_factory=dict)
    payloads: dict[str, Any] = field(default_factory=dict)
    sequences: dict[str, IntArray] = field(default_factory=dict)
    intents: dict[str, int] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    outcome: dict[str, Any] = field(default_factory=dict)
    next_step: int = 0
    version: int = 1
    frozen: bool = False
    retired_at: float | None = None
    swept: bool = False

    def changed(self) -> None:
        self.version += 1
        self.updated_at = time.time()

    def mark(self, call_id: str, reason: str) -> None:
        text = f"{call_id}: {reason}" if call_id else reason
        if text not in self.reasons:
            self.reasons.append(text)
            self.changed()

    def told(self) -> dict[str, Any]:
        labels = self.labels | self.outcome.get("labels", {})
        return self.outcome | {"labels": labels} if self.outcome or labels else {}


class MemoryStore:
    """`store.CaptureStore` in this process's memory. `settle_seconds`: how long a freeze waits for calls in flight."""

    def __init__(self, *, texts: bool = True, settle_seconds: float = 5.0) -> None:
        self._texts = texts
        self._settle_seconds = settle_seconds
        self._rollouts: dict[str, _Rollout] = {}
        self._policy = PolicyState()

    async def create_rollout(self, rollout_id: str, labels: Mapping[str, Any] | None = None) -> None:
        if rollout_id in self._rollouts:
            raise ConflictError(f"rollout {rollout_id!r} exists")
        self._rollouts[rollout_id] = _Rollout(labels=dict(labels or {}))

    async def begin_call(self, rollout_id: str, model_call_id: str) -> None:
        rollout = self._writable(rollout_id)
        if rollout.frozen:
            raise FrozenError(f"rollout {rollout_id!r} is frozen: no new call may begin")
        if model_call_id in rollout.entries:
            raise ConflictError(f"call {model_call_id!r} of rollout {rollout_id!r} is already recorded")
        if model_call_id not in rollout.intents:
            rollout.intents[model_call_id] = rollout.next_step
            rollout.next_step += 1

    async def put(self, entry: TokenEntry) -> None:
        rollout, call_id = self._writable(entry.rollout_id), entry.model_call_id
        step = rollout.intents.pop(call_id, rollout.next_step)
        payload = _payload(entry)
        if call_id in rollout.entries:
            if rollout.payloads[call_id] == payload:
                return
            rollout.mark(call_id, "put again with another payload; the first is kept")
            raise ConflictError(f"call {call_id!r} of rollout {entry.rollout_id!r} has another payload")
        filled = _filled(entry, rollout, step)
        rollout.entries[call_id] = filled if self._texts else filled.with_(output_items=(), request_text=None)
        rollout.payloads[call_id] = payload
        rollout.sequences[call_id] = entry.sequence
        rollout.next_step = max(rollout.next_step, (filled.step_index or 0) + 1)
        rollout.changed()
        if entry.damaged:
            rollout.mark(call_id, f"its ids are in doubt: {'; '.join(entry.faults)}")

    async def mark_incomplete(self, rollout_id: str, model_call_id: str = "") -> None:
        rollout = self._rollouts.setdefault(rollout_id, _Rollout())
        rollout.intents.pop(model_call_id, None)
        rollout.mark(model_call_id, "marked by its writer")

    async def settle_delivery(self, rollout_id: str, model_call_id: str, delivery: Delivery) -> None:
        rollout = self._rollouts.get(rollout_id)
        if rollout is not None and model_call_id in rollout.entries:
            rollout.entries[model_call_id] = rollout.entries[model_call_id].with_(delivery=delivery)

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        rollout = self._writable(rollout_id)
        rollout.frozen = True
        for _ in range(ceil(self._settle_seconds / _POLL_SECONDS)):
            if not rollout.intents:
                break
            await asyncio.sleep(_POLL_SECONDS)
        return self._snapshot(rollout_id, rollout, texts=False)

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        rollout = self._rollouts.get(rollout_id)
        if rollout is None or not rollout.frozen or rollout.retired_at is not None:
            return False
        if (snapshot_id, version) != (_snapshot_id(rollout_id, rollout), rollout.version):
            return False
        rollout.retired_at = time.time()
        return True

    async def read(self, rollout_id: str, *, texts: bool = False) -> TokenCaptureSnapshot | None:
        rollout = self._rollouts.get(rollout_id)
        return None if rollout is None or rollout.swept else self._snapshot(rollout_id, rollout, texts=texts)

    async def sweep(
        self,
        seconds: float = RETENTION_SECONDS,
        *,
        quota_bytes: int | None = None,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> Swept:
        """What was retired so long ago; memory has no quota."""
        until = time.time() - seconds if seconds > 0 else inf
        due = {
            rollout_id: rollout
            for rollout_id, rollout in self._rollouts.items()
            if not rollout.swept and rollout.retired_at is not None and rollout.retired_at <= until
        }
        going = dict(list(due.items())[:limit])
        told = Swept(
            tuple(going),
            entries=sum(len(rollout.entries) for rollout in going.values()),
            bytes=sum(_size(entry) for rollout in going.values() for entry in rollout.entries.values()),
            more=len(due) > len(going),
        )
        for rollout in () if dry_run else going.values():
            rollout.swept = True
            for held in (rollout.entries, rollout.payloads, rollout.sequences, rollout.intents):
                held.clear()
        return told

    async def record(self, rollout_id: str, model_call_id: str, cumulative_token_ids: IntArray) -> None:
        rollout = self._writable(rollout_id)
        sequence = tokens.token_ids(cumulative_token_ids)
        known = rollout.sequences.setdefault(model_call_id, sequence)
        if model_call_id not in rollout.entries and not np.array_equal(known, sequence):
            raise ConflictError(f"call {model_call_id!r} of rollout {rollout_id!r} has another sequence")

    async def resolve(self, rollout_id: str, prompt_token_ids: IntArray) -> LineageMatch | None:
        rollout = self._rollouts.get(rollout_id)
        if rollout is None or rollout.retired_at is not None:
            return None
        match = _match(rollout, tokens.token_ids(prompt_token_ids))
        return None if match.whole is None else LineageMatch(match.whole, match.whole_length)

    async def rollouts(self) -> Sequence[RolloutState]:
        return [_state(rollout_id, rollout) for rollout_id, rollout in self._rollouts.items()]

    async def rollout(self, rollout_id: str) -> RolloutState | None:
        rollout = self._rollouts.get(rollout_id)
        return None if rollout is None else _state(rollout_id, rollout)

    async def set_outcome(
        self, rollout_id: str, *, reward: float | None, ending: str | None, labels: Mapping[str, Any]
    ) -> None:
        if reward is not None and not np.isfinite(reward):
            raise StoreError(f"reward {reward!r} is no number")
        rollout = self._rollouts.setdefault(rollout_id, _Rollout())
        rollout.outcome = {"reward": reward, "ending": ending, "labels": dict(labels)}

    async def policy(self) -> PolicyState:
        return self._policy

    async def set_policy(self, policy: PolicyState) -> None:
        self._policy = policy

    async def close(self) -> None:
        """Nothing to release; what was put stays readable through this object."""

    def _writable(self, rollout_id: str) -> _Rollout:
        rollout = self._rollouts.setdefault(rollout_id, _Rollout())
        if rollout.retired_at is not None:
            raise RetiredError(f"rollout {rollout_id!r} was retired")
        return rollout

    def _snapshot(self, rollout_id: str, rollout: _Rollout, *, texts: bool) -> TokenCaptureSnapshot:
        dangling = [f"{call_id}: the call began and has no outcome" for call_id in rollout.intents]
        entries = rollout.entries.values()
        return TokenCaptureSnapshot(
            rollout_id=rollout_id,
            entries=tuple(entries) if texts else tuple(entry.with_(request_text=None) for entry in entries),
            incomplete=bool(rollout.reasons or dangling),
            snapshot_id=_snapshot_id(rollout_id, rollout),
            version=rollout.version,
            incomplete_reasons=(*rollout.reasons, *dangling),
            outcome=rollout.told(),
        )


def _size(entry: TokenEntry) -> int:
    return entry.sequence.nbytes + entry.generation_log_probs.nbytes


def _snapshot_id(rollout_id: str, rollout: _Rollout) -> str:
    return f"{rollout_id}@{rollout.created_at}v{rollout.version}"


def _payload(entry: TokenEntry) -> Any:
    """What makes two puts the same: all that a producer said, except what a store fills in and the texts."""
    body = {name: value for name, value in entry.to_json().items() if name not in _FILLED}
    experts = entry.routed_experts
    shape = None if experts is None else (experts.dtype.str, experts.shape, experts.tobytes())
    return body, entry.generation_log_probs.tobytes(), shape


def _match(rollout: _Rollout, prompt: IntArray) -> tokens.PrefixMatch[str]:
    tree: tokens.PrefixTree[str] = tokens.PrefixTree()
    for call_id, sequence in rollout.sequences.items():
        tree.add(sequence, call_id)
    return tree.match(prompt)


def _filled(entry: TokenEntry, rollout: _Rollout, step: int) -> TokenEntry:
    match = _match(rollout, entry.prompt_token_ids)
    return entry.with_(
        step_index=step if entry.step_index is None else entry.step_index,
        parent_call_id=match.whole if entry.parent_call_id is None else entry.parent_call_id,
        common_prefix_len=match.depth if entry.common_prefix_len is None else entry.common_prefix_len,
        prompt_digest=tokens.digest(entry.prompt_token_ids),
    )


def _state(rollout_id: str, rollout: _Rollout) -> RolloutState:
    told = rollout.told()
    return RolloutState(
        rollout_id=rollout_id,
        created_at=rollout.created_at,
        updated_at=rollout.updated_at,
        n_entries=len(rollout.entries),
        n_open_calls=len(rollout.intents),
        generated_tokens=sum(len(entry.generation_token_ids) for entry in rollout.entries.values()),
        frozen=rollout.frozen,
        incomplete=bool(rollout.reasons or (rollout.frozen and rollout.intents)),
        version=rollout.version,
        snapshot_id=_snapshot_id(rollout_id, rollout) if rollout.frozen else None,
        retired_at=rollout.retired_at,
        reward=told.get("reward"),
        ending=told.get("ending"),
        labels=told.get("labels", {}),
    )
