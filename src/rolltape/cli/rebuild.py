"""`rolltape rebuild`: a rollout's training rows, from the store or from a file of token entries."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from cyclopts import Parameter
from rich.table import Table

from rolltape.cli import terminal
from rolltape.cli.entries import read as read_entries
from rolltape.errors import ConfigError
from rolltape.rebuild import DeliveryForm
from rolltape.rebuild import rebuild as rebuild_rows
from rolltape.record import Row, TokenCaptureSnapshot

if TYPE_CHECKING:
    from rolltape.store import CaptureStore

Form: TypeAlias = Annotated[
    DeliveryForm,
    Parameter(
        help="forest: one row per chain, each sampled token owned once. chain: the chain that ends in the last call, "
        "as a Responses payload. calls: one row per call."
    ),
]


def rebuild(
    *,
    dir: terminal.Dir = terminal.DEFAULT_DIR,
    rollout: Annotated[str | None, Parameter(help="The rollout, or a unique beginning of its id.")] = None,
    entries: Annotated[
        str | None, Parameter(allow_leading_hyphen=True, help="A JSONL file of token entries; - is stdin.")
    ] = None,
    delivery: Form = "forest",
    json: terminal.Json = False,
) -> None:
    """Turn a captured rollout into training rows."""
    if entries is not None:
        snapshot = from_file(entries, rollout)
    elif rollout is not None:
        snapshot = _from_store(dir, rollout)
    else:
        raise ConfigError("nothing to rebuild", hint="give --rollout ID (and --dir), or --entries FILE.jsonl")
    rebuilt = rebuild_rows(snapshot, delivery=delivery)
    if json:
        terminal.print_json(rebuilt.to_json())
        return
    terminal.out().print(rows_table(rebuilt.rows))
    numbers = rebuilt.metrics
    said = (
        f"{numbers['generated_tokens_delivered']:,} of {numbers['generated_tokens_captured']:,} sampled tokens trained"
    )
    terminal.note("; ".join([said, *(f"masked: {reason}" for reason in rebuilt.mask_reasons)]))


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


def _from_store(directory: Path, rollout: str) -> TokenCaptureSnapshot:
    async def read(store: "CaptureStore") -> TokenCaptureSnapshot:
        return await terminal.snapshot_of(store, (await terminal.find(store, rollout)).rollout_id, texts=True)

    return terminal.with_store(directory, read)


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
