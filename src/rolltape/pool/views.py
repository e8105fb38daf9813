"""SQL over a pool: DuckDB with views over one listing of its parts.

`rollouts` has each rollout once, from its newest part, without what a tombstone hides, and with what labels say;
`rows` joins that to each rollout's rows; `labels` has the ones that stand, `sets` what was drawn. The parts of rollouts
are listed before those of rows: whoever sees a rollout sees its rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset

from rolltape.errors import StoreError
from rolltape.pool.files import Files, Part
from rolltape.pool.schema import SCHEMAS, Table

_TRIES = 10


@dataclass(frozen=True, slots=True)
class Listing:
    """The parts that were there at one moment."""

    parts: Mapping[Table, Sequence[Part]]

    @classmethod
    def of(cls, files: Files) -> "Listing":
        """What is there now. A compaction that removes parts between two looks makes it look again.

        Raises `StoreError` where rows are missing: an answer without them would look whole.
        """
        for _ in range(_TRIES):
            parts: dict[Table, Sequence[Part]] = {table: files.parts(table) for table in SCHEMAS}
            rows = {part.name for part in parts["rows"]}
            missing = [part.name for part in parts["rollouts"] if part.name not in rows]
            if not missing:
                return cls(parts)
        raise StoreError(f"{files.uri} lacks the rows of part {missing[0]}", hint="something else deletes its files")

    @property
    def orphans(self) -> list[Part]:
        """Parts of rows that no rollout names: a writer died before it had finished, or is still at it."""
        named = {part.name for part in self.parts["rollouts"]}
        return [part for part in self.parts["rows"] if part.name not in named]


def blank() -> duckdb.DuckDBPyConnection:
    """A connection that sees nothing yet, and asks no network for extensions. Parts never change: footers are kept."""
    connection = duckdb.connect(config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"})
    connection.execute("set parquet_metadata_cache = true")
    return connection


def see(connection: duckdb.DuckDBPyConnection, files: Files, listing: Listing) -> None:
    """Make the views over `listing`. Files are read as they are asked for."""
    for table, parts in listing.parts.items():
        _raw(connection, files, table, parts)
    for view in VIEWS:
        connection.execute(view)


def _raw(connection: duckdb.DuckDBPyConnection, files: Files, table: Table, parts: Sequence[Part]) -> None:
    name, schema = f"raw_{table}", SCHEMAS[table]
    paths = [files.full(part.path) for part in parts]
    if paths and files.local:
        listed = ", ".join(quoted(path) for path in paths)
        read = f"read_parquet([{listed}], union_by_name=true, hive_partitioning=false)"
        connection.execute(f"create view {name} as select * from {read}")
    elif paths:
        source: Any = pa.dataset.dataset(paths, schema=schema, filesystem=files.fs, format="parquet")
        connection.register(name, source)
    else:
        connection.register(name, schema.empty_table())


def quoted(text: str) -> str:
    """`text` as an SQL string."""
    return "'" + text.replace("'", "''") + "'"


VIEWS = (
    """create view standing as
    select uid, max(part) as part from raw_rollouts anti join raw_tombstones using (uid) group by uid""",
    """create view labels as
    select * from raw_labels semi join standing using (uid)
    qualify row_number() over (partition by uid, kind, name order by said_at desc, id desc) = 1""",
    """create view filtered as
    select uid, list(name || ': ' || coalesce(reason, '') order by name) as filtered
    from labels where kind = 'filter' and value = 'fail' group by uid""",
    """create view rollouts as
    select r.* exclude (reward, reward_source, agreement),
        r.reward as recorded_reward,
        case when s.uid is null then r.reward else s.number end as reward,
        case when s.uid is null then r.reward_source else s.said_by end as reward_source,
        s.uid is not null as rescored,
        coalesce(a.number, r.agreement) as agreement,
        coalesce(w.number, 1.0) as pool_weight,
        coalesce(f.filtered, []::varchar[]) as filtered,
        len(coalesce(f.filtered, []::varchar[])) = 0 and not r.masked and not r.excluded as usable
    from raw_rollouts r
    join standing using (uid, part)
    left join filtered f on f.uid = r.uid
    left join labels s on s.uid = r.uid and s.kind = 'reward' and s.name = 'reward'
    left join labels w on w.uid = r.uid and w.kind = 'weight' and w.name = 'weight'
    left join labels a on a.uid = r.uid and a.kind = 'label' and a.name = 'agreement'""",
    """create view rows as
    select w.* exclude (part, row_reward), r.* exclude (uid, reward),
        case when r.rescored then r.reward else w.row_reward end as reward
    from raw_rows w join rollouts r on w.uid = r.uid and w.part = r.part""",
    "create view sets as select set_id, uid, min(position) as position from raw_sets group by set_id, uid",
)
