"""`rolltape verify`: derive every digest of a store anew and compare."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rolltape.cli import terminal
from rolltape.store.sqlite import VerifyReport
from rolltape.store.sqlite import verify as verify_store


def verify(*, dir: terminal.Dir = terminal.DEFAULT_DIR, json: terminal.Json = False) -> None:
    """Derive every digest of a store anew and compare."""
    terminal.must_be_store(dir)
    with _bar() as progress:
        report = verify_store(dir, progress=progress)
    if json:
        terminal.print_json(asdict(report) | {"sound": report.sound})
    else:
        _print(report, dir)
    if not report.sound:
        sys.exit(1)


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    columns = (TextColumn("verifying"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = terminal.err()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("verify", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print(report: VerifyReport, directory: Path) -> None:
    for problem in report.problems:
        sys.stdout.write(f"damaged: {problem}\n")
    held = f"{report.rollouts} rollouts, {report.entries} calls, {report.texts} texts"
    swept = f" ({report.swept} rollouts swept by retention)" if report.swept else ""
    verdict = "every digest holds" if report.sound else f"{len(report.problems)} problems"
    sys.stdout.write(f"{directory}: {held}{swept}: {verdict}\n")
