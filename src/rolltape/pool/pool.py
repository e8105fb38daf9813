"""One pool, opened: what is added, asked, drawn and said. Every answer is over one listing of its parts."""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import pyarrow as pa
import pyarrow.fs

from rolltape.errors import ConfigError, StoreError
from rolltape.pool import filtering
from rolltape.pool.compaction import GRACE_SECONDS, TARGET_BYTES, Compacted, compact
from rolltape.pool.convert import READ, PoolRow, rows_of, rows_table
from rolltape.pool.files import Files, Part, new_name, partition
from rolltape.pool.filters import COLUMNS, Candidate, Filter
from rolltape.pool.provenance import Provenance, rollout_line
from rolltape.pool.retention import Retained, outlived, tombstones
from rolltape.pool.schema import LABELS, ROLLOUTS, SETS, TOMBSTONES, Table
from rolltape.pool.sets import Derived, Lineage, condition, descend, drawing, lineage_of, lineages, members
from rolltape.pool.stats import stats
from rolltape.pool.views import Listing, blank, quoted, see
from rolltape.rebuild import Rebuilt
from rolltape.record import Row

T = TypeVar("T")
_TRIES = 10


@dataclass(frozen=True, slots=True)
class Added:
    """A rollout that is durable in the pool, under this uid, in this part."""

    uid: str
    part: str


@dataclass(frozen=True, slots=True)
class _Batch:
    """What becomes one part: by uid, the rollout's line and its rows."""

    name: str
    lines: dict[str, tuple[dict[str, Any], Sequence[Row]]]


class Pool:
    """A pool at a path or at any URI that pyarrow opens (`s3://...`). Raises `ConfigError` where there is none.

    `create` makes one. `filesystem`: a pyarrow filesystem, of which `place` is a path. Safe for any number of writers
    and readers, in any number of processes.
    """

    def __init__(self, place: str | Path, *, filesystem: pa.fs.FileSystem | None = None, create: bool = False) -> None:
        self.files = Files(place, filesystem=filesystem, create=create)

    # What comes in

    def add(self, rebuilt: Rebuilt, provenance: Provenance) -> Added:
        """Add one rollout. Durable on return; adding the same again changes nothing."""
        return self.add_all([(rebuilt, provenance)])[0]

    def add_all(self, rollouts: Iterable[tuple[Rebuilt, Provenance]]) -> list[Added]:
        """Add rollouts, one part for each run and policy version. Durable on return, in the order given."""
        now, added = time.time(), []
        folders: dict[tuple[str, str], _Batch] = {}
        for rebuilt, told in rollouts:
            batch = folders.setdefault(told.partition, _Batch(new_name(), {}))
            line = rollout_line(rebuilt, told, batch.name, now)
            batch.lines[line["uid"]] = (line, rebuilt.rows)
            added.append(Added(line["uid"], batch.name))
        for (run, policy), batch in folders.items():
            self._put(partition(run, policy), batch)
        return added

    def _put(self, folder: str, batch: "_Batch") -> None:
        rows = rows_table([(uid, rows) for uid, (_, rows) in batch.lines.items()], batch.name)
        rollouts = pa.Table.from_pylist([line for line, _ in batch.lines.values()], ROLLOUTS)
        written = self.files.put("rows", folder, batch.name, rows)
        self.files.put("rollouts", folder, batch.name, rollouts)
        if not self.files.exists(written):
            message = f"the rows of part {batch.name} are gone from the pool"
            raise StoreError(message, hint="something else deletes its files")

    # What goes out

    def query(self, sql: str) -> pa.Table:
        """The answer of DuckDB, with the views `rollouts`, `rows`, `labels` and `sets`. Raises `ConfigError`."""
        return self._asking(lambda connection: connection.sql(sql).to_arrow_table())

    def rows(
        self,
        where: str | None = None,
        *,
        columns: Sequence[str] | None = None,
        batch: int = 64,
        within: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The training rows for which the SQL `where` over the view `rows` holds, at most `batch` at a time.

        They are streamed: memory holds a few batches. `columns` None = all. `within`: only those of a derived set, in
        its order.
        """
        listed = ", ".join(f'"{name}"' for name in columns) if columns is not None else "* exclude (part)"
        source, order = "rows", ""
        if within is not None:
            drawn = f"select uid, position as drawn_at from sets where set_id = {quoted(within)}"
            source, order = f"rows join ({drawn}) using (uid)", " order by drawn_at, row_index"
        sql = f"select {listed} from {source} where {condition(where)}{order}"
        yield from self._streaming(sql, batch)

    def read(self, where: str | None = None, *, within: str | None = None, batch: int = 64) -> Iterator[PoolRow]:
        """The same rows as values: arrays to the bit as they were added, the reward as it was last scored."""
        for one in self.rows(where, columns=READ, within=within, batch=batch):
            yield from rows_of(one)

    def _streaming(self, sql: str, batch: int) -> Iterator[pa.RecordBatch]:
        connection, first, reader = self._asking(lambda one: _begin(one, sql, batch), close=False)
        try:
            if first is not None:
                yield first
                yield from reader
        except (duckdb.IOException, FileNotFoundError) as error:
            message = f"a part went while it was read: {error}"
            raise StoreError(message, hint="compact with a grace as long as readers take") from error
        finally:
            connection.close()

    def _asking(self, ask: Callable[[duckdb.DuckDBPyConnection], T], *, close: bool = True) -> T:
        """What `ask` says over a fresh listing; over another where a compaction removed a part under it."""
        for attempt in range(_TRIES):
            connection = blank()
            try:
                see(connection, self.files, Listing.of(self.files))
                answer = ask(connection)
            except (duckdb.IOException, FileNotFoundError) as error:
                connection.close()
                if attempt + 1 == _TRIES:
                    raise StoreError(f"the pool cannot be read: {error}") from error
            except duckdb.Error as error:
                connection.close()
                raise ConfigError(f"the pool does not understand this: {error}") from error
            else:
                if close:
                    connection.close()
                return answer
        raise AssertionError

    # What is derived

    def sample(
        self,
        n: int,
        *,
        where: str | None = None,
        seed: int = 0,
        by: str | None = None,
        each: int | None = None,
        within: str | None = None,
    ) -> Derived:
        """Draw `n` rollouts for which `where` (over the view `rollouts`) holds, as a set that the pool keeps.

        With `by`, n values of that column with all of their rollouts, or at most `each` of them. The same seed over
        the same rollouts draws the same. `within`: from an earlier set.
        """
        listing = Listing.of(self.files)
        sql = drawing(n, where=where, seed=seed, by=by, each=each, within=within)
        uids = self._uids(sql)
        told = descend(
            self.files,
            listing,
            "sample",
            parents=(within,) if within else (),
            where=where,
            seed=seed,
            parameters={"n": n, "by": by, "each": each},
            count=len(uids),
        )
        self._append("sets", pa.table(members(told.id, uids), schema=SETS))
        return Derived(told.id, tuple(uids), told)

    def set(self, set_id: str) -> Derived:
        """A set that was drawn before. Raises `StoreError` when there is none."""
        told = lineage_of(self.files, set_id)
        uids = self._uids(f"select uid from sets where set_id = {quoted(set_id)} order by position")
        return Derived(set_id, tuple(uids), told)

    def lineages(self) -> list[Lineage]:
        """What every set and every batch of labels came from, the oldest first."""
        return lineages(self.files)

    def _uids(self, sql: str) -> list[str]:
        found: list[str] = self.query(sql)["uid"].to_pylist()
        return found

    def filter(self, filters: Sequence[Filter], *, where: str | None = None) -> filtering.Filtered:
        """Run `filters` in their order over the rollouts for which `where` holds, and label what fails with why.

        A group is judged by its members within `where`. What failed before and passes now is labelled as passing.
        """
        listing = Listing.of(self.files)
        candidates = list(self.candidates(where))
        found = filtering.judge(candidates, filters)
        told = descend(
            self.files,
            listing,
            "filter",
            where=where,
            parameters={"filters": [repr(one) for one in filters]},
            count=len(candidates),
        )
        new = filtering.changes(candidates, filters, found)
        self._label(
            [(v.uid, "filter", v.name, "fail" if v.fails else "pass", None, v.reason) for v in new], "filter", told
        )
        passed = sum(not found.get(one.uid) for one in candidates)
        return filtering.Filtered(
            evaluated=len(candidates),
            passed=passed,
            failures=filtering.counts(found),
            reasons=found,
            corrupted_fraction=filtering.corrupted_fraction(candidates, found),
            lineage=told.id,
        )

    def candidates(self, where: str | None = None) -> Iterator[Candidate]:
        """The rollouts as filters see them."""
        names = ", ".join(COLUMNS)
        answer = self.query(f"select {names}, filtered from rollouts where {condition(where)} order by run, rollout_id")
        for line in answer.to_pylist():
            said = dict(one.split(": ", 1) for one in line.pop("filtered"))
            yield Candidate(**line, failed=tuple(said), said=said, rows=self._rows_of(line["uid"]))

    def _rows_of(self, uid: str) -> Callable[[], Iterator[Row]]:
        return lambda: (one.row for one in self.read(f"uid = {quoted(uid)}"))

    # What is said of rollouts later

    def weight(self, expression: str | float, *, where: str | None = None) -> Lineage:
        """Say what rollouts count: `expression` is a number, or SQL over the view `rollouts`.

        Rows come with it as `pool_weight`; their own `weight` stays as it was added. Raises `ConfigError` where it is
        no finite number of at least 0.
        """
        listing = Listing.of(self.files)
        answer = self.query(f"select uid, ({expression})::double as number from rollouts where {condition(where)}")
        lines = [(one["uid"], "weight", "weight", None, one["number"], None) for one in answer.to_pylist()]
        if any(number is None or not 0 <= number < float("inf") for *_, number, _ in lines):
            raise ConfigError(f"{expression!r} gives weights that are no finite numbers of at least 0")
        told = descend(
            self.files, listing, "weight", where=where, parameters={"weight": str(expression)}, count=len(lines)
        )
        self._label(lines, "weight", told)
        return told

    def rescore(self, rewards: Mapping[str, float | None], *, source: str) -> Lineage:
        """Give rollouts (by uid) the reward of another check. The one that was recorded stays as `recorded_reward`."""
        listing = Listing.of(self.files)
        told = descend(self.files, listing, "reward", parameters={"source": source}, count=len(rewards))
        lines = [(uid, "reward", "reward", None, number, None) for uid, number in rewards.items()]
        self._label(lines, source, told)
        return told

    def label(
        self,
        name: str,
        value: str | None = None,
        *,
        where: str | None = None,
        number: float | None = None,
        reason: str | None = None,
        by: str = "user",
    ) -> Lineage:
        """Say something of the rollouts for which `where` holds. The latest word of a name stands.

        The label `agreement` with a number is what the filter of that name and the view's column read.
        """
        listing = Listing.of(self.files)
        uids = self._uids(f"select uid from rollouts where {condition(where)}")
        told = descend(self.files, listing, "label", where=where, parameters={"name": name}, count=len(uids))
        self._label([(uid, "label", name, value, number, reason) for uid in uids], by, told)
        return told

    def _label(self, lines: Sequence[tuple[Any, ...]], by: str, told: Lineage) -> None:
        if not lines:
            return
        names = ("uid", "kind", "name", "value", "number", "reason")
        stamp = {"said_by": by, "said_at": time.time(), "lineage": told.id}
        content = [{"id": uuid.uuid4().hex, **dict(zip(names, line, strict=True)), **stamp} for line in lines]
        self._append("labels", pa.Table.from_pylist(content, LABELS))

    def _append(self, table: Table, content: pa.Table) -> Part:
        return self.files.put(table, "", new_name(), content)

    # What is let go

    def retain(
        self,
        *,
        age: float | None = None,
        size: int | None = None,
        state: str | None = None,
        where: str | None = None,
        dry_run: bool = False,
    ) -> Retained:
        """Hide, for good, what is older than `age` seconds, in a `state`, or the oldest of what is over `size` bytes.

        `state`: masked, excluded, filtered or unusable. `compact` then removes it from the disk.
        """
        now, listing = time.time(), Listing.of(self.files)
        sql = outlived(age, size, state, where, now)

        def ask(connection: duckdb.DuckDBPyConnection) -> list[tuple[str, str]]:
            _size_parts(connection, listing)
            return connection.sql(sql).fetchall()

        gone = dict(self._asking(ask))
        if dry_run or not gone:
            return Retained(gone, None, dry_run)
        wanted = {"age": age, "size": size, "state": state}
        told = descend(self.files, listing, "retain", where=where, parameters=wanted, count=len(gone))
        self._append("tombstones", pa.table(tombstones(gone, now), schema=TOMBSTONES))
        return Retained(gone, told.id, dry_run)

    def compact(self, *, grace: float = GRACE_SECONDS, target: int = TARGET_BYTES) -> Compacted:
        """Copy small parts together, at most `target` bytes each, and remove those replaced `grace` seconds ago."""
        return compact(self.files, grace=grace, target=target)

    def stats(self) -> dict[str, Any]:
        """What the pool holds, in numbers."""
        listing = Listing.of(self.files)
        return self._asking(lambda connection: stats(self.files, listing, connection))


def _begin(connection: duckdb.DuckDBPyConnection, sql: str, batch: int) -> tuple[Any, pa.RecordBatch | None, Any]:
    """Up to the first batch, within which a part that is gone is found out."""
    reader = connection.sql(sql).to_arrow_reader(batch)
    return connection, next(iter(reader), None), reader


def _size_parts(connection: duckdb.DuckDBPyConnection, listing: Listing) -> None:
    sizes = pa.table(
        {
            "part": [part.name for part in listing.parts["rows"]],
            "bytes": [float(part.size) for part in listing.parts["rows"]],
        }
    )
    connection.register("part_sizes", sizes)
    connection.execute(
        "create temp table part_bytes as select part, sum(bytes) as bytes, max(part_tokens) as part_tokens "
        "from part_sizes join (select part, sum(tokens) as part_tokens from raw_rollouts group by part) using (part) "
        "group by part"
    )
