"""What a run shows while it goes: a bar on a terminal, a line a rollout anywhere else."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from rolltape.cli import terminal
from rolltape.rollouts import Event, Finished, Resumed, Started, Warned


class Watch:
    """Takes the events of a run and tells a person."""

    def __init__(self, bar: Progress | None) -> None:
        self._bar = bar
        self._task = bar.add_task("rollouts", total=None, passed=0, running=0) if bar else None
        self._wanted = self._done = self._passed = self._running = 0

    def __call__(self, event: Event) -> None:
        match event:
            case Resumed():
                self._resumed(event)
            case Started():
                self._running += 1
            case Finished():
                self._running -= 1
                self._finished(event.row)
            case Warned():
                self._say(f"warning: {event.rollout_id}: {event.message}")
        self._redraw()

    def _resumed(self, event: Resumed) -> None:
        self._wanted, self._done = event.wanted, event.finished
        if event.finished:
            self._say(f"{event.finished} of {event.wanted} rollouts are done already")
        if event.interrupted:
            self._say(f"{len(event.interrupted)} attempts of an earlier run were interrupted; others take their place")

    def _finished(self, row: dict[str, Any]) -> None:
        self._done += 1
        reward = row["reward"]
        self._passed += bool(reward is not None and reward >= 1)
        told = "none" if reward is None else f"{reward:g}"
        if self._bar is None or row["exclude"]:
            left_out = f" ({row['excluded_reason']})" if row["exclude"] else ""
            line = f"{row['_ng_rollout_id']}: reward {told}, {row['ending']}, {row['seconds']:.1f} s{left_out}"
            self._say(f"[{self._done}/{self._wanted}] {line}")

    def _say(self, text: str) -> None:
        if self._bar is None:
            terminal.note(text)
        else:
            self._bar.console.print(text, markup=False)

    def _redraw(self) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(
                self._task, total=self._wanted, completed=self._done, passed=self._passed, running=self._running
            )


@contextmanager
def watching() -> Iterator[Watch]:
    """A watch whose bar is taken away at the end."""
    console = terminal.err()
    if not console.is_terminal:
        yield Watch(None)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[passed]} passed, {task.fields[running]} running"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        yield Watch(bar)
