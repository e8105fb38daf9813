"""Putting an entry: find what its prompt continues, store what is new, keep the digests. For the writer's thread."""

from dataclasses import dataclass, field
from operator import attrgetter

from rolltape.errors import ConflictError
from rolltape.record import TokenEntry
from rolltape.store.contract import LineageMatch
from rolltape.store.tables import codec, rollouts, texts
from rolltape.store.tables.codec import Packer
from rolltape.store.tables.connection import Connection, insertion
from rolltape.store.tables.lineage import Found, Lineage, Lineages
from rolltape.tokens import IntArray

_NAMES = codec.COLUMNS.split(", ")[1:]
_ENTRY = insertion("entries", f"seq, rollout, {', '.join(_NAMES)}")
_NUMBERED = f"{_ENTRY.sql} RETURNING seq"
_values = attrgetter(*_NAMES)


@dataclass(slots=True)
class Shelf:
    """What the writer keeps between entries. `texts` False: neither requests nor output items are stored."""

    texts: bool = True
    lineages: Lineages = field(default_factory=Lineages)
    packer: Packer = field(default_factory=Packer)


def put(db: Connection, shelf: Shelf, entry: TokenEntry) -> ConflictError | None:
    """Store `entry`; a repeat is a no-op. A conflict is marked and returned, for the mark has to be committed."""
    rollout = rollouts.ensure(db, entry.rollout_id)
    rollouts.refuse_retired(rollout)
    header = codec.encode_header(entry)
    lineage = caught_up(db, shelf, rollout)
    found = lineage.find(entry.prompt_token_ids)
    arrays = (
        codec.id_bytes(entry.generation_token_ids),
        codec.log_prob_bytes(entry.generation_log_probs),
        codec.expert_bytes(entry.routed_experts),
    )
    digest = codec.entry_digest(entry.rollout_id, entry.model_call_id, header, found.digest, arrays)
    begun, stored = rollouts.known_of(db, rollout, entry.model_call_id)
    if begun is not None:
        rollouts.settle(db, rollout, entry.model_call_id)
    step = rollout.next_step if begun is None else begun
    if stored == digest:
        return None
    if stored is not None:
        rollouts.mark(db, rollout, entry.model_call_id, "put again with another payload; the first is kept")
        return ConflictError(f"call {entry.model_call_id!r} of rollout {entry.rollout_id!r} has another payload")
    row = _row(shelf.packer, rollout, entry, step, found, header, arrays, digest)
    _insert(db, shelf, lineage, rollout, entry, row, found)
    return None


def record(db: Connection, shelf: Shelf, rollout_id: str, call_id: str, sequence: IntArray) -> ConflictError | None:
    """Remember a sequence whose entry lives elsewhere, so that later prompts find it."""
    rollout = rollouts.ensure(db, rollout_id)
    rollouts.refuse_retired(rollout)
    if _digest_of(db, rollout.id, 0, call_id) is not None:
        return None
    lineage = caught_up(db, shelf, rollout)
    found = lineage.find(sequence)
    digest = codec.entry_digest(rollout_id, call_id, b"{}", found.digest, (b"", b"", b""))
    if (stored := _digest_of(db, rollout.id, 1, call_id)) is not None:
        same = stored == digest
        return None if same else ConflictError(f"call {call_id!r} of rollout {rollout_id!r} has another sequence")
    known = TokenEntry(
        rollout_id=rollout_id,
        model_call_id=call_id,
        prompt_token_ids=sequence,
        generation_token_ids=sequence[:0],
        generation_log_probs=[],  # type: ignore[arg-type]
    )
    row = _row(shelf.packer, rollout, known, 0, found, b"{}", (b"", b"", b""), digest)
    row.kind = 1
    rollout.last_seq = row.seq = _store_row(db, rollout, row)
    rollouts.save(db, rollout)
    lineage.add(row.seq, call_id, sequence, sequence[:0], found)
    return None


def resolve(db: Connection, shelf: Shelf, rollout_id: str, prompt: IntArray) -> LineageMatch | None:
    """The stored call whose whole sequence is the longest exact prefix of `prompt`."""
    rollout = rollouts.find(db, rollout_id)
    if rollout is None or rollout.retired_at is not None:
        return None
    lineage = caught_up(db, shelf, rollout)
    found = lineage.find(prompt)
    if found.parent is None:
        return None
    return LineageMatch(lineage.call_id(found.parent), found.parent_length)


def caught_up(db: Connection, shelf: Shelf, rollout: rollouts.Rollout) -> Lineage:
    """The lineage of a rollout, with what it lacks (after a restart, or from another process) read from the file."""
    lineage = shelf.lineages.get(rollout.id)
    if lineage.cursor >= rollout.last_seq:
        return lineage
    rows = db.execute(
        "SELECT seq, call_id, base, base_len, n_prompt, packed, ids FROM entries"
        " WHERE rollout = ? AND seq > ? ORDER BY seq",
        (rollout.id, lineage.cursor),
    )
    for seq, call_id, base, base_len, n_prompt, packed, data in rows:
        try:
            ids = codec.ids_of(shelf.packer.unpack(data, packed & codec.IDS))
        except codec.UNPACK_ERRORS:
            continue  # damaged: nothing may be based on it
        prefix = lineage.prefix(base, base_len) if base is not None else ids[:0]
        if prefix is not None:
            tail = n_prompt - base_len
            prompt = codec.joined(prefix, ids[:tail])
            lineage.add(seq, call_id, prompt, ids[tail:], lineage.find(prompt))
    lineage.cursor = rollout.last_seq
    return lineage


def _digest_of(db: Connection, rollout: int, kind: int, call_id: str) -> bytes | None:
    row = db.execute(
        "SELECT digest FROM entries WHERE rollout = ? AND kind = ? AND call_id = ?", (rollout, kind, call_id)
    ).fetchone()
    return None if row is None else bytes(row[0])


def _row(
    packer: Packer,
    rollout: rollouts.Rollout,
    entry: TokenEntry,
    step: int,
    found: Found,
    header: bytes,
    arrays: tuple[bytes, bytes, bytes],
    digest: bytes,
) -> codec.Row:
    """The row without what only the file can say (seq, parent's name)."""
    ids, ids_flag = packer.pack(
        codec.id_bytes(entry.prompt_token_ids[found.depth :], entry.generation_token_ids), codec.IDS
    )
    log_probs, log_probs_flag = packer.pack(arrays[1], codec.LOG_PROBS)
    experts, experts_flag = packer.pack(arrays[2], codec.EXPERTS)
    return codec.Row(
        seq=0,
        kind=0,
        call_id=entry.model_call_id,
        base=found.base,
        base_len=found.depth,
        n_prompt=len(entry.prompt_token_ids),
        n_generation=len(entry.generation_token_ids),
        packed=ids_flag | log_probs_flag | experts_flag,
        ids=ids,
        log_probs=log_probs,
        experts=experts or None,
        header=header,
        delivery=str(entry.delivery),
        step_index=step if entry.step_index is None else entry.step_index,
        parent_call_id=entry.parent_call_id,
        common_prefix_len=found.depth if entry.common_prefix_len is None else entry.common_prefix_len,
        prompt_digest=found.digest,
        digest=digest,
    )


def _insert(
    db: Connection,
    shelf: Shelf,
    lineage: Lineage,
    rollout: rollouts.Rollout,
    entry: TokenEntry,
    row: codec.Row,
    found: Found,
) -> None:
    """The lineage is told last: a failure before leaves nothing in memory that the file does not hold."""
    if row.parent_call_id is None and found.parent is not None:
        row.parent_call_id = lineage.call_id(found.parent)
    row.seq = _store_row(db, rollout, row)
    if shelf.texts:
        base = found.base if found.parent is None else found.parent
        texts.insert(db, shelf.packer, lineage, row.seq, base, entry)
    rollout.version += 1
    rollout.n_entries += 1
    rollout.generated_tokens += row.n_generation
    rollout.last_seq = row.seq
    rollout.chain = codec.next_chain(rollout.chain, row.digest)
    rollout.next_step = max(rollout.next_step, (row.step_index or 0) + 1)
    rollouts.save(db, rollout)
    if entry.damaged:
        rollouts.mark(db, rollout, row.call_id, f"its ids are in doubt: {'; '.join(entry.faults)}")
    lineage.add(row.seq, row.call_id, entry.prompt_token_ids, entry.generation_token_ids, found)
    if shelf.texts and entry.request_text is not None:
        lineage.keep_text(row.seq, entry.request_text)


def _store_row(db: Connection, rollout: rollouts.Rollout, row: codec.Row) -> int:
    seq = db.draw(rollout.last_seq)
    if seq is None:
        return int(db.execute(_NUMBERED, (None, rollout.id, *_values(row))).fetchall()[0][0])
    db.change(_ENTRY, (seq, rollout.id, *_values(row)))
    return seq
