"""What this node's gateways put: the file store of one node, and whose evidence a queue may lack.

An entry is here before it is in a queue, and here again when the queue is gone. Two small files stand beside the
store: the journal's own name, and the names of the journals it has met, for only they know what a lost queue held.
"""

import os
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rolltape.errors import RetiredError
from rolltape.record import TokenCaptureSnapshot
from rolltape.store.contract import RolloutState
from rolltape.store.sqlite import TokenCaptureStore
from rolltape.store.tables import rollouts
from rolltape.store.tables.connection import Connection

_NAME = "queue-journal"
_PEERS = "queue-peers"


@dataclass(frozen=True, slots=True)
class Holding:
    """All that the journal knows of a rollout that is not retired."""

    state: RolloutState
    snapshot: TokenCaptureSnapshot
    marks: tuple[tuple[str, str], ...]
    """(call or "", reason)"""
    open_calls: tuple[str, ...]


class Journal(TokenCaptureStore):
    """The store in `dir`, as a journal. Several gateways of one node may share it."""

    def __init__(self, dir: str | Path, *, texts: bool) -> None:
        super().__init__(dir, texts=texts, settle_seconds=0)
        self._dir = Path(dir)
        self.name = _named(self._dir / _NAME)

    def abandon(self) -> None:
        """Close at once, outside of any event loop."""
        self._closed = True
        self._close()

    def peers(self) -> frozenset[str]:
        """The journals that were met in any queue, this one among them."""
        try:
            return frozenset((self._dir / _PEERS).read_text().split()) | {self.name}
        except FileNotFoundError:
            return frozenset({self.name})

    def meet(self, journals: Iterable[str], left: Iterable[str] = ()) -> None:
        """Remember these durably, and forget those that left with nothing in their hands."""
        known = self.peers()
        now = (known | frozenset(journals)) - (frozenset(left) - {self.name})
        if now != known:
            _write(self._dir / _PEERS, "".join(f"{name}\n" for name in sorted(now)))

    async def withdraw(self, rollout_id: str, call_id: str) -> None:
        """Forget an intent: the queue refused the call."""
        await self._write(rollout_id, partial(_withdraw, rollout_id=rollout_id, call_id=call_id))

    async def fence(self, rollout_id: str) -> None:
        await self._write(rollout_id, partial(_fence, rollout_id=rollout_id))

    async def retire(self, rollout_id: str) -> None:
        """Its consumer has the result: nothing of it is ever given back to a queue."""
        await self._write(rollout_id, partial(_retire, rollout_id=rollout_id))

    async def note(self, rollout_id: str, call_id: str, reason: str) -> None:
        """Make a rollout incomplete for this reason."""
        mark = partial(rollouts.mark_incomplete, rollout_id=rollout_id, call_id=call_id, reason=reason)
        await self._write(rollout_id, mark, amends=mark)

    async def holding(self, state: RolloutState) -> Holding | None:
        """None where it holds nothing any more."""
        snapshot = await self.read(state.rollout_id)
        if snapshot is None:
            return None
        marks, open_calls = await self._read(partial(_told, rollout_id=state.rollout_id))
        said = {f"{call}: {reason}" if call else reason for call, reason in marks}
        said |= {f"{call}: the call began and has no outcome" for call in open_calls}
        damages = tuple(("", reason) for reason in snapshot.incomplete_reasons if reason not in said)
        return Holding(state, snapshot, (*marks, *damages), open_calls)


def _withdraw(db: Connection, rollout_id: str, call_id: str) -> None:
    if (rollout := rollouts.find(db, rollout_id)) is not None:
        db.execute("DELETE FROM intents WHERE rollout = ? AND call_id = ?", (rollout.id, call_id))


def _fence(db: Connection, rollout_id: str) -> None:
    if rollouts.find(db, rollout_id) is not None:
        try:
            rollouts.fence(db, rollout_id)
        except RetiredError:
            return


def _retire(db: Connection, rollout_id: str) -> None:
    db.execute(
        "UPDATE rollouts SET retired_at = ? WHERE rollout_id = ? AND retired_at IS NULL", (time.time(), rollout_id)
    )


def _told(db: Connection, rollout_id: str) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    rollout = rollouts.find(db, rollout_id)
    if rollout is None:
        return (), ()
    marks = db.execute("SELECT call_id, reason FROM marks WHERE rollout = ? ORDER BY at, call_id", (rollout.id,))
    told = tuple((str(call), str(reason)) for call, reason in marks)
    calls = db.execute("SELECT call_id FROM intents WHERE rollout = ? ORDER BY step_index", (rollout.id,))
    return told, tuple(str(call) for (call,) in calls)


def _named(file: Path) -> str:
    """The name in `file`; whoever comes first gives it."""
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        mine = _whole(file, f"{secrets.token_hex(8)}\n")
    try:
        os.link(mine, file)
    except FileExistsError:
        pass
    finally:
        mine.unlink()
    return file.read_text().strip()


def _write(file: Path, text: str) -> None:
    _whole(file, text).rename(file)


def _whole(beside: Path, text: str) -> Path:
    """A synced file with that text, under a name of its own."""
    made = beside.with_name(f"{beside.name}.{secrets.token_hex(4)}")
    handle = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, text.encode())
        os.fsync(handle)
    finally:
        os.close(handle)
    return made
