"""`rolltape ls` and `rolltape tree`: what a store holds, and how the calls of one rollout hang together."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

from rich.table import Table

from rolltape.cli import terminal
from rolltape.store import RolloutState


def ls(*, dir: terminal.Dir = terminal.DEFAULT_DIR, json: terminal.Json = False) -> None:
    """List the rollouts of a store, the newest last."""
    states = terminal.with_store(dir, lambda store: store.rollouts())
    ordered = sorted(states, key=lambda state: (state.created_at, state.rollout_id))
    if json:
        terminal.print_json([asdict(state) for state in ordered])
    else:
        terminal.out().print(listing(ordered))
        terminal.note(f"{len(ordered)} rollouts in {dir}")


def listing(states: Sequence[RolloutState]) -> Table:
    """One line a rollout."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("rollout", no_wrap=True)
    for name in ("calls", "sampled", "reward"):
        table.add_column(name, justify="right")
    for name in ("ending", "state", "updated"):
        table.add_column(name)
    for state in states:
        table.add_row(
            state.rollout_id,
            str(state.n_entries),
            f"{state.generated_tokens:,}",
            reward(state.reward),
            state.ending or "-",
            state_words(state),
            datetime.fromtimestamp(state.updated_at).strftime("%Y-%m-%d %H:%M:%S"),
        )
    return table


def reward(value: float | None) -> str:
    """A reward as every table shows it: 1 in green, 0 dim, - for none."""
    if value is None:
        return "[dim]-[/]"
    return f"[green]{value:g}[/]" if value > 0 else f"[dim]{value:g}[/]"


def state_words(state: RolloutState) -> str:
    word = "retired" if state.retired_at else "frozen" if state.frozen else "open"
    if state.n_open_calls:
        word += f", {state.n_open_calls} in flight"
    return f"{word}, [red]incomplete[/]" if state.incomplete else word
