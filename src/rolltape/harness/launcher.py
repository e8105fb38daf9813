"""Start one harness for one attempt, and say how it ended.

Each attempt has a folder of its own, and in it a workspace, an empty home, a temporary folder and one for output. The
environment is made from nothing: what the operator's shell holds - keys, proxies, settings - never reaches a harness
or the commands that it runs, and a rollout can't depend on it. The harness's knowledge comes from its profile; this
file knows no harness.
"""

import json
import os
import re
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from rolltape.errors import ConfigError
from rolltape.harness.process import Command, Exit, run_process
from rolltape.harness.profile import CONFIG_ARGS, CONTEXT_ARGS, Profile, Report, fill
from rolltape.harness.sandbox import Open, Sandbox

REPORT_BYTES = 256 << 20


class Ending(StrEnum):
    """How a rollout's harness ended."""

    FINISHED = "finished"
    """By its own rules: it submitted, gave up, or reached a limit of its own."""
    TIMED_OUT = "timed_out"
    """It was ended at the rollout's time limit."""
    BUDGET = "budget"
    """The gateway would sample no more for it: calls, tokens or time of the rollout were spent."""
    CRASHED = "crashed"
    """It exited with an error or by a signal."""
    COULD_NOT_START = "could_not_start"
    """It, or the set-up of its task, never got going."""
    INTERRUPTED = "interrupted"
    """The runner went away while it was running; another attempt takes its place."""

    @property
    def has_reward(self) -> bool:
        """False when the environment failed rather than the policy: a crash is not a low reward."""
        return self in (Ending.FINISHED, Ending.TIMED_OUT, Ending.BUDGET)


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of one harness. `status` and `version` are the harness's own words, None if it said nothing."""

    ending: Ending
    seconds: float
    exit_code: int | None = None
    """Negative for a signal, None if it never started."""
    status: str | None = None
    version: str | None = None
    detail: str = ""
    """One line on what went wrong, "" when nothing did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt at one task: where it happens and what the harness is told.

    `base_urls` are by family (openai, anthropic, gemini). `budget_spent` is asked about once a second; None = there is
    no budget. `config` is a configuration file for the harness. `time_limit` is in seconds, `context_length` in tokens
    (None = not known).
    """

    rollout_id: str
    prompt: str
    model: str
    base_urls: Mapping[str, str]
    api_key: str
    directory: Path
    time_limit: float
    config: Path | None = None
    context_length: int | None = None
    budget_spent: Callable[[], Awaitable[bool]] | None = None
    sandbox: Sandbox = field(default_factory=Open)
    grace: float = 5.0
    """Seconds between SIGTERM and SIGKILL."""

    @property
    def workspace(self) -> Path:
        return self.directory / "workspace"

    @property
    def home(self) -> Path:
        return self.directory / "home"

    @property
    def out(self) -> Path:
        return self.directory / "out"

    @property
    def tmp(self) -> Path:
        return self.directory / "tmp"

    @property
    def mark(self) -> str:
        return mark_of(self.directory)


def mark_of(directory: Path) -> str:
    """The mark of the processes of the attempt in `directory`: no other attempt on this machine has it."""
    return str(directory.absolute())


def prepare(directory: Path) -> None:
    """Make the folders of an attempt, private to this user. What is there already stays."""
    for name in ("workspace", "home", "out", "tmp"):
        (directory / name).mkdir(mode=0o700, parents=True, exist_ok=True)


def remove_tree(directory: Path) -> None:
    """Remove a folder that an agent could write in. By the system's own program, which walks a tree of any depth; what
    cannot be removed stays."""
    subprocess.run(["rm", "-rf", "--", directory], capture_output=True, check=False)


def clean_env(home: Path, tmp: Path) -> dict[str, str]:
    """The environment that every process of a rollout starts from: nothing of the operator's but PATH and LANG."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "HOME": str(home),
        "TMPDIR": str(tmp),
    }


async def launch(profile: Profile, attempt: Attempt) -> Ended:
    """Run the harness of `profile` to its end. Cancelling ends its processes; a failure to start is an ending."""
    try:
        command = attempt.sandbox.enter(_prepared_command(profile, attempt), attempt.directory)
    except (ConfigError, OSError) as error:
        return Ended(Ending.COULD_NOT_START, 0.0, detail=str(error))
    done = await run_process(command, attempt.budget_spent)
    spent = done.stopped or (attempt.budget_spent is not None and await attempt.budget_spent())
    return _ended(done, spent, _read_report(profile, attempt), profile.report, command)


def _prepared_command(profile: Profile, attempt: Attempt) -> Command:
    values = _values(profile, attempt)
    prepare(attempt.directory)
    for file in profile.files:
        _write_inside(attempt.directory, Path(fill(file.path, values)), fill(file.text, values))
    templates = {**profile.env, **(profile.context.env if values["context_length"] else {})}
    env = {name: fill(text, values) for name, text in templates.items()}
    return Command(
        args=_arguments(profile, values),
        cwd=attempt.workspace,
        env={**clean_env(attempt.home, attempt.tmp), **env},
        mark=attempt.mark,
        stdout=attempt.out / "stdout",
        stderr=attempt.out / "stderr",
        time_limit=attempt.time_limit,
        grace=attempt.grace,
    )


def _values(profile: Profile, attempt: Attempt) -> dict[str, str]:
    families = {f"{family}_base_url": attempt.base_urls.get(family, "") for family in ("openai", "anthropic", "gemini")}
    return {
        "prompt": attempt.prompt,
        "model": attempt.model,
        "rollout_id": attempt.rollout_id,
        "api_key": attempt.api_key,
        "base_url": attempt.base_urls.get(profile.protocol.partition("_")[0], ""),
        "executable": profile.find_executable(os.environ.get("PATH", os.defpath)),
        "workspace": str(attempt.workspace),
        "home": str(attempt.home),
        "out": str(attempt.out),
        "tmp": str(attempt.tmp),
        "config": str(attempt.config or ""),
        "context_length": str(attempt.context_length or ""),
        **families,
    }


def _arguments(profile: Profile, values: Mapping[str, str]) -> list[str]:
    optional = {
        CONFIG_ARGS: profile.config.args if profile.config and values["config"] else (),
        CONTEXT_ARGS: profile.context.args if values["context_length"] else (),
    }
    templates = [template for part in profile.command for template in optional.get(part, (part,))]
    return [fill(template, values) for template in templates]


def _write_inside(directory: Path, path: Path, text: str) -> None:
    target = (directory / path).resolve()
    if not target.is_relative_to(directory.resolve()):
        raise ConfigError(f"the profile would write {str(path)!r}, outside of the attempt's folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")


def _read_report(profile: Profile, attempt: Attempt) -> Any:
    if profile.report is None:
        return None
    file = Path(fill(profile.report.file, _report_values(attempt)))
    try:
        # The agent can write here too: no pipe, and nothing that fills the memory.
        return _parse_report(file.read_bytes()) if file.is_file() and file.stat().st_size <= REPORT_BYTES else None
    except (OSError, ValueError):  # a harness that was killed leaves none, or half of one
        return None


def _parse_report(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(text.rstrip().rpartition(b"\n")[2])


def _report_values(attempt: Attempt) -> dict[str, str]:
    return {"out": str(attempt.out), "home": str(attempt.home), "workspace": str(attempt.workspace)}


def _look_up(report: Any, dotted: str) -> str | None:
    for name in dotted.split("."):
        if not isinstance(report, dict) or name not in report:
            return None
        report = report[name]
    return str(report) if isinstance(report, (str, int, float)) and report != "" else None


def _ended(done: Exit, spent: bool, report: Any, rules: Report | None, command: Command) -> Ended:
    said = (_look_up(report, path) for path in (rules.status if rules else ()))
    status = next((status for status in said if status is not None), None)
    version = _look_up(report, rules.version) if rules else None
    ending = _ending(done, spent, status, rules)
    failed = ending in (Ending.CRASHED, Ending.COULD_NOT_START)
    detail = (done.error or _last_line(command.stderr)) if failed else ""
    return Ended(ending, done.seconds, done.code, status, version, detail)


def _ending(done: Exit, spent: bool, status: str | None, rules: Report | None) -> Ending:
    if done.code is None:
        return Ending.COULD_NOT_START
    if spent:
        return Ending.BUDGET
    if done.timed_out:
        return Ending.TIMED_OUT
    for ending, pattern in (rules.endings if rules else {}).items():
        if status is not None and re.fullmatch(pattern, status):
            return Ending(ending)
    return Ending.FINISHED if done.code == 0 else Ending.CRASHED


def tail(path: Path, size: int = 4096) -> str:
    """The last `size` bytes of an output file as text; "" where its process removed it or put something else there."""
    try:
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - size))
            return file.read(size).decode("utf-8", "replace")
    except OSError:
        return ""


def _last_line(path: Path) -> str:
    lines = tail(path).split("\n")
    return next((line.strip()[:500] for line in reversed(lines) if line.strip()), "")
