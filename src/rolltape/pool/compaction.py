"""Compaction: many small parts become few. What is copied stands beside its copy until no reader can need it.

A part counts in which the newest copy of a rollout lies, so the copy takes over in the moment it appears, and a death
at any point leaves either the old parts or both. Old parts go `grace` seconds after their copy was made, those of
rollouts before those of rows. Two compactions at once copy twice and lose nothing: each part holds all that it
replaces, and the next compaction makes one of them. Rows without rollouts are never touched: their writer may yet come.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute

from rolltape.pool.files import Files, Part, new_name
from rolltape.pool.schema import SCHEMAS, Table
from rolltape.pool.views import Listing

GRACE_SECONDS = 3600.0
TARGET_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Compacted:
    """What one pass did: parts read, parts written in their place, files of earlier passes removed."""

    read: int = 0
    written: int = 0
    removed: int = 0


def compact(files: Files, *, grace: float = GRACE_SECONDS, target: int = TARGET_BYTES) -> Compacted:
    """Copy small parts together, partition by partition, then remove what was replaced `grace` seconds ago."""
    listing = Listing.of(files)
    dead = pa.array(_dead(files, listing), pa.string())
    read = written = 0
    for batch in _batches(files, listing, target):
        _merge(files, batch, listing, dead)
        read, written = read + len(batch), written + 1
    for table in ("labels", "tombstones", "sets"):
        parts = _current(files, listing.parts[table])
        if len(parts) > 1:
            _merge_small(files, table, parts)
            read, written = read + len(parts), written + 1
    return Compacted(read, written, sweep(files, grace))


def _dead(files: Files, listing: Listing) -> list[str]:
    return [uid for part in listing.parts["tombstones"] for uid in files.table(part)["uid"].to_pylist()]


def _batches(files: Files, listing: Listing, target: int) -> list[list[Part]]:
    """Parts of one partition that together stay below `target` bytes."""
    sizes = {part.name: part.size for part in listing.parts["rows"]}
    folders: dict[str, list[Part]] = defaultdict(list)
    for part in _current(files, listing.parts["rollouts"]):
        folders[part.folder].append(part)
    batches: list[list[Part]] = []
    for parts in folders.values():
        batch: list[Part] = []
        for part in parts:
            if batch and sum(sizes.get(one.name, 0) for one in (*batch, part)) > target:
                batches.append(batch)
                batch = []
            batch.append(part)
        batches.append(batch)
    return [batch for batch in batches if len(batch) > 1]


def _current(files: Files, parts: Sequence[Part]) -> list[Part]:
    """The parts that no other says it replaced."""
    replaced = {name for part in parts for name in files.replaced_by(part)}
    return [part for part in parts if part.name not in replaced]


def _merge(files: Files, parts: Sequence[Part], listing: Listing, dead: pa.Array) -> None:
    name, folder = new_name(copy=True), parts[0].folder
    everything = pa.concat_tables([_known(files.table(part), "rollouts") for part in parts])
    newest: dict[str, str] = {}
    for uid, part in zip(everything["uid"].to_pylist(), everything["part"].to_pylist(), strict=True):
        newest[uid] = max(part, newest.get(uid, ""))
    kept = [
        part == newest[uid] and not gone
        for uid, part, gone in zip(
            everything["uid"].to_pylist(),
            everything["part"].to_pylist(),
            pa.compute.is_in(everything["uid"], value_set=dead).to_pylist(),
            strict=True,
        )
    ]
    rollouts = everything.filter(pa.array(kept, pa.bool_()))
    wanted = {part.name: pa.array([uid for uid, at in newest.items() if at == part.name]) for part in parts}
    replaces = [one for part in parts for one in (part.name, *files.replaced_by(part))]
    rows = {part.name: part for part in listing.parts["rows"]}
    with files.writing("rows", folder, name, replaces=replaces) as writer:
        for part in parts:
            for batch in files.batches(rows[part.name]):
                _copy(writer, batch, wanted[part.name], dead, name)
    files.put("rollouts", folder, name, _moved(rollouts, name), replaces=replaces)


def _copy(writer: pa.parquet.ParquetWriter, batch: pa.RecordBatch, wanted: pa.Array, dead: pa.Array, name: str) -> None:
    uids = batch.column("uid")
    inside = pa.compute.is_in(uids, value_set=wanted.cast(pa.string()))
    gone = pa.compute.is_in(uids, value_set=dead)
    content = pa.Table.from_batches([batch]).filter(pa.compute.and_not(inside, gone))
    if content.num_rows:
        writer.write_table(_moved(_known(content, "rows"), name))


def _moved(content: pa.Table, part: str) -> pa.Table:
    at = content.schema.get_field_index("part")
    return content.set_column(at, "part", pa.array([part] * content.num_rows, pa.string()))


def _known(content: pa.Table, table: Table) -> pa.Table:
    """The columns of this version, in its order; what an older part lacks is null."""
    columns = [
        content[field.name] if field.name in content.column_names else pa.nulls(content.num_rows, field.type)
        for field in SCHEMAS[table]
    ]
    return pa.table(columns, schema=SCHEMAS[table])


def _merge_small(files: Files, table: Table, parts: Sequence[Part]) -> None:
    content = pa.concat_tables([_known(files.table(part), table) for part in parts])
    replaces = [one for part in parts for one in (part.name, *files.replaced_by(part))]
    files.put(table, "", new_name(copy=True), content, replaces=replaces)


def sweep(files: Files, grace: float) -> int:
    """Remove the parts whose copies have been there for `grace` seconds; how many files that were."""
    before, removed = time.time() - grace, 0
    for table in ("rollouts", "labels", "tombstones", "sets"):
        parts = files.parts(table)
        old = {name for part in parts if part.written_at <= before for name in files.replaced_by(part)}
        gone = [part for part in parts if part.name in old]
        rows = [Part("rows", part.folder, part.name, 0) for part in gone if table == "rollouts"]
        for part in (*gone, *rows):
            files.remove(part)
        removed += len(gone) + len(rows)
    return removed
