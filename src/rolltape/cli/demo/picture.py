"""The demo's look at its result: rollouts as a table, one row as the stretches of its loss mask."""

from collections.abc import Mapping, Sequence

import numpy as np
from rich.table import Table
from rich.text import Text

from rolltape.cli import terminal
from rolltape.cli.show import prompt_tail, reply_parts
from rolltape.rebuild import Rebuilt
from rolltape.record import Row, TokenCaptureSnapshot
from rolltape.rollouts import Summary

SHOWN_IDS = 6


def outcomes(summary: Summary, rebuilt: Mapping[str, Rebuilt]) -> Table:
    """One line a rollout, groups apart."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("rollout", no_wrap=True)
    for name in ("calls", "sampled", "trained", "reward"):
        table.add_column(name, justify="right")
    table.add_column("ending")
    rows = sorted(summary.rows, key=lambda row: (row["task_id"], row["rollout_index"]))
    for row, after in zip(rows, [*rows[1:], None], strict=True):
        built = rebuilt.get(row["_ng_rollout_id"])
        names = ("n_calls", "generated_tokens_captured", "generated_tokens_delivered")
        numbers = [f"{built.metrics[name]:,}" if built else "-" for name in names]
        ending = row["ending"] + (" (left out)" if row["exclude"] else "")
        last = after is None or after["task_id"] != row["task_id"]
        table.add_row(row["_ng_rollout_id"], *numbers, terminal.reward(row["reward"]), ending, end_section=last)
    return table


def longest(snapshots: Sequence[TokenCaptureSnapshot], rebuilt: Mapping[str, Rebuilt]) -> TokenCaptureSnapshot | None:
    """The rollout most worth looking at: rewarded, with the most calls; None if none has a row."""
    with_rows = [snapshot for snapshot in snapshots if rebuilt[snapshot.rollout_id].rows]
    return max(with_rows, key=lambda one: (one.outcome.get("reward") or 0, len(one.entries)), default=None)


def row_picture(row: Row, snapshot: TokenCaptureSnapshot) -> Table:
    """The row from left to right: what was read (mask 0) and what was sampled (mask 1), call by call."""
    entries = {entry.model_call_id: entry for entry in snapshot.entries}
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("positions", "mask", "token ids", "mean log-prob", "text"):
        table.add_column(name)
    at = 0
    for span in row.spans:
        entry = entries[span.model_call_id]
        read = prompt_tail(entry)[-1:]
        if span.start > at:
            table.add_row(f"{at}..{span.start - 1}", "0", _ids(row, at, span.start), "", _end(read), style="dim")
        said = "\n".join(text for _, text in reply_parts(entry))
        mean = f"{float(np.nanmean(row.log_probs[span.start : span.end])):.2f}" if span.owned else ""
        where = f"{span.start}..{span.end - 1}"
        style = "green" if span.owned else "dim"
        table.add_row(
            where, str(int(span.owned)), _ids(row, span.start, span.end), mean, Text(said.strip()), style=style
        )
        at = span.end
    return table


def _ids(row: Row, start: int, end: int) -> str:
    ids = [str(token) for token in row.token_ids[start : min(end, start + SHOWN_IDS)]]
    return " ".join([*ids, *(["..."] if end - start > SHOWN_IDS else [])])


def _end(messages: Sequence[tuple[str, str]]) -> Text:
    """The last lines of what a call's prompt added."""
    return Text("\n".join(text.strip()[-200:] for _, text in messages))
