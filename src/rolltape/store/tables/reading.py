"""From rows back to entries: every digest derived again, memory and time linear in the distinct ids.

The prompts of a chain are slices of one buffer. A first pass over the rows, in the order they were written, decides
which buffer holds which prompt and how long each must be; a second one fills them and continues each buffer's SHA-256
from prompt to prompt. A row that does not match its digest is left out and named, never repaired and never an
exception: what else the rollout holds is still good.
"""

import hashlib
import struct
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from rolltape.record import TokenEntry
from rolltape.store.tables import codec, texts
from rolltape.store.tables.connection import DAMAGED, Connection
from rolltape.tokens import IntArray

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

_SELECT = f"SELECT {codec.COLUMNS} FROM entries"  # noqa: S608
UNREADABLE = (*DAMAGED, KeyError, AttributeError, struct.error, *codec.UNPACK_ERRORS)


@dataclass(slots=True)
class Loaded:
    """What a rollout's rows say. `problems` are (call_id, what is wrong); `chain` is derived from the rows read."""

    entries: list[TokenEntry]
    problems: list[tuple[str, str]]
    n_rows: int
    chain: bytes


@dataclass(slots=True, eq=False)
class _Buffer:
    """Holds the prompts of one chain. `used` ids are planned, `ids` allocated; hashed[i] ids give states[i]."""

    used: int = 0
    ids: IntArray = field(default_factory=lambda: np.empty(0, np.int32))
    hashed: list[int] = field(default_factory=list)
    states: list["Hash"] = field(default_factory=list)

    def hash(self, length: int) -> "Hash":
        """The state after the first `length` ids, continued from the nearest one known."""
        known = bisect_right(self.hashed, length)
        at, state = (self.hashed[known - 1], self.states[known - 1].copy()) if known else (0, hashlib.sha256())
        state.update(self.ids[at:length].data)
        self.hashed.insert(known, length)
        self.states.insert(known, state)
        return state


@dataclass(slots=True, eq=False)
class _Piece:
    """One row on its way to an entry. `reach`: how much of its whole sequence its buffer holds."""

    row: codec.Row
    tail: IntArray
    generation: IntArray
    base: "_Piece | None"
    buffer: _Buffer
    reach: int


def load(db: Connection, packer: codec.Packer, rollout: int, rollout_id: str, *, requests: bool = False) -> Loaded:
    """All entries of a rollout, in the order they were put. `requests`: with their request texts."""
    problems: list[tuple[str, str]] = []
    rows = _rows(db, rollout, problems)
    known: dict[int, _Piece] = {}
    for row in rows:
        try:
            known[row.seq] = _plan(row, known, packer)
        except UNREADABLE as error:
            problems.append((row.call_id, f"unreadable ids: {error}"))
    items = _output_items(db, packer, rollout)
    loaded = Loaded([], problems, 0, b"")
    for row in rows:
        if row.kind == 0:
            loaded.n_rows += 1
            loaded.chain = codec.next_chain(loaded.chain, row.digest if isinstance(row.digest, bytes) else b"")
    for seq, piece in known.items():
        kept: dict[str, Any] = {"output_items": items.get(seq, ())}
        if requests:
            kept["request_text"] = _request(db, packer, seq)
        try:
            entry = _entry(piece, packer, rollout_id, kept)
        except UNREADABLE as error:
            problems.append((piece.row.call_id, str(error)))
        else:
            loaded.entries.extend([entry] if piece.row.kind == 0 else [])
    return loaded


def _rows(db: Connection, rollout: int, problems: list[tuple[str, str]]) -> list[codec.Row]:
    try:
        found = db.execute(f"{_SELECT} WHERE rollout = ? ORDER BY seq", (rollout,))
        return [codec.Row(*values) for values in found]
    except DAMAGED:
        return _rows_one_by_one(db, rollout, problems)


def _rows_one_by_one(db: Connection, rollout: int, problems: list[tuple[str, str]]) -> list[codec.Row]:
    """Around damaged pages: the index names the rows, and each is read by itself."""
    rows = []
    try:
        named = db.execute("SELECT seq, call_id FROM entries INDEXED BY entries_by_call WHERE rollout = ?", (rollout,))
        for seq, call_id in sorted(named):
            try:
                rows.append(codec.Row(*db.execute(f"{_SELECT} WHERE seq = ?", (seq,)).fetchone()))
            except (*DAMAGED, TypeError) as error:
                problems.append((call_id, f"unreadable row: {error}"))
    except DAMAGED as error:
        problems.append(("", f"the file is damaged: {error}"))
    return rows


def _plan(row: codec.Row, known: dict[int, _Piece], packer: codec.Packer) -> _Piece:
    """Decode the ids of `row` and choose the buffer of its prompt."""
    ids = codec.ids_of(packer.unpack(row.ids, row.packed & codec.IDS))
    tail_length = row.n_prompt - row.base_len
    if tail_length < 0 or len(ids) != tail_length + row.n_generation:
        raise ValueError(f"{len(ids)} ids where {tail_length} + {row.n_generation} belong")
    tail, generation = ids[:tail_length], ids[tail_length:]
    if row.base is None:
        return _Piece(row, tail, generation, None, _Buffer(used=row.n_prompt), row.n_prompt)
    base = known.get(row.base)
    if base is None or row.base_len > base.row.n_prompt + base.row.n_generation:
        raise ValueError("the entry that its prompt starts with is gone")
    return _Piece(row, tail, generation, base, _buffer_for(row, base), row.n_prompt)


def _buffer_for(row: codec.Row, base: _Piece) -> _Buffer:
    """The base's buffer where the prompt lies in it, or can be appended to it; else a new one."""
    buffer, shared = base.buffer, row.base_len
    if shared <= base.reach and (shared == row.n_prompt or shared == buffer.used):
        buffer.used = max(buffer.used, row.n_prompt)
    elif shared > base.reach and base.reach == buffer.used:
        base.reach = shared
        buffer.used = row.n_prompt
    else:
        return _Buffer(used=row.n_prompt)
    return buffer


def _fill(piece: _Piece) -> None:
    """Write the piece's prompt into its buffer. What lies there already is written again with the same ids."""
    buffer, base, shared = piece.buffer, piece.base, piece.row.base_len
    if len(buffer.ids) < buffer.used:
        buffer.ids = np.empty(buffer.used, np.int32)
    if base is not None:
        whole = min(shared, base.row.n_prompt)
        if buffer is not base.buffer:
            buffer.ids[:whole] = base.buffer.ids[:whole]
            known = bisect_right(base.buffer.hashed, whole)
            buffer.hashed, buffer.states = base.buffer.hashed[:known], base.buffer.states[:known]
        buffer.ids[whole:shared] = base.generation[: shared - whole]
    buffer.ids[shared : piece.row.n_prompt] = piece.tail


def _entry(piece: _Piece, packer: codec.Packer, rollout_id: str, kept: dict[str, Any]) -> TokenEntry:
    row = piece.row
    _fill(piece)
    if piece.buffer.hash(row.n_prompt).digest() != row.prompt_digest:
        raise ValueError("its prompt does not match its digest")
    log_probs = packer.unpack(row.log_probs, row.packed & codec.LOG_PROBS)
    experts = packer.unpack(row.experts or b"", row.packed & codec.EXPERTS)
    arrays = (codec.id_bytes(piece.generation), log_probs, experts)
    if codec.entry_digest(rollout_id, row.call_id, row.header, row.prompt_digest, arrays) != row.digest:
        raise ValueError("it does not match its digest")
    prompt = piece.buffer.ids[: row.n_prompt]
    prompt.flags.writeable = False
    return codec.restore(
        rollout_id,
        row,
        msgspec.json.decode(row.header),
        (prompt, piece.generation, np.frombuffer(log_probs, dtype="<f4")),
        experts,
        **kept,
    )


def _output_items(db: Connection, packer: codec.Packer, rollout: int) -> dict[int, tuple[Any, ...]]:
    """No row is computed from texts, so damaged ones are no damage to the rollout; `verify` names them."""
    try:
        return texts.output_items(db, packer, rollout)
    except UNREADABLE:
        return {}


def _request(db: Connection, packer: codec.Packer, seq: int) -> bytes | None:
    try:
        return texts.request(db, packer, seq)
    except UNREADABLE:
        return None
