"""What makes a rollout, given a place at a gateway: a harness over a task, or an agent loop of somebody else's."""

import os
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import msgspec

from rolltape import registry
from rolltape.errors import ConfigError
from rolltape.harness import Attempt, Ending, Profile, find_profile
from rolltape.rollouts import CommandLimits, Task
from rolltape.rollouts.attempt import try_task
from rolltape.rollouts.tasks import check_task


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One rollout's place at the gateway.

    `base_urls` are by family: openai (with /v1), anthropic, gemini. `directory` is the rollout's own and is not made
    yet. `context_length` in tokens, None = not known. `budget_spent` says whether a call was refused for the budget;
    None = there is no budget.
    """

    rollout_id: str
    base_urls: Mapping[str, str]
    api_key: str = field(repr=False)
    model: str
    context_length: int | None
    directory: Path
    budget_spent: Callable[[], Awaitable[bool]] | None = None


class AgentLoop(Protocol):
    """An async callable, pickled by the driver and called in the actor: one dataset row in, one result out.

    The result is a record: `reward` (None = none), `response` (a Responses object; its media are kept, its output gives
    way to the recorded one), `ending` (else finished), `exclude`, and whatever the consumer wants. An exception is a
    crashed rollout, without a reward; the run goes on.

    It may have a method `check(examples)` that raises `ConfigError` for what it can't run: called in the actor at the
    start with none, and with all before the first rollout.
    """

    async def __call__(self, example: Mapping[str, Any], seat: Seat, /) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class HarnessLoop:
    """Runs a harness on the actor's node, as `rolltape run` does. An example is a task: `prompt`, and optionally
    `setup`, `files`, `check`; other columns are left alone.

    `harness` is a profile, its name or a path to one; `config` a configuration file for it. Times are in seconds.
    Without `keep_workspaces` those of finished rollouts are removed.
    """

    harness: str | Profile
    config: str | None = None
    time_limit: float = 1800.0
    command_limits: CommandLimits = field(default_factory=CommandLimits)
    keep_workspaces: bool = False

    @property
    def profile(self) -> Profile:
        """Raises `ConfigError` where there is none of that name, or its program is missing on this node."""
        profile = _named(self.harness) if isinstance(self.harness, str) else self.harness
        profile.find_executable(os.environ.get("PATH", os.defpath))
        return profile

    def check(self, examples: Sequence[Mapping[str, Any]]) -> None:
        """Raises `ConfigError` for a harness that is not there, or an example that is no task."""
        if self.config is not None:
            self.profile.find_config(self.config)
        else:
            self.profile  # noqa: B018 - asked for its errors
        for index, example in enumerate(examples):
            _task(example, f"example {index}")

    async def __call__(self, example: Mapping[str, Any], seat: Seat, /) -> dict[str, Any]:
        """The task's set-up, the harness, the check."""
        profile = self.profile
        attempt = Attempt(
            rollout_id=seat.rollout_id,
            prompt=example["prompt"],
            model=seat.model,
            base_urls=seat.base_urls,
            api_key=seat.api_key,
            directory=seat.directory,
            time_limit=self.time_limit,
            config=profile.find_config(self.config) if self.config else None,
            context_length=seat.context_length,
            budget_spent=seat.budget_spent,
        )
        tried = await try_task(_task(example, seat.rollout_id), profile, attempt, self.command_limits)
        if tried.ended.ending == Ending.FINISHED and not self.keep_workspaces:
            shutil.rmtree(seat.directory, ignore_errors=True)
        version = tried.ended.version or profile.version
        return {"harness": profile.name, "harness_version": version, **tried.facts()}


@cache
def _named(name: str) -> Profile:
    return find_profile(name, registry.profiles())


def _task(example: Mapping[str, Any], where: str) -> Task:
    known = {name: example[name] for name in ("prompt", "setup", "files", "check") if example.get(name) is not None}
    try:
        task = msgspec.convert({**known, "id": "example"}, Task)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{where} is no task: {error}", hint="a task is {prompt, [setup], [files], [check]}"
        ) from error
    check_task(task, where)
    return task
