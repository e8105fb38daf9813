"""Tasks x group -> finished, rewarded, delivered rollouts.

Every rollout goes through the same steps, each durable before the next relies on it:

    ledger (it exists) -> create -> set-up, harness, check -> outcome -> rebuild -> result row, synced -> retire

A runner that dies between two steps has lost nothing: rows in the result file are not repeated, an attempt without a
row is sealed as interrupted (its processes ended, its evidence frozen) and another attempt takes its place under an id
of its own, and a row whose evidence was not retired yet is retired at the next start.
"""

import asyncio
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from rolltape.delivery import METRICS_KEY, Built, finalize_rollout_token_capture, retire_rollout_token_capture
from rolltape.errors import ConfigError, ConflictError, RequestError, StoreError
from rolltape.harness.launcher import Attempt, Ending, mark_of, remove_tree
from rolltape.harness.process import end_marked
from rolltape.harness.profile import Profile
from rolltape.harness.sandbox import Open, Sandbox
from rolltape.rebuild import KindPolicy, Verdict, meets
from rolltape.rollouts.attempt import CommandLimits, Tried, try_task
from rolltape.rollouts.results import REQUIRED, ResultFile, Row, Summary, slim, summarize
from rolltape.rollouts.tasks import Task
from rolltape.store import TokenSource

LEDGER = "attempt.json"
NOT_CAPTURED = "not captured: capture is off at the gateway, or this agent did not opt in"
NO_CALLS = "no model call was captured: the harness reached another endpoint, or none"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a rollout's harness finds its model. `base_urls` are by family: openai (with /v1), anthropic, gemini.

    `captured` False = the gateway records nothing of it; `rebuild` False = whoever owns the tokens freezes, rebuilds
    and retires them elsewhere, and a run stops after the write.
    """

    base_urls: Mapping[str, str]
    api_key: str
    captured: bool = True
    rebuild: bool = True


class RolloutDesk(Protocol):
    """What a run asks of a gateway: in process, or over its control API."""

    async def create(self, rollout_id: str, *, labels: Mapping[str, Any], budget: Mapping[str, Any]) -> Address:
        """Announce a rollout. Raises `ConflictError` if the id is taken."""
        ...

    async def budget_spent(self, rollout_id: str) -> bool:
        """True once a call of this rollout was *refused* for its budget: what it has had so far may be its last."""
        ...

    async def outcome(
        self, rollout_id: str, *, reward: float | None, ending: str, labels: Mapping[str, Any]
    ) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run. Times are in seconds; `budget` is the gateway's (calls, tokens, seconds), empty = unbounded.

    Workspaces live in `directory / "workspaces" / ROLLOUT_ID`; without `keep_workspaces` those of finished, delivered
    rollouts are removed. `config` is a configuration file for the harness, `context_length` the model's, in tokens
    (None = not known). A rollout whose certificate says less than `require` is left out, and its evidence stays.
    `policy` says what becomes of each kind of call; None = the default. `sandbox` is what harnesses and checks run in.
    """

    tasks: Sequence[Task]
    profile: Profile
    model: str
    out: Path
    directory: Path
    group_size: int = 1
    concurrency: int = 4
    config: Path | None = None
    context_length: int | None = None
    time_limit: float = 1800.0
    command_limits: CommandLimits = field(default_factory=CommandLimits)
    budget: Mapping[str, Any] = field(default_factory=dict)
    keep_workspaces: bool = True
    labels: Mapping[str, Any] = field(default_factory=dict)
    require: Verdict | None = None
    policy: KindPolicy | None = None
    sandbox: Sandbox = field(default_factory=Open)


@dataclass(frozen=True, slots=True)
class Resumed:
    """Said once, before anything starts: how many rollouts are wanted, and how many an earlier run has finished."""

    wanted: int
    finished: int
    interrupted: tuple[str, ...]
    """Attempts of an earlier run that have no row; they are sealed."""


@dataclass(frozen=True, slots=True)
class Started:
    rollout_id: str
    task_id: str


@dataclass(frozen=True, slots=True)
class Finished:
    """A rollout's row is durable. `row` lacks nothing but the response."""

    row: Row


@dataclass(frozen=True, slots=True)
class Warned:
    """Something that a person should see; the run goes on."""

    rollout_id: str
    message: str


Event: TypeAlias = Resumed | Started | Finished | Warned


@dataclass(frozen=True, slots=True)
class _Slot:
    """One rollout that is wanted: the k-th of a task."""

    task: Task
    index: int

    def rollout_id(self, attempt: int) -> str:
        return f"{self.task.id}-{self.index}" + (f"-a{attempt}" if attempt else "")


async def run_rollouts(
    plan: Plan, desk: RolloutDesk, source: TokenSource, on_event: Callable[[Event], None] = lambda _: None
) -> Summary:
    """Run what `plan` wants and its result file lacks; the summary covers the whole file.

    Raises `ConfigError` before anything starts. Cancelled, it ends its harnesses and leaves everything resumable.
    """
    _check(plan)
    with ResultFile(plan.out) as results:
        run = _Run(plan, desk, source, results, on_event)
        await run.resume()
        await run.all()
        return summarize(run.rows)


def _check(plan: Plan) -> None:
    plan.profile.find_executable(os.environ.get("PATH", os.defpath))
    if plan.config is not None and plan.profile.config is None:
        raise ConfigError(f"harness {plan.profile.name!r} takes no configuration file")
    for name in ("group_size", "concurrency"):
        if getattr(plan, name) < 1:
            raise ConfigError(f"{name.replace('_', ' ')} must be at least 1, not {getattr(plan, name)}")


class _Run:
    """One run in progress."""

    def __init__(
        self,
        plan: Plan,
        desk: RolloutDesk,
        source: TokenSource,
        results: ResultFile,
        on_event: Callable[[Event], None],
    ) -> None:
        self._plan, self._desk, self._source, self._results = plan, desk, source, results
        self._tell = on_event
        self._workspaces = plan.directory.absolute() / "workspaces"
        self._next_attempt: dict[str, int] = {}
        self.rows: list[Row] = list(results.rows)

    async def resume(self) -> None:
        """Take stock of what an earlier run left: refuse another's file, retire what it delivered, seal the rest."""
        for row in self.rows:
            self._refuse_foreign(row)
            await self._retire_again(row)
        done = {(row["task_id"], row["rollout_index"]) for row in self.rows}
        self._wanted = [slot for slot in _slots(self._plan) if (slot.task.id, slot.index) not in done]
        interrupted = [left for slot in self._wanted for left in self._attempts_of(slot)]
        for rollout_id in interrupted:
            await self._seal(rollout_id)
        total = len(self._plan.tasks) * self._plan.group_size
        self._tell(Resumed(total, total - len(self._wanted), tuple(interrupted)))

    async def all(self) -> None:
        """Work through what is wanted, `concurrency` at a time."""
        waiting = iter(self._wanted)
        workers = min(self._plan.concurrency, len(self._wanted))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(self._work(waiting))
        except BaseExceptionGroup as failures:
            raise _first(failures) from None

    async def _work(self, waiting: Iterator[_Slot]) -> None:
        for slot in waiting:
            await self._one(slot)

    async def _one(self, slot: _Slot) -> None:
        rollout_id, address = await self._open(slot)
        self._tell(Started(rollout_id, slot.task.id))
        began = time.time()
        tried = await try_task(
            slot.task, self._plan.profile, self._attempt(rollout_id, slot.task, address), self._plan.command_limits
        )
        labels = {"task_id": slot.task.id, "harness": self._plan.profile.name}
        await self._desk.outcome(rollout_id, reward=tried.reward, ending=tried.ended.ending, labels=labels)
        row = _row(self._plan, slot, rollout_id, tried, began)
        ours = address.captured and address.rebuild
        source = self._source if ours else None
        built = await finalize_rollout_token_capture(row, source, policy=self._plan.policy)
        wanted = await self._certify(row, built)
        if built is not None and built.retirable and wanted:
            row["snapshot"] = {"snapshot_id": built.snapshot_id, "version": built.version}
        self._judge(row, address)
        self._results.append(row)
        await retire_rollout_token_capture(rollout_id, self._source, built if wanted else None)
        self._tidy(row)
        self.rows.append(slim(row))
        self._tell(Finished(slim(row)))

    async def _open(self, slot: _Slot) -> tuple[str, Address]:
        """A rollout id that nobody has used, entered in the ledger before the gateway hears of it."""
        while True:
            rollout_id = slot.rollout_id(self._take_number(slot))
            folder = self._workspaces / rollout_id
            if folder.exists():
                continue
            _write_ledger(folder, self._plan.out)
            labels = {**self._plan.labels, "task_id": slot.task.id, "harness": self._plan.profile.name}
            try:
                return rollout_id, await self._desk.create(rollout_id, labels=labels, budget=self._plan.budget)
            except ConflictError:
                shutil.rmtree(folder)  # another run's rollout in the same store: its evidence is not ours to seal

    def _take_number(self, slot: _Slot) -> int:
        number = self._next_attempt.get(slot.rollout_id(0), 0)
        self._next_attempt[slot.rollout_id(0)] = number + 1
        return number

    def _attempt(self, rollout_id: str, task: Task, address: Address) -> Attempt:
        async def budget_spent() -> bool:
            return await self._desk.budget_spent(rollout_id)

        return Attempt(
            rollout_id=rollout_id,
            prompt=task.prompt,
            model=self._plan.model,
            base_urls=address.base_urls,
            api_key=address.api_key,
            directory=self._workspaces / rollout_id,
            time_limit=self._plan.time_limit,
            config=self._plan.config,
            context_length=self._plan.context_length,
            budget_spent=budget_spent if self._plan.budget else None,
            sandbox=self._plan.sandbox,
        )

    async def _certify(self, row: Row, built: Built | None) -> bool:
        """Put the certificate into the row; False where it says less than the plan requires."""
        if built is None or built.rebuilt is None:
            return True
        certificate = await asyncio.to_thread(built.rebuilt.certify)
        row["certificate"] = certificate.to_json()
        if meets(certificate.verdict, self._plan.require):
            return True
        why = f"certificate: {certificate.verdict}, where {self._plan.require} is required ({certificate.reasons[0]})"
        row["exclude"], row["excluded_reason"] = True, row["excluded_reason"] or why
        return False

    def _judge(self, row: Row, address: Address) -> None:
        """What the tokens say about the rollout's use: no call at all can't be the policy's own doing."""
        row.setdefault("mask_sample", False)
        if address.captured and not address.rebuild:
            return  # whoever rebuilds it sees its calls, and judges
        if not (row.get(METRICS_KEY) or {}).get("n_calls"):
            why = NO_CALLS if address.captured else NOT_CAPTURED
            row["exclude"] = True
            row["excluded_reason"] = row["excluded_reason"] or why
            self._tell(Warned(row["_ng_rollout_id"], why))

    def _tidy(self, row: Row) -> None:
        clean = row["ending"] == Ending.FINISHED and not row["exclude"] and not row["mask_sample"]
        if clean and not self._plan.keep_workspaces:
            remove_tree(self._workspaces / row["_ng_rollout_id"])

    def _refuse_foreign(self, row: Row) -> None:
        missing = [name for name in REQUIRED if name not in row]
        if missing:
            raise ConfigError(f"{self._results.path} holds a row without {missing[0]!r}: it is no result file")
        if (self._plan.profile.name, self._plan.model) != (row["harness"], row["model"]):
            what = f"{row['harness']!r} on {row['model']!r}"
            raise ConfigError(f"{self._results.path} holds results of {what}", hint="give another --out")

    async def _retire_again(self, row: Row) -> None:
        if row.get("snapshot"):
            await self._source.drop(row["_ng_rollout_id"], **row["snapshot"])

    def _attempts_of(self, slot: _Slot) -> list[str]:
        """The attempts at `slot` that an earlier run with this result file began, by its ledger."""
        first = slot.rollout_id(0)
        again = re.compile(re.escape(first) + r"-a[1-9]\d*")  # another task's id may begin alike
        names = [first, *(path.name for path in self._workspaces.glob(f"{first}-a*") if again.fullmatch(path.name))]
        return [name for name in names if _begun_for(self._workspaces / name, self._plan.out)]

    async def _seal(self, rollout_id: str) -> None:
        """End what still runs of an interrupted attempt, and close its evidence."""
        await asyncio.to_thread(end_marked, mark_of(self._workspaces / rollout_id))
        try:
            await self._desk.outcome(rollout_id, reward=None, ending=Ending.INTERRUPTED, labels={})
            await self._source.freeze(rollout_id)
        except (StoreError, RequestError) as error:  # it may have been interrupted before the gateway heard of it
            self._tell(Warned(rollout_id, f"could not be sealed: {error.message}"))


def _slots(plan: Plan) -> Iterator[_Slot]:
    for task in plan.tasks:
        for index in range(plan.group_size):
            yield _Slot(task, index)


def _row(plan: Plan, slot: _Slot, rollout_id: str, tried: Tried, began: float) -> Row:
    return {
        "_ng_rollout_id": rollout_id,
        "task_id": slot.task.id,
        "rollout_index": slot.index,
        "harness": plan.profile.name,
        "harness_version": tried.ended.version or plan.profile.version,
        "model": plan.model,
        "sandbox": plan.sandbox.name,
        **tried.facts(),
        "started_at": began,
        "workspace": str(plan.directory.absolute() / "workspaces" / rollout_id / "workspace"),
        "response": _empty_response(plan, began),
    }


def _empty_response(plan: Plan, began: float) -> dict[str, Any]:
    """A Responses object for the rebuilt output. Without an id: only a model call could give it a true one."""
    return {
        "object": "response",
        "created_at": int(began),
        "model": plan.model,
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def _write_ledger(folder: Path, out: Path) -> None:
    folder.mkdir(mode=0o700, parents=True)
    file = folder / LEDGER
    file.write_text(json.dumps({"out": str(out.absolute()), "started_at": time.time()}))


def _begun_for(folder: Path, out: Path) -> bool:
    try:
        return bool(json.loads((folder / LEDGER).read_bytes())["out"] == str(out.absolute()))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    failure: BaseException = failures
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure
