"""Retention: which evidence has to go, and its removal; as functions of a connection.

What goes first: rollouts retired long enough ago; then, where a quota is given, the oldest of those that were frozen as
long ago and that nobody retired. The row of a rollout and its marks stay: they are the fence, and the listing's memory.
"""

import math
import time
from dataclasses import dataclass

from rolltape.store.contract import Swept
from rolltape.store.tables.connection import Connection

_RETIRED = "SELECT id, rollout_id FROM rollouts WHERE swept_at IS NULL AND retired_at <= ? ORDER BY retired_at, id"
_LEFT = (
    "SELECT id, rollout_id FROM rollouts WHERE swept_at IS NULL AND retired_at IS NULL AND frozen > 0 AND frozen <= ?"
    " ORDER BY frozen DESC, id DESC"
)
_ENTRIES = (
    "SELECT count(*), coalesce(sum(length(ids) + length(log_probs) + coalesce(length(experts), 0) + length(header)), 0)"
    " FROM entries WHERE rollout = ?"
)
_TEXTS = (
    "SELECT coalesce(sum(coalesce(length(t.request), 0) + coalesce(length(t.output_items), 0)), 0)"
    " FROM entries e JOIN texts t ON t.seq = e.seq WHERE e.rollout = ?"
)


@dataclass(frozen=True, slots=True)
class Rule:
    """`seconds` since it was retired, 0 = at once; `quota_bytes` of what nobody retired, None = all; `limit` a time."""

    seconds: float
    quota_bytes: int | None
    limit: int | None

    @property
    def until(self) -> float:
        """Epoch seconds. At once holds whatever the clock says: it may have been set back since."""
        return time.time() - self.seconds if self.seconds > 0 else math.inf


@dataclass(frozen=True, slots=True)
class _Due:
    id: int
    rollout_id: str
    entries: int
    bytes: int


def due(db: Connection, rule: Rule) -> Swept:
    """What `sweep` would remove."""
    return _told(*_due(db, rule))


def sweep(db: Connection, rule: Rule) -> tuple[Swept, tuple[int, ...]]:
    """Delete it. Returns what went, and the numbers of its rollouts."""
    going, more = _due(db, rule)
    now = time.time()
    for one in going:
        db.execute("DELETE FROM texts WHERE seq IN (SELECT seq FROM entries WHERE rollout = ?)", (one.id,))
        db.execute("DELETE FROM entries WHERE rollout = ?", (one.id,))
        db.execute("DELETE FROM intents WHERE rollout = ?", (one.id,))
        db.execute(
            "UPDATE rollouts SET swept_at = ?, retired_at = coalesce(retired_at, ?) WHERE id = ?", (now, now, one.id)
        )
    return _told(going, more), tuple(one.id for one in going)


def _told(going: list[_Due], more: bool) -> Swept:
    return Swept(
        rollout_ids=tuple(one.rollout_id for one in going),
        entries=sum(one.entries for one in going),
        bytes=sum(one.bytes for one in going),
        more=more,
    )


def _due(db: Connection, rule: Rule) -> tuple[list[_Due], bool]:
    """What has to go, in that order, up to the limit; and whether more has to."""
    wanted = math.inf if rule.limit is None else rule.limit
    retired = [_sized(db, *row) for row in _rows(db, _RETIRED, rule.until, rule.limit)]
    over = [] if rule.quota_bytes is None or len(retired) > wanted else _over_quota(db, rule.until, rule.quota_bytes)
    going = [*retired, *over]
    cut = len(going) if rule.limit is None else rule.limit
    return going[:cut], len(going) > wanted


def _rows(db: Connection, select: str, until: float, limit: int | None) -> list[tuple[int, str]]:
    bound = "" if limit is None else f" LIMIT {limit + 1:d}"
    return [(row[0], row[1]) for row in db.execute(f"{select}{bound}{db.row_lock}", (until,)).fetchall()]


def _over_quota(db: Connection, until: float, quota: int) -> list[_Due]:
    """The newest are kept until the quota is full; the rest, the oldest of it first."""
    kept, over = 0, []
    for row in _rows(db, _LEFT, until, None):
        one = _sized(db, *row)
        kept += one.bytes
        if kept > quota:
            over.append(one)
    return over[::-1]


def _sized(db: Connection, rollout: int, rollout_id: str) -> _Due:
    entries, size = db.execute(_ENTRIES, (rollout,)).fetchone()
    (texts,) = db.execute(_TEXTS, (rollout,)).fetchone()
    return _Due(rollout, rollout_id, int(entries), int(size) + int(texts))
