"""One attempt at one task, from an empty folder to a rewarded result - all but its tokens.

files -> setup -> harness -> check. Set-up and check run in the same clean environment as the harness, without its keys
and without the gateway's address. The check starts only when nothing of the harness is left running.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rolltape.harness.launcher import Attempt, Ended, Ending, clean_env, launch, prepare, remove_tree, tail
from rolltape.harness.process import Command, Exit, run_process
from rolltape.harness.profile import Profile
from rolltape.rollouts.tasks import Task

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class Check:
    """What the check said. `exit_code` is None when it could not be started: then there is no reward."""

    reward: float | None
    exit_code: int | None
    timed_out: bool
    seconds: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Tried:
    """The end of an attempt. `check` None = the task has none, or the ending leaves no reward to check for."""

    ended: Ended
    check: Check | None

    @property
    def reward(self) -> float | None:
        return self.check.reward if self.check else None

    def facts(self) -> dict[str, Any]:
        """What a result says of it. `exclude`: it failed by no doing of the policy's, as `excluded_reason` says."""
        ended, check = self.ended, self.check
        unchecked = check.detail if check else ""
        excluded = unchecked if ended.ending.has_reward else f"{ended.ending}: {ended.detail or ended.exit_code}"
        return {
            "reward": self.reward,
            "ending": str(ended.ending),
            "exit_code": ended.exit_code,
            "harness_status": ended.status,
            "detail": ended.detail,
            "check_exit_code": check.exit_code if check else None,
            "check_timed_out": check.timed_out if check else False,
            "exclude": bool(excluded),
            "excluded_reason": excluded or None,
            "seconds": round(ended.seconds, 3),
            "check_seconds": round(check.seconds, 3) if check else None,
        }


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """Seconds that a task's own commands may take."""

    setup: float = 600.0
    check: float = 300.0


async def try_task(task: Task, profile: Profile, attempt: Attempt, limits: CommandLimits) -> Tried:
    """Make the workspace, run the harness in it, check what it left."""
    failed = await _set_up(task, attempt, limits.setup)
    if failed is not None:
        return Tried(failed, None)
    try:
        attempt.sandbox.take(attempt.directory)
        ended = await launch(profile, attempt)
        if task.check is None or not ended.ending.has_reward:
            return Tried(ended, None)
        return Tried(ended, await _check(task.check, attempt, limits.check))
    except OSError as error:
        return Tried(Ended(Ending.COULD_NOT_START, 0.0, detail=f"the sandbox failed: {error}"), None)
    finally:
        attempt.sandbox.give_back(attempt.directory)


def reward_of(exit_code: int, output: str) -> float:
    """0.0 unless the status is 0; then the last output line if it is one finite number, else 1.0."""
    if exit_code != 0:
        return 0.0
    last = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "")
    number = float(last) if _NUMBER.fullmatch(last) else math.nan
    return number if math.isfinite(number) else 1.0


async def _set_up(task: Task, attempt: Attempt, time_limit: float) -> Ended | None:
    """None when all is there; else the ending that says what is not."""
    try:
        prepare(attempt.directory)
        _write_files(task, attempt.workspace)
    except OSError as error:
        return Ended(Ending.COULD_NOT_START, 0.0, detail=f"the workspace could not be made: {error}")
    if task.setup is None:
        return None
    done = await run_process(_command(task.setup, attempt, "setup", time_limit))
    if done.code == 0 and not done.timed_out:
        return None
    why = "took too long" if done.timed_out else done.error or f"exited with {done.code}"
    said = tail(attempt.out / "setup.stderr").strip().rpartition("\n")[2]
    return Ended(Ending.COULD_NOT_START, done.seconds, done.code, detail=f"the set-up {why}: {said}"[:500])


def _write_files(task: Task, workspace: Path) -> None:
    for name, text in task.files.items():
        target = workspace / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


async def _check(command: str, attempt: Attempt, time_limit: float) -> Check:
    try:
        _restore(attempt)
        prepared = attempt.sandbox.enter(_command(command, attempt, "check", time_limit), attempt.directory)
    except OSError as error:
        return Check(None, None, False, 0.0, f"the check could not start: {error}")
    done = await run_process(prepared)
    if done.code is None:
        return Check(None, None, False, done.seconds, f"the check could not start: {done.error}")
    return Check(_reward(done, attempt.out / "check.stdout"), done.code, done.timed_out, done.seconds)


def _restore(attempt: Attempt) -> None:
    """Every folder that the check needs is there. An agent that removes its workspace has an empty one, and its reward:
    it must not be able to turn a failed task into one that could not be checked."""
    for folder in (attempt.workspace, attempt.tmp, attempt.out):
        if folder.is_symlink() or not folder.is_dir():
            folder.unlink(missing_ok=True)
            folder.mkdir(mode=0o700, parents=True)
        folder.chmod(0o700)
    for name in ("check.stdout", "check.stderr"):
        _remove(attempt.out / name)


def _reward(done: Exit, output: Path) -> float:
    # A check that hangs was made to hang by what it checks: that is no pass, and no failure of the environment.
    return 0.0 if done.timed_out or done.code is None else reward_of(done.code, tail(output))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)


def _command(command: str, attempt: Attempt, name: str, time_limit: float) -> Command:
    # A home of its own: what the harness left in the other one must not steer the check.
    home = attempt.directory / f"{name}-home"
    _remove(home)
    home.mkdir(mode=0o700)
    return Command(
        args=["/bin/sh", "-c", command],
        cwd=attempt.workspace,
        env=clean_env(home, attempt.tmp),
        mark=attempt.mark,
        stdout=attempt.out / f"{name}.stdout",
        stderr=attempt.out / f"{name}.stderr",
        time_limit=time_limit,
        grace=attempt.grace,
    )
