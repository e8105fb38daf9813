"""The store contract, in prose and as Protocols.

*put* is durable when it returns, and visible to every reader that starts afterwards. The same id with the same payload
is a no-op; with another payload it raises `ConflictError`, keeps the first and marks the rollout incomplete. After a
freeze it is still taken (a lost race is no reason to lose evidence) and advances the version, so that a snapshot which
did not see it can no longer be dropped.

*begin_call* is the durable intent that makes a lost call visible: an intent that no entry settles makes the rollout
incomplete. It raises `FrozenError` or `RetiredError` inside the same transaction that freezes, so the fence holds for
every process.

*freeze* is atomic and idempotent: the same state gives the same `snapshot_id` and `version`. *drop* retires only that
exact state and returns False for anything else. A dropped rollout is gone for every source; what the disk still holds
stays readable for people (`read`) until retention removes it. *mark_incomplete* works at any time and is never lost.

*sweep* (`RetainingStore`) is that retention: what was retired long enough ago is deleted, and the oldest of what nobody
retired where it outgrows a quota. The rollout's row stays, as a fence against a writer that comes too late.

*close* is idempotent and releases only what the object itself opened.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from rolltape.record import Delivery, TokenCaptureSnapshot, TokenEntry
from rolltape.tokens import IntArray


class TokenSink(Protocol):
    """What a model server writes to."""

    async def put(self, entry: TokenEntry) -> None: ...
    async def mark_incomplete(self, rollout_id: str, model_call_id: str = "") -> None: ...
    async def close(self) -> None: ...


class TokenSource(Protocol):
    """What a rollout's consumer reads from."""

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot: ...
    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool: ...
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LineageMatch:
    """The call whose whole sequence is the longest exact prefix of a prompt, and that sequence's length."""

    model_call_id: str
    length: int


class LineageStore(Protocol):
    """Lets any worker find the call that a prompt extends."""

    async def record(self, rollout_id: str, model_call_id: str, cumulative_token_ids: IntArray) -> None: ...
    async def resolve(self, rollout_id: str, prompt_token_ids: IntArray) -> LineageMatch | None: ...
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RolloutState:
    """One line of a listing. Times are epoch seconds; `retired_at` None = not retired."""

    rollout_id: str
    created_at: float
    updated_at: float
    n_entries: int
    n_open_calls: int
    """Intents that no entry has settled."""
    generated_tokens: int
    frozen: bool
    incomplete: bool
    version: int
    snapshot_id: str | None = None
    retired_at: float | None = None
    reward: float | None = None
    ending: str | None = None
    labels: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PolicyState:
    """Which policy the engines serve. `state`: serving, or paused while weights change (calls wait)."""

    version: str | None = None
    state: str = "serving"


RETENTION_SECONDS = 7 * 86_400.0
"""How long evidence stays readable after its rollout was retired, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What retention removed, or would remove. `bytes` as stored; `more`: the limit was reached and some is left."""

    rollout_ids: tuple[str, ...] = ()
    entries: int = 0
    bytes: int = 0
    more: bool = False


class CallSink(TokenSink, Protocol):
    """What the recording of a call needs: a sink, the intent before it and the word on delivery after it."""

    async def begin_call(self, rollout_id: str, model_call_id: str) -> None: ...

    async def settle_delivery(self, rollout_id: str, model_call_id: str, delivery: Delivery) -> None:
        """Note whether the reply reached the harness. Written with the next batch, never a sync of its own."""
        ...


class RolloutBook(Protocol):
    """What is known of rollouts beside their calls, and of the policy: for admission, control and listings."""

    async def create_rollout(self, rollout_id: str, labels: Mapping[str, Any] | None = None) -> None:
        """Announce a rollout. Raises `ConflictError` if it exists: two attempts never share one id."""
        ...

    async def rollouts(self) -> Sequence[RolloutState]: ...

    async def rollout(self, rollout_id: str) -> RolloutState | None: ...

    async def set_outcome(
        self, rollout_id: str, *, reward: float | None, ending: str | None, labels: Mapping[str, Any]
    ) -> None: ...

    async def policy(self) -> PolicyState: ...

    async def set_policy(self, policy: PolicyState) -> None: ...


@runtime_checkable
class CaptureStore(CallSink, TokenSource, LineageStore, RolloutBook, Protocol):
    """What the command line and the control API need of a full store: all of the above in one, and reading."""

    async def read(self, rollout_id: str, *, texts: bool = False) -> TokenCaptureSnapshot | None:
        """What the store holds of a rollout, without freezing it; also after retirement. None = nothing."""
        ...


@runtime_checkable
class RetainingStore(Protocol):
    """A store that keeps evidence until somebody removes it."""

    async def sweep(
        self,
        seconds: float = RETENTION_SECONDS,
        *,
        quota_bytes: int | None = None,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> Swept:
        """Delete what rollouts hold that were retired `seconds` ago or earlier; 0 = at once.

        `quota_bytes` bounds what is kept of rollouts that were frozen so long ago and that nobody retired: a masked
        build, a failed one. The oldest go first, and are retired by it. None = all are kept. At most `limit` rollouts
        in one call.
        """
        ...
