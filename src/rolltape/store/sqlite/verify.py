"""Is everything in a store what was put there? Every prompt, entry and chain digest is derived again from the bytes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rolltape.errors import StoreError
from rolltape.store.sqlite import schema
from rolltape.store.tables import codec, reading, rollouts, texts
from rolltape.store.tables.connection import DAMAGED


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify` found. `problems` are sentences that name rollout and call; empty = the store is sound.

    `swept` rollouts are counted apart: retention removed what they held.
    """

    rollouts: int
    entries: int
    texts: int
    swept: int
    problems: tuple[str, ...]

    @property
    def sound(self) -> bool:
        return not self.problems


def verify(dir: str | Path, *, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
    """Check the store in `dir` without changing it. Raises `StoreError` where there is none, or a newer one.

    `progress` is called with (rollouts checked, rollouts in all).
    """
    file = Path(dir) / schema.FILE_NAME
    if not file.is_file():
        raise StoreError(f"there is no store at {dir}")
    db = schema.connect(file, read_only=True)
    try:
        schema.check_version(db, file)
        db.execute("BEGIN")
        return _verify(db, progress or (lambda done, total: None))
    except DAMAGED as error:
        return VerifyReport(0, 0, 0, 0, (f"the file is damaged: {error}",))
    finally:
        db.close()


def _verify(db: schema.Connection, progress: Callable[[int, int], None]) -> VerifyReport:
    problems = [f"the file is damaged: {line}" for (line,) in db.execute("PRAGMA integrity_check") if line != "ok"]
    packer = codec.Packer()
    n_entries = n_texts = n_swept = 0
    ids = [rollout_id for (rollout_id,) in db.execute("SELECT rollout_id FROM rollouts ORDER BY id")]
    for done, rollout_id in enumerate(ids, 1):
        rollout = rollouts.find(db, rollout_id)
        if rollout is None or rollout.swept_at is not None:
            n_swept += 1
        else:
            loaded = reading.load(db, packer, rollout.id, rollout_id)
            n_entries += loaded.n_rows
            problems += [f"{rollout_id}: {problem}" for problem in rollouts.damages(rollout, loaded)]
            count, damaged = _check_texts(db, packer, rollout)
            n_texts += count
            problems += [f"{rollout_id}: {problem}" for problem in damaged]
        progress(done, len(ids))
    orphans = db.execute("SELECT count(*) FROM entries WHERE rollout NOT IN (SELECT id FROM rollouts)").fetchone()[0]
    problems += [f"{orphans} entries belong to no rollout"] if orphans else []
    return VerifyReport(len(ids), n_entries, n_texts, n_swept, tuple(problems))


def _check_texts(db: schema.Connection, packer: codec.Packer, rollout: rollouts.Rollout) -> tuple[int, list[str]]:
    """How many entries have texts, and which cannot be read."""
    problems = []
    rows = db.execute(
        "SELECT t.seq, e.call_id, t.request IS NOT NULL, t.output_items FROM entries e JOIN texts t ON t.seq = e.seq"
        " WHERE e.rollout = ?",
        (rollout.id,),
    ).fetchall()
    for seq, call_id, has_request, items in rows:
        try:
            readable = not has_request or texts.request(db, packer, seq) is not None
            packer.unpack_text(items) if items is not None else None
        except reading.UNREADABLE:
            readable = False
        if not readable:
            problems.append(f"{call_id}: its texts are unreadable")
    return len(rows), problems
