"""A desk and token source in a folder: what a gateway and its store are to a run, small enough to read at a glance.

A harness "calls the model" by appending a line to the file that its base URL names; every line is one token entry. All
state is in files, so that it outlives a runner that is killed. Run as a script, it is such a runner.
"""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rolltape.errors import ConflictError, RetiredError
from rolltape.harness import Profile
from rolltape.record import TokenCaptureSnapshot, TokenEntry
from rolltape.rollouts import Address, Plan, run_rollouts
from rolltape.rollouts.run import Event
from rolltape.rollouts.tasks import read_tasks

CALL = "echo call >> $OPENAI_BASE_URL"


class FolderDesk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log: list[str] = []

    async def create(self, rollout_id: str, *, labels: Mapping[str, Any], budget: Mapping[str, Any]) -> Address:
        try:
            (self.folder / rollout_id).mkdir(parents=True)
        except FileExistsError:
            raise ConflictError(f"{rollout_id} exists") from None
        (self.folder / rollout_id / "calls").touch()
        self.log.append(f"create {rollout_id}")
        return Address({"openai": str(self.folder / rollout_id / "calls")}, f"rt-{rollout_id}.kkkkkkkk")

    async def budget_spent(self, rollout_id: str) -> bool:
        return (self.folder / rollout_id / "refused").exists()

    async def outcome(self, rollout_id: str, *, reward: float | None, ending: str, labels: Mapping[str, Any]) -> None:
        body = {"reward": reward, "ending": ending}
        (self.folder / rollout_id / "outcome").write_text(json.dumps(body))
        self.log.append(f"outcome {rollout_id}")

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        if (self.folder / rollout_id / "retired").exists():
            raise RetiredError(f"{rollout_id} is retired")
        (self.folder / rollout_id / "frozen").touch()
        self.log.append(f"freeze {rollout_id}")
        calls = len((self.folder / rollout_id / "calls").read_text().splitlines())
        entries = tuple(_entry(rollout_id, call) for call in range(calls))
        return TokenCaptureSnapshot(rollout_id, entries, False, f"snap-{rollout_id}", calls)

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        (self.folder / rollout_id / "retired").touch()
        self.log.append(f"drop {rollout_id}")
        return True

    async def close(self) -> None:
        return

    def outcomes(self) -> dict[str, str]:
        return {file.parent.name: json.loads(file.read_text())["ending"] for file in self.folder.glob("*/outcome")}

    def retired(self) -> set[str]:
        return {file.parent.name for file in self.folder.glob("*/retired")}


def _entry(rollout_id: str, call: int) -> TokenEntry:
    """Call n extends the whole of call n-1 by two prompt tokens and samples three."""
    prompt = [token for earlier in range(call) for token in (10 + earlier, 20, 1, 2, 3)] + [10 + call, 20]
    return TokenEntry(
        rollout_id=rollout_id,
        model_call_id=f"c{call}",
        prompt_token_ids=prompt,  # type: ignore[arg-type]
        generation_token_ids=[1, 2, 3],  # type: ignore[arg-type]
        generation_log_probs=[-0.5, -0.25, -1.0],  # type: ignore[arg-type]
        created_at=1000.0 + call,
        finish_reason="stop",
    )


def script_profile(script: str, **changes: Any) -> Profile:
    """A harness that is a shell script; `$1` is the prompt."""
    values: dict[str, Any] = {
        "name": "script",
        "version": "1",
        "protocol": "openai_chat",
        "executable": "sh",
        "command": ("{executable}", "-c", script.replace("{", "{{").replace("}", "}}"), "sh", "{prompt}"),
        "env": {"OPENAI_API_KEY": "{api_key}", "OPENAI_BASE_URL": "{base_url}"},
    }
    return Profile(**{**values, **changes})


def make_plan(folder: Path, tasks: list[dict[str, Any]], script: str, **changes: Any) -> Plan:
    file = folder / "tasks.jsonl"
    file.write_text("".join(json.dumps(task) + "\n" for task in tasks))
    values: dict[str, Any] = {
        "tasks": read_tasks(file),
        "profile": script_profile(script),
        "model": "m",
        "out": folder / "out.jsonl",
        "directory": folder / "data",
        "time_limit": 20.0,
    }
    return Plan(**{**values, **changes})


def rows_of(plan: Plan) -> list[dict[str, Any]]:
    return [json.loads(line) for line in plan.out.read_text().splitlines()]


def main() -> None:
    """`folder_desk.py FOLDER SCRIPT N`: run one task N times, and say on stdout what happens."""
    folder, script, size = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    plan = make_plan(folder, [{"id": "t", "prompt": "p", "check": "true"}], script, group_size=size, concurrency=2)

    def tell(event: Event) -> None:
        print(event, flush=True)

    asyncio.run(run_rollouts(plan, desk := FolderDesk(folder / "store"), desk, tell))


if __name__ == "__main__":
    main()
