"""The rollout rows: state, fences, marks, outcomes and snapshots, as functions of a connection.

Functions that write are run by the writer inside its transaction, so whatever they read (`frozen`, `retired_at`) holds
for every process. Raising one of the store's errors undoes the function's own writes; returning an error keeps them and
raises it to the caller after the commit.
"""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

import msgspec

from rolltape.errors import ConflictError, FrozenError, RetiredError
from rolltape.record import TokenCaptureSnapshot
from rolltape.store.contract import PolicyState, RolloutState
from rolltape.store.tables import codec, reading
from rolltape.store.tables.connection import Change, Connection, insertion


@dataclass(slots=True)
class Rollout:
    """One row of `rollouts`. Names are those of its columns."""

    id: int
    rollout_id: str
    created_at: float
    updated_at: float
    labels: str | None
    outcome: str | None
    frozen: float
    retired_at: float | None
    swept_at: float | None
    version: int
    next_step: int
    n_entries: int
    generated_tokens: int
    last_seq: int
    chain: bytes

    @property
    def snapshot_id(self) -> str:
        """Names exactly this evidence: it follows from the entries' digests and the version alone."""
        return hashlib.sha256(f"{self.rollout_id}\n{self.version}\n".encode() + self.chain).hexdigest()[:32]

    def told(self) -> dict[str, Any]:
        """What the runner said: reward, ending, labels; {} = nothing, or nothing that can be read (`untold`)."""
        try:
            return self._told()
        except _UNTOLD:
            return {}

    @property
    def untold(self) -> bool:
        """True when the runner said something that is damaged now."""
        try:
            self._told()
        except _UNTOLD:
            return True
        return False

    def _told(self) -> dict[str, Any]:
        outcome = msgspec.json.decode(self.outcome, type=dict[str, Any]) if self.outcome else {}
        labels = (msgspec.json.decode(self.labels, type=dict[str, Any]) if self.labels else {}) | outcome.get(
            "labels", {}
        )
        return outcome | {"labels": labels} if outcome or labels else {}


_UNTOLD = (msgspec.MsgspecError, UnicodeError, TypeError)
_FIELDS = tuple(f.name for f in fields(Rollout))
_COLUMNS = ", ".join(_FIELDS)
FIND = f"SELECT {_COLUMNS} FROM rollouts WHERE rollout_id = ?"  # noqa: S608
FIND_ALL = f"SELECT {_COLUMNS} FROM rollouts WHERE rollout_id = ANY (?) ORDER BY rollout_id"  # noqa: S608
"""Of many, in the order of `sorted`; for databases that take an array. `rollout_id` is the second column."""
MAKE_ALL = (
    "INSERT INTO rollouts (rollout_id, created_at, updated_at) SELECT one, at, at"  # noqa: S608
    " FROM (SELECT CAST(? AS double precision) AS at) AS now, unnest(CAST(? AS text[])) AS one"
    f" ON CONFLICT DO NOTHING RETURNING {_COLUMNS}"
)
"""Of those that are not there yet, in their order; for databases that take an array."""
KNOWN = (
    "SELECT (SELECT step_index FROM intents WHERE rollout = ? AND call_id = ?),"
    " (SELECT digest FROM entries WHERE rollout = ? AND kind = 0 AND call_id = ?)"
)
_SAVED = ("updated_at", "version", "next_step", "n_entries", "generated_tokens", "last_seq", "chain")
_SAVE = Change(
    f"UPDATE rollouts SET {', '.join(f'{name} = ?' for name in _SAVED)} WHERE id = ?",  # noqa: S608
    f"UPDATE rollouts r SET {', '.join(f'{name} = new.{name}' for name in _SAVED)} FROM {{new}} WHERE r.id = new.id",  # noqa: S608
    (*_SAVED, "id"),
    replaces=True,
)
_saved, _whole = attrgetter(*_SAVE.columns), attrgetter(*_FIELDS)
_BEGIN = insertion("intents", "rollout, call_id, step_index, begun_at")
_SETTLE = Change(
    "DELETE FROM intents WHERE rollout = ? AND call_id = ?",
    "DELETE FROM intents i USING {new} WHERE i.rollout = new.rollout AND i.call_id = new.call_id",
    ("rollout", "call_id"),
)
_MARKED = "EXISTS (SELECT 1 FROM marks m WHERE m.rollout = r.id)"
_OPEN = "(SELECT count(*) FROM intents i WHERE i.rollout = r.id)"


def find(db: Connection, rollout_id: str) -> Rollout | None:
    """The rollout's row; within a write nobody else changes it before the commit."""
    row = db.execute(FIND + db.row_lock, (rollout_id,)).fetchone()
    return None if row is None else Rollout(*row)


def ensure(db: Connection, rollout_id: str) -> Rollout:
    """The rollout's row, made where it is the first that is heard of it."""
    if (found := find(db, rollout_id)) is not None:
        return found
    _make(db, rollout_id)
    made = find(db, rollout_id)
    assert made is not None
    return made


def save(db: Connection, rollout: Rollout) -> None:
    """Write what was counted on in a row that this transaction has locked."""
    rollout.updated_at = time.time()
    db.change(_SAVE, _saved(rollout))
    db.learn(FIND + db.row_lock, (rollout.rollout_id,), _whole(rollout))


def settle(db: Connection, rollout: Rollout, call_id: str) -> None:
    """The call has an outcome: its intent goes."""
    db.change(_SETTLE, (rollout.id, call_id))
    db.learn(KNOWN, (rollout.id, call_id) * 2, None)


def _make(db: Connection, rollout_id: str) -> bool:
    """Insert the rollout's row; False where somebody else did so first."""
    now = time.time()
    made = db.execute(
        "INSERT INTO rollouts (rollout_id, created_at, updated_at) VALUES (?, ?, ?)"
        " ON CONFLICT DO NOTHING RETURNING id",
        (rollout_id, now, now),
    )
    return bool(made.fetchall())


def refuse_retired(rollout: Rollout) -> None:
    if rollout.retired_at is not None:
        raise RetiredError(f"rollout {rollout.rollout_id!r} was retired")


def create(db: Connection, rollout_id: str, labels: Mapping[str, Any]) -> None:
    if not _make(db, rollout_id):
        raise ConflictError(f"rollout {rollout_id!r} exists", hint="give every attempt an id of its own")
    if labels:
        db.execute("UPDATE rollouts SET labels = ? WHERE rollout_id = ?", (_json(labels), rollout_id))


def begin_call(db: Connection, rollout_id: str, call_id: str) -> None:
    rollout = ensure(db, rollout_id)
    refuse_retired(rollout)
    if rollout.frozen:
        raise FrozenError(f"rollout {rollout_id!r} is frozen: no new call may begin")
    step, digest = known_of(db, rollout, call_id)
    if digest is not None:
        raise ConflictError(f"call {call_id!r} of rollout {rollout_id!r} is already recorded")
    if step is None:
        db.change(_BEGIN, (rollout.id, call_id, rollout.next_step, time.time()))
        rollout.next_step += 1
        save(db, rollout)


def known_of(db: Connection, rollout: Rollout, call_id: str) -> tuple[int | None, bytes | None]:
    """The step of a call that began and has no outcome yet; the digest of its entry. None for what is not there."""
    step, digest = db.execute(KNOWN, (rollout.id, call_id) * 2).fetchone()
    return (None if step is None else int(step)), (None if digest is None else bytes(digest))


def mark(db: Connection, rollout: Rollout, call_id: str, reason: str) -> None:
    """Make a rollout incomplete, once for each reason; the version advances with each."""
    new = db.execute(
        "INSERT INTO marks (rollout, call_id, reason, at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING 1",
        (rollout.id, call_id, reason, time.time()),
    )
    if new.fetchall():
        rollout.version += 1
        save(db, rollout)


def mark_incomplete(db: Connection, rollout_id: str, call_id: str, reason: str) -> None:
    """A mark also settles the call's intent: whoever marks it has given it up, and a freeze need not wait for it."""
    rollout = ensure(db, rollout_id)
    mark(db, rollout, call_id, reason)
    settle(db, rollout, call_id)


def settle_delivery(db: Connection, rollout_id: str, call_id: str, delivery: str) -> None:
    db.execute(
        "UPDATE entries SET delivery = ? WHERE kind = 0 AND call_id = ?"
        " AND rollout = (SELECT id FROM rollouts WHERE rollout_id = ?)",
        (delivery, call_id, rollout_id),
    )


def fence(db: Connection, rollout_id: str) -> float:
    """From this commit on no process may begin a call. Returns since when that is so, in epoch seconds."""
    rollout = ensure(db, rollout_id)
    refuse_retired(rollout)
    if rollout.frozen:
        return rollout.frozen
    now = time.time()
    db.execute("UPDATE rollouts SET frozen = ?, updated_at = ? WHERE id = ?", (now, now, rollout.id))
    return now


def drop(db: Connection, rollout_id: str, snapshot_id: str, version: int) -> bool:
    rollout = find(db, rollout_id)
    if rollout is None or not rollout.frozen or rollout.retired_at is not None:
        return False
    if (rollout.snapshot_id, rollout.version) != (snapshot_id, version):
        return False
    db.execute("UPDATE rollouts SET retired_at = ? WHERE id = ?", (time.time(), rollout.id))
    return True


def set_outcome(db: Connection, rollout_id: str, outcome: Mapping[str, Any]) -> None:
    rollout = ensure(db, rollout_id)
    db.execute(
        "UPDATE rollouts SET outcome = ?, updated_at = ? WHERE id = ?", (_json(outcome), time.time(), rollout.id)
    )


def policy(db: Connection) -> PolicyState:
    row = db.execute("SELECT version, state FROM policy").fetchone()
    return PolicyState() if row is None else PolicyState(*row)


def set_policy(db: Connection, policy: PolicyState) -> None:
    db.execute(
        "INSERT INTO policy (id, version, state) VALUES (1, ?, ?)"
        " ON CONFLICT (id) DO UPDATE SET version = excluded.version, state = excluded.state",
        (policy.version, policy.state),
    )


def states(db: Connection, rollout_id: str | None = None) -> list[RolloutState]:
    """The listing, oldest first; of one rollout where `rollout_id` is given."""
    where = "" if rollout_id is None else "WHERE r.rollout_id = ?"
    rows = db.execute(
        f"SELECT {_MARKED}, {_OPEN}, {_COLUMNS} FROM rollouts r {where} ORDER BY r.id",  # noqa: S608
        () if rollout_id is None else (rollout_id,),
    )
    return [_state(bool(marked), n_open, Rollout(*columns)) for marked, n_open, *columns in rows]


def _state(marked: bool, n_open: int, rollout: Rollout) -> RolloutState:
    told = rollout.told()
    return RolloutState(
        rollout_id=rollout.rollout_id,
        created_at=rollout.created_at,
        updated_at=rollout.updated_at,
        n_entries=rollout.n_entries,
        n_open_calls=n_open,
        generated_tokens=rollout.generated_tokens,
        frozen=bool(rollout.frozen),
        incomplete=marked or bool(rollout.frozen and n_open),
        version=rollout.version,
        snapshot_id=rollout.snapshot_id if rollout.frozen else None,
        retired_at=rollout.retired_at,
        reward=told.get("reward"),
        ending=told.get("ending"),
        labels=told.get("labels", {}),
    )


def n_open_calls(db: Connection, rollout_id: str) -> int:
    """How many calls began and have neither entry nor mark."""
    row = db.execute(
        "SELECT count(*) FROM intents WHERE rollout = (SELECT id FROM rollouts WHERE rollout_id = ?)", (rollout_id,)
    ).fetchone()
    return int(row[0])


def snapshot(
    db: Connection, packer: codec.Packer, rollout_id: str, *, requests: bool = False
) -> TokenCaptureSnapshot | None:
    """One consistent view of a rollout; None where there is nothing, or nothing any more."""
    db.execute(db.begin_view)
    try:
        rollout = find(db, rollout_id)
        if rollout is None or rollout.swept_at is not None:
            return None
        loaded = reading.load(db, packer, rollout.id, rollout_id, requests=requests)
        reasons = _reasons(db, rollout, loaded)
    finally:
        db.execute("ROLLBACK")
    return TokenCaptureSnapshot(
        rollout_id=rollout_id,
        entries=tuple(loaded.entries),
        incomplete=bool(reasons),
        snapshot_id=rollout.snapshot_id,
        version=rollout.version,
        incomplete_reasons=reasons,
        outcome=rollout.told(),
    )


def _reasons(db: Connection, rollout: Rollout, loaded: reading.Loaded) -> tuple[str, ...]:
    marks = db.execute("SELECT call_id, reason FROM marks WHERE rollout = ? ORDER BY at, call_id", (rollout.id,))
    reasons = [worded(call_id, reason) for call_id, reason in marks]
    dangling = db.execute("SELECT call_id FROM intents WHERE rollout = ? ORDER BY step_index", (rollout.id,))
    reasons += [worded(call_id, "the call began and has no outcome") for (call_id,) in dangling]
    return (*reasons, *damages(rollout, loaded))


def damages(rollout: Rollout, loaded: reading.Loaded) -> list[str]:
    """What the digests say is not as it was put."""
    found = [worded(call_id, f"damaged: {problem}") for call_id, problem in loaded.problems]
    if (loaded.n_rows, loaded.chain) != (rollout.n_entries, rollout.chain):
        found.append(f"damaged: {loaded.n_rows} of {rollout.n_entries} entries, or their chain is broken")
    if rollout.untold:
        found.append("damaged: its outcome or its labels cannot be read")
    return found


def worded(call_id: str, reason: str) -> str:
    """A reason as people and metrics read it."""
    return f"{call_id}: {reason}" if call_id else reason


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
