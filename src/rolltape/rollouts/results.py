"""The result file, one JSON line a rollout, and what a run adds up to.

The file is what a restart resumes from, so a line counts once it is whole and synced. A last line that is torn (the
machine or the runner died while it was written) is cut off; damage anywhere else is an error, never skipped, and so is
a last line that no run can have begun: the file is somebody else's. One run at a time holds the file's lock.
"""

import fcntl
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from rolltape.delivery import METRICS_KEY, recorded_capture_metrics
from rolltape.errors import ConfigError

Row = dict[str, Any]
REQUIRED = ("_ng_rollout_id", "task_id", "rollout_index", "harness", "model", "reward", "ending")
"""What a restart needs of a row."""
_BEGINNING = b'{"_ng_rollout_id":'
"""Of every line that a run writes."""


class ResultFile:
    """The open, locked result file. Raises `ConfigError` when another run holds it or a line is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise ConfigError(f"cannot write results to {str(path)!r}: {error.strerror}") from error
        try:
            self._lock()
            self.rows = self._read()
            _sync_folder(path.parent)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, row: Row) -> None:
        """Write `row` and sync it: it is durable on return."""
        line = memoryview(msgspec.json.encode(row, enc_hook=_plain) + b"\n")
        before = os.fstat(self._file).st_size
        try:
            while line:
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, before)  # no half line, which the next row would be glued to
            hint = "make room; the same command goes on from here"
            raise ConfigError(f"cannot write results to {str(self.path)!r}: {error.strerror}", hint=hint) from error

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            hint = "wait for it, or give another --out"
            raise ConfigError(f"another run is writing to {str(self.path)!r}", hint=hint) from error

    def _read(self) -> list[Row]:
        data = self.path.read_bytes()
        lines = data.split(b"\n")
        torn = lines.pop()
        if not _may_be_torn(torn):
            raise ConfigError(f"{str(self.path)!r} is no result file: nothing was changed", hint="give another --out")
        whole = len(data) - len(torn)
        rows = []
        for number, line in enumerate(lines, 1):
            try:
                rows.append(slim(msgspec.json.decode(line, type=Row)))
            except msgspec.DecodeError as error:
                if number < len(lines) or not _may_be_torn(line):
                    hint = "mend or move the file; nothing was changed"
                    raise ConfigError(f"{self.path}:{number} is no result row: {error}", hint=hint) from error
                whole -= len(line) + 1
        if whole < len(data):
            os.ftruncate(self._file, whole)
            os.fsync(self._file)
        return rows


def _may_be_torn(line: bytes) -> bool:
    """Whether `line` can be what a death left of a row: its beginning, or blocks that were never filled."""
    begun = line.rstrip(b"\0")[: len(_BEGINNING)]
    return begun == _BEGINNING[: len(begun)]


def slim(row: Row) -> Row:
    """Without what grows with a rollout's calls: the arrays and digests of a long run would fill the memory."""
    return {name: value for name, value in row.items() if name not in ("response", "certificate")}


def _plain(value: Any) -> Any:
    """Arrays and their scalars as JSON."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a result row can't hold a {type(value).__name__}")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class TaskScore:
    """One task's rollouts that have a reward. `passed` counts rewards of 1 and above; means are None of none."""

    task_id: str
    rollouts: int
    rewarded: int
    passed: int
    mean_reward: float | None

    @property
    def pass_rate(self) -> float | None:
        return self.passed / self.rewarded if self.rewarded else None


@dataclass(frozen=True, slots=True)
class Summary:
    """What the rows of a result file add up to. `capture` holds the `token_capture/*` aggregates."""

    rows: tuple[Row, ...]
    tasks: tuple[TaskScore, ...]
    endings: Mapping[str, int]
    excluded: int
    masked: int
    calls: int
    generated_tokens_captured: int
    generated_tokens_delivered: int
    capture: Mapping[str, Any]

    @property
    def delivered_fraction(self) -> float | None:
        """Of all sampled tokens of the run, None if none was sampled."""
        sampled = self.generated_tokens_captured
        return self.generated_tokens_delivered / sampled if sampled else None

    def to_json(self) -> dict[str, Any]:
        """The form of `--json`: one object a rollout, without arrays, and the totals."""
        return {
            "rollouts": [{"rollout_id": row["_ng_rollout_id"], **_public(row)} for row in self.rows],
            "tasks": [{**msgspec.to_builtins(score), "pass_rate": score.pass_rate} for score in self.tasks],
            "endings": dict(self.endings),
            "excluded": self.excluded,
            "masked": self.masked,
            "calls": self.calls,
            "generated_tokens_captured": self.generated_tokens_captured,
            "generated_tokens_delivered": self.generated_tokens_delivered,
            "delivered_fraction": self.delivered_fraction,
            "metrics": dict(self.capture),
        }


def summarize(rows: Iterable[Row]) -> Summary:
    """Add up result rows, in the order of their tasks' first rows."""
    kept = tuple(slim(row) for row in rows)
    by_task: dict[str, list[Row]] = {}
    for row in kept:
        by_task.setdefault(row["task_id"], []).append(row)
    return Summary(
        rows=kept,
        tasks=tuple(_score(task_id, group) for task_id, group in by_task.items()),
        endings=dict(Counter(row["ending"] for row in kept)),
        excluded=sum(bool(row.get("exclude")) for row in kept),
        masked=sum(bool(row.get("mask_sample")) for row in kept),
        calls=_total(kept, "n_calls"),
        generated_tokens_captured=_total(kept, "generated_tokens_captured"),
        generated_tokens_delivered=_total(kept, "generated_tokens_delivered"),
        capture=recorded_capture_metrics(kept),
    )


def _score(task_id: str, group: Sequence[Row]) -> TaskScore:
    rewards = [row["reward"] for row in group if row["reward"] is not None]
    mean = sum(rewards) / len(rewards) if rewards else None
    return TaskScore(task_id, len(group), len(rewards), sum(reward >= 1.0 for reward in rewards), mean)


def _total(rows: Sequence[Row], name: str) -> int:
    return sum((row.get(METRICS_KEY) or {}).get(name) or 0 for row in rows)


def _public(row: Row) -> Row:
    return {name: value for name, value in row.items() if not name.startswith("_")}
