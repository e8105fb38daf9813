"""Tasks: a file of JSON objects, one a line, read strictly before anything is started."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated

import msgspec

from rolltape.errors import ConfigError
from rolltape.record import is_rollout_id

LONGEST_ID = 180
"""Leaves room for the rollout's and the attempt's number in a rollout id."""


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One task. Commands run in the workspace by `/bin/sh -c`, in a clean environment without keys.

    `files` maps relative paths to texts that are there from the start; `setup` runs after that and before the harness;
    `check` runs in the finished workspace: an exit status other than 0 gives reward 0.0, else a last output line that
    is one finite number gives that, else 1.0. None = no such command; without a check the reward is null.
    """

    id: str
    prompt: Annotated[str, msgspec.Meta(min_length=1)]
    setup: str | None = None
    files: Mapping[str, str] = {}
    check: str | None = None


def read_tasks(path: Path) -> tuple[Task, ...]:
    """The tasks in the file at `path`, in its order. Raises `ConfigError` with the line at fault."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"cannot read the tasks {str(path)!r}: {error.strerror}") from error
    tasks: dict[str, Task] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            task = _task(line, where := f"{path}:{number}")
            if task.id in tasks:
                raise ConfigError(f"{where}: there is a task {task.id!r} already", hint="give each task its own id")
            tasks[task.id] = task
    if not tasks:
        raise ConfigError(f"{path} holds no task", hint='one JSON object a line: {"id": ..., "prompt": ...}')
    return tuple(tasks.values())


def _task(line: bytes, where: str) -> Task:
    try:
        task = msgspec.json.decode(line, type=Task)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        hint = "a task is {id, prompt, [setup], [files], [check]}, one JSON object a line"
        raise ConfigError(f"{where}: {error}", hint=hint) from error
    if not is_rollout_id(task.id) or len(task.id) > LONGEST_ID:
        hint = f"letters, digits, '.', '_' and '-', a letter or digit first, at most {LONGEST_ID}"
        raise ConfigError(f"{where}: {task.id[:200]!r} can't be an id", hint=hint)
    check_task(task, where)
    return task


def check_task(task: Task, where: str) -> None:
    """Raises `ConfigError`, which says `where`, for what no workspace or command line can hold."""
    for name in task.files:
        if not _stays_inside(name):
            raise ConfigError(f"{where}: {name!r} is no path inside the workspace", hint="relative, without '..'")
    if "\0" in task.prompt:
        raise ConfigError(f"{where}: the prompt holds a NUL, which no command line can carry")


def _stays_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name
