"""`rolltape pool`: rollouts that outlive their run - add, list, ask, draw, filter, weigh, let go."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import msgspec
from cyclopts import App, Parameter
from rich.table import Table

from rolltape import registry
from rolltape.cli import terminal
from rolltape.cli.commands import COMMANDS, epilogue
from rolltape.cli.policy import PolicyFile, policy_of
from rolltape.errors import ConfigError
from rolltape.rebuild import KindPolicy, Rebuilt, rebuild
from rolltape.record import TokenCaptureSnapshot

if TYPE_CHECKING:
    from rolltape.pool import Pool, Provenance
    from rolltape.store import CaptureStore

DAY_SECONDS = 86_400.0
_BATCH = 64
"""Rollouts of one part: so many are held at a time."""
DEFAULT_POOL = "rolltape-pool"
Where: TypeAlias = Annotated[str | None, Parameter(help="SQL over the pool's view; only what it holds for.")]
At: TypeAlias = Annotated[
    str, Parameter(name="--pool", env_var="ROLLTAPE_POOL", help="The pool: a folder, or a URI that pyarrow opens.")
]

pool = App(name="pool", help_format="plaintext", help_epilogue=epilogue(COMMANDS["pool"].examples))


@pool.command
def add(
    *,
    pool: At = DEFAULT_POOL,
    dir: terminal.Dir = terminal.DEFAULT_DIR,
    rollout: Annotated[
        tuple[str, ...], Parameter(negative="", show_default=False, help="Only this rollout; may be given again.")
    ] = (),
    results: Annotated[Path | None, Parameter(help="The result file of `rolltape run`; only its rollouts.")] = None,
    run: Annotated[str | None, Parameter(help="What to call the run; else the name of the store's folder.")] = None,
    policy: PolicyFile = None,
    json: terminal.Json = False,
) -> None:
    """Add the finished rollouts of a store. Makes the pool where there is none; what is in it stays."""
    from rolltape.pool import Pool

    told = _results(results) if results is not None else {}
    rules, name = policy_of(policy), run or dir.resolve().name
    terminal.must_be_store(dir)
    target = Pool(pool, create=True)
    before = set(target.query("select uid from rollouts")["uid"].to_pylist())

    async def fill(store: "CaptureStore") -> set[str]:
        uids: set[str] = set()
        ids = await _wanted(store, rollout, told)
        for start in range(0, len(ids), _BATCH):
            read = [await store.read(rollout_id) for rollout_id in ids[start : start + _BATCH]]
            added = target.add_all(_rebuilt([one for one in read if one is not None], rules, name, told))
            uids |= {one.uid for one in added}
        return uids

    uids = terminal.with_store(dir, fill)
    new = len(uids - before)
    if json:
        terminal.print_json({"pool": pool, "run": name, "added": new, "known": len(uids) - new, "uids": sorted(uids)})
    else:
        _say(f"{pool}: {new} rollouts of run {name} added, {len(uids) - new} were there")


async def _wanted(store: "CaptureStore", named: Sequence[str], told: Mapping[str, Any]) -> list[str]:
    """The rollouts that were named, else those with a result, else those that are finished."""
    if named:
        return [(await terminal.find(store, text)).rollout_id for text in named]
    states = await store.rollouts()
    finished = {state.rollout_id for state in states if state.frozen or state.ending is not None}
    ids = [state.rollout_id for state in states]
    return [one for one in ids if (one in told if told else one in finished)]


def _rebuilt(
    snapshots: Sequence[TokenCaptureSnapshot], policy: KindPolicy, run: str, told: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[Rebuilt, "Provenance"]]:
    from rolltape.pool import provenance_of

    for snapshot in snapshots:
        one = rebuild(snapshot, policy=policy)
        yield one, provenance_of(snapshot, one, run=run, result=told.get(snapshot.rollout_id))


def _results(path: Path) -> dict[str, Mapping[str, Any]]:
    try:
        lines = [msgspec.json.decode(line, type=dict[str, Any]) for line in path.read_bytes().splitlines() if line]
        return {line["_ng_rollout_id"]: line for line in lines}
    except (OSError, msgspec.DecodeError, KeyError) as error:
        raise ConfigError(f"cannot read results from {str(path)!r}: {error}") from error


@pool.command
def ls(*, pool: At = DEFAULT_POOL, where: Where = None, json: terminal.Json = False) -> None:
    """List the rollouts of a pool, the newest last."""
    columns = "run, rollout_id, task_id, policy_versions, calls, loss_tokens, reward, verdict, ending, filtered, uid"
    condition = f"({where})" if where else "true"
    found = _open(pool).query(f"select {columns} from rollouts where {condition} order by added_at, rollout_id")
    if json:
        terminal.print_json(found.to_pylist())
        return
    table = _table(
        "run", "rollout", "task", "policy", right=("calls", "trained", "reward"), last=("verdict", "filtered")
    )
    for one in found.to_pylist():
        words = [one[name] or "-" for name in ("run", "rollout_id", "task_id")]
        numbers = [f"{one['calls']}", f"{one['loss_tokens']:,}", terminal.reward(one["reward"])]
        reasons = "; ".join(one["filtered"]) or "-"
        table.add_row(
            *words, ", ".join(one["policy_versions"]) or "-", *numbers, one["verdict"], terminal.seen(reasons)
        )
    terminal.out().print(table)


@pool.command
def query(sql: str, /, *, pool: At = DEFAULT_POOL, json: terminal.Json = False) -> None:
    """Ask in SQL (DuckDB) over the views rollouts, rows, labels and sets."""
    found = _open(pool).query(sql)
    if json:
        terminal.print_json(found.to_pylist())
        return
    table = _table(*found.column_names)
    for one in found.to_pylist():
        table.add_row(*(terminal.seen("-" if value is None else str(value)) for value in one.values()))
    terminal.out().print(table)


@pool.command
def sample(
    *,
    n: Annotated[int, Parameter(help="How many rollouts; with --by, how many values of that column.")],
    pool: At = DEFAULT_POOL,
    where: Where = None,
    seed: Annotated[int, Parameter(help="The same seed over the same rollouts draws the same.")] = 0,
    by: Annotated[str | None, Parameter(help="A column, such as group_id: all of a value come along.")] = None,
    each: Annotated[int | None, Parameter(help="With --by: at most so many of each value.")] = None,
    within: Annotated[str | None, Parameter(help="Draw from an earlier set.")] = None,
    out: Annotated[
        Path | None, Parameter(help="Write the rows of what was drawn to this file, one JSON a line.")
    ] = None,
    json: terminal.Json = False,
) -> None:
    """Draw rollouts, and keep what was drawn and from what."""
    opened = _open(pool)
    drawn = opened.sample(n, where=where, seed=seed, by=by, each=each, within=within)
    rows = _write_rows(opened, drawn.set_id, out) if out is not None else None
    if json:
        terminal.print_json(
            {"set_id": drawn.set_id, "uids": drawn.uids, "rows": rows, "lineage": drawn.lineage.to_json()}
        )
        return
    wrote = f"; {rows} rows written to {out}" if out is not None else ""
    _say(f"{drawn.set_id}: {len(drawn.uids)} rollouts{wrote}")


def _write_rows(opened: "Pool", set_id: str, path: Path) -> int:
    lines = 0
    unfinished = path.with_name(f".{path.name}.unfinished")
    with unfinished.open("wb") as file:
        for one in opened.read(within=set_id):
            lines += 1
            told = {"uid": one.uid, "set_id": set_id, "pool_weight": one.pool_weight}
            file.write(msgspec.json.encode(one.row.to_json() | told) + b"\n")
    unfinished.replace(path)
    return lines


@pool.command
def filter(
    *names: Annotated[str, Parameter(help="Filters in their order; without, those that always hold.")],
    pool: At = DEFAULT_POOL,
    where: Where = None,
    current: Annotated[str | None, Parameter(help="For stale: the policy version that trains now.")] = None,
    lag: Annotated[int, Parameter(help="For stale: how many versions behind is still fresh.")] = 1,
    threshold: Annotated[float, Parameter(help="For agreement: the least correlation.")] = 0.99,
    call: Annotated[
        tuple[str, ...],
        Parameter(
            negative="", show_default=False, help="Your own, MODULE:FUNCTION: a candidate in, a reason or None out."
        ),
    ] = (),
    json: terminal.Json = False,
) -> None:
    """Label the rollouts that filters would not train on, with reasons. Nothing is deleted."""
    from rolltape.pool.filters import DEFAULT

    options: dict[str, dict[str, Any]] = {
        "stale": {"current": current, "lag": lag},
        "agreement": {"threshold": threshold},
    }
    wanted = names or (() if call else DEFAULT)
    if "stale" in wanted and current is None:
        raise ConfigError("the filter stale compares with the policy that trains", hint="give --current VERSION")
    opened = _open(pool)
    found = opened.filter([*(_filter(name, options.get(name, {})) for name in wanted), *map(_own, call)], where=where)
    if json:
        terminal.print_json(found.to_json())
        return
    failed = ", ".join(f"{count} {name}" for name, count in found.failures.items()) or "none fails"
    _say(f"{pool}: {found.passed} of {found.evaluated} rollouts pass; {failed}")


def _filter(name: str, options: Mapping[str, Any]) -> Any:
    return registry.load("filter", name)(**options)


def _own(path: str) -> Any:
    from rolltape.pool.filters import ByRollout

    module, _, name = path.partition(":")
    sys.path.insert(0, "")
    try:
        return ByRollout(path, getattr(import_module(module), name))
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"cannot load {path!r}: {error}", hint="MODULE:FUNCTION") from error
    finally:
        sys.path.remove("")


@pool.command
def weight(
    expression: Annotated[str, Parameter(help="A number, or SQL over the view rollouts.")],
    /,
    *,
    pool: At = DEFAULT_POOL,
    where: Where = None,
    json: terminal.Json = False,
) -> None:
    """Say what rollouts count. Rows come with it as pool_weight."""
    told = _open(pool).weight(expression, where=where)
    if json:
        terminal.print_json(told.to_json())
    else:
        _say(f"{told.id}: {told.count} rollouts weighed")


@pool.command
def retain(
    *,
    pool: At = DEFAULT_POOL,
    days: Annotated[float | None, Parameter(help="Let go what was added so many days ago or earlier.")] = None,
    bytes: Annotated[int | None, Parameter(help="Let go the oldest of what is over so many bytes of rows.")] = None,
    state: Annotated[
        Literal["masked", "excluded", "filtered", "unusable"] | None, Parameter(help="Let go what is in this state.")
    ] = None,
    where: Where = None,
    grace: Annotated[
        float, Parameter(help="Seconds for which readers may still need files that were replaced.")
    ] = 3600.0,
    dry_run: Annotated[bool, Parameter(negative="", show_default=False, help="Only say what would go.")] = False,
    json: terminal.Json = False,
) -> None:
    """Let go of rollouts by age, size or state, and compact the pool. Without any, only compact."""
    opened, gone = _open(pool), None
    if (days, bytes, state) != (None, None, None):
        age = None if days is None else days * DAY_SECONDS
        gone = opened.retain(age=age, size=bytes, state=state, where=where, dry_run=dry_run)
    compacted = None if dry_run else opened.compact(grace=grace)
    if json:
        lines = {"gone": gone.gone if gone else {}, "lineage": gone.lineage if gone else None, "dry_run": dry_run}
        terminal.print_json(lines | {"compacted": asdict(compacted) if compacted else None})
        return
    said = f"{'would let go' if dry_run else 'let go'} {len(gone.gone) if gone else 0} rollouts"
    if compacted:
        said += f"; {compacted.read} parts became {compacted.written}, {compacted.removed} files removed"
    _say(f"{pool}: {said}")


@pool.command
def stats(*, pool: At = DEFAULT_POOL, json: terminal.Json = False) -> None:
    """What the pool holds, in numbers."""
    found = _open(pool).stats()
    if json:
        terminal.print_json(found)
        return
    for name, value in found.items():
        shown = (
            ", ".join(f"{key} {n}" for key, n in value.items()) if isinstance(value, dict) and name != "by" else value
        )
        if name == "by":
            for column, counts in value.items():
                _say(terminal.seen(f"{'by ' + column:20} " + ", ".join(f"{key} {n}" for key, n in counts.items())))
        else:
            _say(terminal.seen(f"{name:20} {'-' if shown is None else shown}"))


def _open(place: str) -> "Pool":
    from rolltape.pool import Pool

    return Pool(place)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _table(*left: str, right: tuple[str, ...] = (), last: tuple[str, ...] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right")
    for name in last:
        table.add_column(name)
    return table
