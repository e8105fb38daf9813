"""One session of Claude Code with all that breaks a naive capture: two sub-agents, a compaction and a retried 500.

Every token that the policy trains is delivered, with one owner. NeMo Gym's own builder reads the same store beside it.
"""

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rolltape.chat import ChatRequest
from rolltape.rebuild import rebuild
from rolltape.testing.scripted import Fault, Step

from .stage import Played, check_every_token, play, said, turns, untrained
from .test_claude_code import SUMMARY, bash, delegate, is_compaction

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]
GYM = ROOT / ".venv-nemo-gym" / "bin" / "python"
LINES = "seq 1 3000 | tr '\\n' ' '"


def session(failed: set[str]):
    """The script: helpers first, then an answer of 500 once, then more output than the context holds."""

    def script(request: ChatRequest, number: int) -> Step:
        if is_compaction(request):
            return Step(text=SUMMARY)
        if "SUMMARISED" in said(request):
            return Step(text=f"sample {number}: finished")
        if "HELPER-" in said(request) or turns(request) == 0:
            return delegate(request, number)
        if not failed:
            failed.add("once")
            return Step(fault=Fault.ERROR_500)
        return bash(number, f"echo hello > out.txt; {LINES}")

    return script


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp("whole")
    check = "grep -qx hello out.txt && cat ALPHA BETA"
    script = session(set())
    return asyncio.run(play(folder, "claude-code", script, prompt="Do it.", check=check, context_length=131_072))


def test_it_was_all_in_it(played: Played) -> None:
    assert (played.row["ending"], played.row["reward"]) == ("finished", 1.0)
    assert played.outcomes["failed"] == 1
    assert played.kinds["compaction"] >= 1
    helpers = {e.headers.get("x-claude-code-agent-id") for e in played.held.entries if e.kind == "subagent"}
    assert len(helpers) == 2


def test_every_token_that_the_policy_trains_is_delivered_with_one_owner(played: Played) -> None:
    check_every_token(played)
    assert {entry.kind for entry in untrained(played)} == {"compaction"}
    numbers = rebuild(played.held).metrics
    assert numbers["delivered_trainable_fraction"] == 1.0
    assert not played.row["mask_sample"]


def test_what_is_not_trained_has_a_named_reason(played: Played) -> None:
    built = rebuild(played.held)
    left = {one.reason for one in built.ledger if one.row_id is None}
    assert left == {"kind: compaction"}
    owned = sum(one.end - one.start for one in built.ledger if one.row_id is not None)
    named = sum(one.end - one.start for one in built.ledger if one.row_id is None)
    sampled = sum(len(e.generation_token_ids) for e in played.held.entries if e.outcome == "completed")
    assert owned + named == sampled
    assert built.certificate.verdict in ("exact", "usable")


def test_the_reference_peer_delivers_a_part_of_it_or_nothing(played: Played, tmp_path: Path) -> None:
    lines = [json.dumps(entry.to_json()) + "\n" for entry in played.held.entries]
    (tmp_path / "entries.jsonl").write_text("".join(lines))
    theirs = peer(tmp_path)
    ours = rebuild(played.held).metrics["delivered_fraction"]
    print(f"delivered of what was sampled: {ours} here, {theirs} there")
    assert ours > 0.9
    assert theirs["mask"] or theirs["delivered"] < 0.7 * ours


def peer(folder: Path) -> dict[str, Any]:
    """What Gym's builder makes of rollout t-0 in `folder`."""
    done = subprocess.run(
        [GYM, ROOT / "tests" / "integrations" / "gym_side.py", "played", folder],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told
