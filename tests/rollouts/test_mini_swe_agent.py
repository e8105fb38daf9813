"""mini-swe-agent itself, unmodified, against the real gateway: how it ends, and that every sampled token is kept."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rolltape.chat import ChatRequest
from rolltape.cli.desk import ClientDesk
from rolltape.client import connect
from rolltape.config import ServeConfig
from rolltape.gateway.serve import running
from rolltape.harness import builtin_profiles
from rolltape.harness.sandbox import sandbox_for
from rolltape.rollouts import Plan, Task, run_rollouts
from rolltape.testing.scripted import Fault, ScriptedEngine, Step

pytestmark = pytest.mark.real
CHECK = "grep -qx hello out.txt"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def bash(command: str) -> Step:
    return Step(text="Let me see.", tool_calls=(("bash", json.dumps({"command": command})),))


class Play:
    """Two commands for every task, and the trouble that its name announces on the way."""

    def __init__(self) -> None:
        self.failed: set[str] = set()

    def __call__(self, request: ChatRequest, number: int) -> Step:
        name = next(
            name for name in TASKS if any(f"issue: {name}" in m.text() for m in request.messages if m.role == "user")
        )
        turn = sum(message.role == "assistant" for message in request.messages)
        users = sum(message.role == "user" for message in request.messages)
        if name == "broken":
            return Step(fault=Fault.REFUSE_400)
        if name == "retried" and turn == 1 and name not in self.failed:
            self.failed.add(name)
            return Step(fault=Fault.ERROR_500)
        if name == "dropped" and users == 1:
            return Step(text="I only talk and call no tool.")
        if name == "overflowed" and turn == 1:
            return Step(fault=Fault.OVERFLOW)
        return bash(SUBMIT) if turn else bash("echo hello > out.txt")


TASKS = ("good", "dropped", "retried", "overflowed", "broken")


async def play(folder: Path, names: tuple[str, ...], **changes: Any) -> dict[str, dict[str, Any]]:
    profile = builtin_profiles()["mini-swe-agent"]
    impatient = {**profile.env, "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "2"}
    config = ServeConfig(dir=str(folder / "data"), port=0, auth="keys")
    engine = ScriptedEngine(script=Play())
    async with running(config, engine=engine) as gateway, connect(gateway.url, gateway.control_token) as connection:
        values: dict[str, Any] = {
            "tasks": [Task(name, name, check=CHECK) for name in names],
            "profile": msgspec.structs.replace(profile, env=impatient),
            "model": "scripted",
            "out": folder / "out.jsonl",
            "directory": folder / "data",
            "concurrency": 2,
            "time_limit": 240.0,
        }
        await run_rollouts(Plan(**{**values, **changes}), ClientDesk(connection), gateway.store)
    return {row["task_id"]: row for row in map(json.loads, (folder / "out.jsonl").read_text().splitlines())}


async def test_every_way_that_it_ends_is_read_right_and_every_sampled_token_is_kept(tmp_path: Path) -> None:
    rows = await play(tmp_path, TASKS)

    said = {name: (row["ending"], row["harness_status"], row["reward"], row["exclude"]) for name, row in rows.items()}
    assert said == {
        "good": ("finished", "Submitted", 1.0, False),
        "dropped": ("finished", "Submitted", 1.0, False),
        "retried": ("finished", "Submitted", 1.0, False),
        "overflowed": ("finished", "ContextWindowExceededError", 1.0, False),
        "broken": ("crashed", "BadRequestError", None, True),
    }
    assert {row["harness_version"] for row in rows.values()} == {"2.4.6"}
    metrics = {name: row["_ng_token_capture"] for name, row in rows.items()}
    assert metrics["good"]["delivered_fraction"] == 1.0
    assert metrics["dropped"]["chains"] == 2
    for name in ("good", "retried", "overflowed"):
        assert not rows[name]["mask_sample"], metrics[name]
        assert metrics[name]["generated_tokens_captured"] == metrics[name]["generated_tokens_delivered"] > 0


async def test_a_spent_budget_is_its_ending(tmp_path: Path) -> None:
    rows = await play(tmp_path, ("good",), budget={"calls": 1})

    assert (rows["good"]["ending"], rows["good"]["reward"], rows["good"]["exclude"]) == ("budget", 1.0, False)


async def test_in_a_sandbox_it_works_as_ever(tmp_path: Path) -> None:
    profile = builtin_profiles()["mini-swe-agent"]
    program = profile.find_executable(os.environ["PATH"])
    sandbox = await sandbox_for("required", tmp_path / "data", (tmp_path / "out.jsonl",), (program,))

    rows = await play(tmp_path, ("good",), sandbox=sandbox)

    assert (rows["good"]["sandbox"], rows["good"]["reward"]) == (sandbox.name, 1.0)
