"""`rolltape rebuild`: training rows from a store or from a file of token entries, and what a change of policy does."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
from cyclopts import Parameter
from rich.table import Table

from rolltape.cli import terminal
from rolltape.cli.entries import read as read_entries
from rolltape.cli.policy import PolicyFile, ProfileName, policy_of, reader_of
from rolltape.errors import ConfigError
from rolltape.rebuild import DeliveryForm, Rebuilt
from rolltape.rebuild import rebuild as rebuild_rows
from rolltape.rebuild.diff import Difference, compare
from rolltape.record import Row, TokenCaptureSnapshot

if TYPE_CHECKING:
    from rolltape.store import CaptureStore

Form: TypeAlias = Annotated[
    DeliveryForm,
    Parameter(
        help="forest: one row per chain, each sampled token owned once. chain: the chain that ends in the last call, "
        "as a Responses payload. calls: one row per call. packed: the whole tree in one sequence, shared prefixes once."
    ),
]


def rebuild(
    *,
    dir: terminal.Dir = terminal.DEFAULT_DIR,
    rollout: Annotated[
        str | None, Parameter(help="The rollout, or a unique beginning of its id; without, every rollout of the store.")
    ] = None,
    entries: Annotated[
        str | None, Parameter(allow_leading_hyphen=True, help="A JSONL file of token entries; - is stdin.")
    ] = None,
    delivery: Form = "forest",
    policy: PolicyFile = None,
    profile: ProfileName = None,
    diff: Annotated[
        Path | None,
        Parameter(help="Show what changed since this output of `rebuild --json` or `export`."),
    ] = None,
    diff_policy: Annotated[
        Path | None, Parameter(help="Show what changes when this policy gives way to --policy.")
    ] = None,
    json: terminal.Json = False,
) -> None:
    """Turn captured rollouts into training rows."""
    snapshots = _snapshots(dir, rollout, entries, texts=profile is not None)
    read = reader_of(profile)
    read_by = [read(snapshot) for snapshot in snapshots]
    built = [rebuild_rows(snapshot, delivery=delivery, policy=policy_of(policy)) for snapshot in read_by]
    if diff is not None or diff_policy is not None:
        before = _rows_in(diff) if diff is not None else _rows_under(diff_policy, read_by, delivery)
        _print_difference(compare(before, _rows_of(built)), json)
    elif json:
        for one in built:
            terminal.print_json(one.to_json())
    else:
        _print_rows(built)


def _print_rows(built: Sequence[Rebuilt]) -> None:
    terminal.out().print(rows_table([row for one in built for row in one.rows]))
    trained = sum(one.metrics["generated_tokens_delivered"] for one in built)
    captured = sum(one.metrics["generated_tokens_captured"] for one in built)
    said = [f"{trained:,} of {captured:,} sampled tokens trained"]
    if len(built) == 1:
        verdict = built[0].certificate.verdict
        said += [f"masked: {reason}" for reason in built[0].mask_reasons] or [f"certificate: {verdict}"]
        said += [reason for reason in built[0].certificate.reasons if verdict == "usable"]
    else:
        verdicts = Counter(one.metrics["certificate"] for one in built)
        said.append(f"{len(built)} rollouts: " + ", ".join(f"{n} {verdict}" for verdict, n in sorted(verdicts.items())))
    terminal.note("; ".join(said))


def _print_difference(found: Difference, json: bool) -> None:
    if json:
        terminal.print_json(found.to_json())
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("rollout", no_wrap=True)
    for name in ("gained", "lost", "moved"):
        table.add_column(name, justify="right")
    for rollout, counts in sorted(found.by_rollout.items()):
        table.add_row(rollout, *(f"{counts.get(name, 0):,}" for name in ("gained", "lost", "moved")))
    if found.by_rollout:
        terminal.out().print(table)
    tokens = f"tokens: {found.tokens_gained:,} gained, {found.tokens_lost:,} lost, {found.tokens_moved:,} owned by "
    rows = (
        f"{len(found.rows_gained)} gained, {len(found.rows_lost)} lost, {len(found.rows_changed)} changed, "
        f"{len(found.rows_reweighed)} with another weight or reward"
    )
    terminal.note(f"{tokens}another row, {found.tokens_kept:,} kept\nrows: {rows}")


def _rows_of(built: Sequence[Rebuilt]) -> Iterator[dict[str, Any]]:
    return (row.to_json() for one in built for row in one.rows)


def _rows_under(
    policy: Path | None, snapshots: Sequence[TokenCaptureSnapshot], delivery: DeliveryForm
) -> Iterator[dict[str, Any]]:
    other = policy_of(policy)
    return _rows_of([rebuild_rows(snapshot, delivery=delivery, policy=other) for snapshot in snapshots])


def _rows_in(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file: one rebuilt rollout, or one row, a line."""
    try:
        for line in path.read_bytes().splitlines():
            value = msgspec.json.decode(line, type=dict[str, Any])
            yield from value.get("rows", [value])
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path} holds no training rows: {error}", hint="save `rolltape rebuild --json`") from error


def _snapshots(
    directory: Path, rollout: str | None, entries: str | None, *, texts: bool
) -> Sequence[TokenCaptureSnapshot]:
    if entries is not None:
        return [from_file(entries, rollout)]

    async def read(store: "CaptureStore") -> Sequence[TokenCaptureSnapshot]:
        if rollout is not None:
            found = await terminal.find(store, rollout)
            return [await terminal.snapshot_of(store, found.rollout_id, texts=texts)]
        every = [await store.read(state.rollout_id, texts=texts) for state in await store.rollouts()]
        return [one for one in every if one is not None and one.entries]

    return terminal.with_store(directory, read)


def rows_table(rows: Sequence[Row]) -> Table:
    """One line a row."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("row", no_wrap=True)
    table.add_column("kind")
    for name in ("calls", "tokens", "trained", "reward"):
        table.add_column(name, justify="right")
    for row in rows:
        numbers = (f"{len(row.spans)}", f"{len(row.token_ids):,}", f"{row.loss_tokens:,}", terminal.reward(row.reward))
        table.add_row(row.row_id, row.kind, *numbers)
    return table


def from_file(path: str, rollout: str | None) -> TokenCaptureSnapshot:
    """The entries of one rollout in a JSONL file; None = the only one there is. Raises `ConfigError`, `EntryError`."""
    held = read_entries(path)
    if held.unknown_keys:
        terminal.note(f"note: ignored keys that no token entry has: {', '.join(sorted(held.unknown_keys))}")
    ids = held.rollout_ids()
    if rollout is None and len(ids) == 1:
        return held.snapshot(ids[0])
    if rollout is None:
        shown = ", ".join(ids[:8]) + (", ..." if len(ids) > 8 else "")
        message = f"{path} holds {len(ids)} rollouts: {shown}" if ids else f"{path} holds no token entry"
        raise ConfigError(message, hint="name one with --rollout" if ids else "one JSON object a line")
    if rollout not in ids:
        raise ConfigError(f"{path} holds no rollout {rollout!r}", hint=f"it holds {', '.join(ids[:8])}")
    return held.snapshot(rollout)
