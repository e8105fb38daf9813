"""Gym's `TokenSink` and `TokenSource` over our store.

Each opens the store by itself, since Gym builds the sink in every server process and the source in the trainer's.
Gym's own store raises `ValueError` for a conflict, `RuntimeError` for a rollout that takes nothing more; so do these.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from rolltape.errors import ConfigError, ConflictError, FrozenError, RetiredError
from rolltape.integrations.nemo_gym import convert
from rolltape.record import TokenCaptureSnapshot
from rolltape.store import TokenCaptureStore
from rolltape.tokens import IntArray


class GymEntry(Protocol):
    """As much of Gym's `TokenEntry` as is used here."""

    def model_dump(self, *, mode: str) -> Mapping[str, Any]: ...


def opened(dir: str | Path, **options: Any) -> TokenCaptureStore:
    """The store in `dir`. Raises `ConfigError` for a relative path: server processes have directories of their own."""
    if not Path(dir).is_absolute():
        raise ConfigError(f"dir {str(dir)!r} is relative", hint="give an absolute path, the same in every process")
    return TokenCaptureStore(dir, **options)


def gym(module: str) -> Any:
    """A module of Gym's capture package. Raises `ConfigError` where Gym is not installed."""
    try:
        return import_module(f"nemo_gym.token_id_capture.{module}")
    except ImportError as error:
        raise ConfigError(
            f"cannot import NeMo Gym: {error}", hint="this object makes Gym's own: run it where Gym is installed"
        ) from error


@contextmanager
def _errors_of_gym() -> Iterator[None]:
    try:
        yield
    except ConflictError as error:
        raise ValueError(str(error)) from error
    except (FrozenError, RetiredError) as error:
        raise RuntimeError(str(error)) from error


class RolltapeSink:
    """Gym's `sink`: one of its entries in, durable and visible to every process when `put` returns."""

    def __init__(self, dir: str | Path) -> None:
        self._store = opened(dir)

    async def begin_call(self, rollout_id: str, model_call_id: str) -> None:
        """The durable intent. Raises `RuntimeError` once the rollout is frozen."""
        with _errors_of_gym():
            await self._store.begin_call(rollout_id, model_call_id)

    async def put(self, entry: GymEntry) -> None:
        """Store one call. The same again is a no-op; another payload for its id, or no entry at all: `ValueError`."""
        body = await asyncio.to_thread(entry.model_dump, mode="json")
        parent = await self._sequence(body["rollout_id"], convert.parent_of(body))
        converted = await asyncio.to_thread(convert.entry_of, body, parent)
        with _errors_of_gym():
            await self._store.put(converted)

    async def mark_incomplete(self, rollout_id: str, model_call_id: str = "") -> None:
        """Say durably that a call was lost; also after a freeze, whose snapshot can then no longer be dropped."""
        await self._store.mark_incomplete(rollout_id, model_call_id)

    async def close(self) -> None:
        """Idempotent."""
        await self._store.close()

    async def _sequence(self, rollout_id: str, call_id: str | None) -> IntArray | None:
        snapshot = await self._store.read(rollout_id) if call_id is not None else None
        entries = () if snapshot is None else snapshot.entries
        return next((entry.sequence for entry in entries if entry.model_call_id == call_id), None)


class RolltapeSource:
    """Gym's `TokenSource`: freezes rollouts that Gym's sink, or a gateway of ours, wrote into the same directory.

    Needs Gym, whose classes it returns. `settle_seconds`: how long a freeze waits for calls that are still in flight.
    """

    def __init__(self, dir: str | Path, *, settle_seconds: float = 5.0) -> None:
        self._protocols, self._records = gym("protocols"), gym("records")
        self._store = opened(dir, settle_seconds=settle_seconds)

    async def freeze(self, rollout_id: str) -> Any:
        """Gym's `TokenCaptureSnapshot` of the rollout. Raises `RuntimeError` after `drop`."""
        with _errors_of_gym():
            snapshot = await self._store.freeze(rollout_id)
        return await asyncio.to_thread(self._converted, snapshot)

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        """Retire exactly this snapshot; False for any other."""
        return await self._store.drop(rollout_id, snapshot_id=snapshot_id, version=version)

    async def close(self) -> None:
        """Idempotent."""
        await self._store.close()

    def _converted(self, snapshot: TokenCaptureSnapshot) -> Any:
        bodies = convert.bodies_of(snapshot.entries)
        return self._protocols.TokenCaptureSnapshot(
            rollout_id=snapshot.rollout_id,
            entries=tuple(self._records.TokenEntry.model_validate(body) for body in bodies),
            incomplete=snapshot.incomplete or not convert.whole_loss(snapshot.entries),
            snapshot_id=snapshot.snapshot_id,
            version=snapshot.version,
        )
