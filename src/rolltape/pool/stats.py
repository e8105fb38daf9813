"""What a pool holds, in numbers: rollouts, rows, tokens, bytes, labels, and how much of it tells nothing."""

from typing import Any

import duckdb

from rolltape.pool.files import Files
from rolltape.pool.filtering import CORRUPTED
from rolltape.pool.views import Listing, quoted

_COUNTED = ("run", "task_id", "harness", "verdict", "ending")
_MOST = 100


def stats(files: Files, listing: Listing, connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    """All over the rollouts that stand. Fractions and means are None of none.

    `bytes` are of all files, `bytes_per_token` of the parts of rows over all tokens in them that stand.
    """
    total = _one(
        connection,
        "select count(*) as rollouts, coalesce(sum(rows), 0)::bigint as rows,"
        " coalesce(sum(tokens), 0)::bigint as tokens,"
        " coalesce(sum(loss_tokens), 0)::bigint as loss_tokens, count(*) filter (usable) as usable,"
        " count(*) filter (masked) as masked, count(*) filter (excluded) as excluded,"
        " count(*) filter (len(filtered) > 0) as filtered,"
        " avg(reward) filter (isfinite(reward)) as mean_reward from rollouts",
    )
    sizes = {table: sum(part.size for part in parts) for table, parts in listing.parts.items()}
    corrupted = _one(connection, _corrupted())["n"]
    gone = _one(connection, "select count(distinct uid) as n from raw_tombstones")["n"]
    return {
        "pool": files.uri,
        "pool_id": files.pool_id,
        **total,
        "corrupted_fraction": corrupted / total["rollouts"] if total["rollouts"] else None,
        "tombstones": gone,
        "parts": {table: len(parts) for table, parts in listing.parts.items()},
        "orphans": len(listing.orphans),
        "bytes": sum(sizes.values()),
        "bytes_per_token": sizes["rows"] / total["tokens"] if total["tokens"] else None,
        "by": {name: _counts(connection, f'"{name}"') for name in _COUNTED},
        "policy_versions": _counts(connection, "unnest(policy_versions)"),
        "filters": _failures(connection),
    }


def _corrupted() -> str:
    names = ", ".join(map(quoted, CORRUPTED))
    return f"select count(distinct uid) as n from labels where kind = 'filter' and value = 'fail' and name in ({names})"


def _one(connection: duckdb.DuckDBPyConnection, sql: str) -> dict[str, Any]:
    line: dict[str, Any] = connection.sql(sql).to_arrow_table().to_pylist()[0]
    return line


def _counts(connection: duckdb.DuckDBPyConnection, expression: str) -> dict[str, int]:
    sql = f"select coalesce(name, 'unknown'), count(*) from (select {expression} as name from rollouts) group by 1"
    return dict(connection.sql(f"{sql} order by 2 desc, 1 limit {_MOST}").fetchall())


def _failures(connection: duckdb.DuckDBPyConnection) -> dict[str, int]:
    sql = "select name, count(*) from labels where kind = 'filter' and value = 'fail' group by name order by name"
    return dict(connection.sql(sql).fetchall())
