"""opencode, gemini-cli and pi, unmodified: started by their profiles, captured whole, and rewarded."""

import json
from pathlib import Path

import pytest

from rolltape.chat import ChatRequest
from rolltape.harness import builtin_profiles
from rolltape.testing.scripted import Step

from .stage import check_every_token, installed_version, play, turns, untrained

pytestmark = pytest.mark.real
SHELL = {"opencode": "bash", "gemini-cli": "run_shell_command", "pi": "bash"}
MODEL = {"gemini-cli": "gemini-2.5-pro"}
"""It takes only names of its own vendor."""


@pytest.mark.parametrize("harness", SHELL)
def test_what_is_installed_is_what_the_profile_knows(harness: str) -> None:
    assert builtin_profiles()[harness].version in installed_version(harness)


@pytest.mark.parametrize("harness", SHELL)
async def test_a_tool_is_run_and_every_token_of_the_agent_is_trained(tmp_path: Path, harness: str) -> None:
    def script(request: ChatRequest, number: int) -> Step:
        if not request.tools:
            return Step(text=f"A title {number}")
        if turns(request):
            return Step(text=f"sample {number}: done")
        command = {"command": "echo hello > out.txt", "description": "write"}
        return Step(text=f"sample {number}", tool_calls=((SHELL[harness], json.dumps(command)),))

    played = await play(tmp_path, harness, script, model=MODEL.get(harness, "scripted"))

    assert (played.row["ending"], played.row["reward"]) == ("finished", 1.0)
    check_every_token(played)
    assert played.kinds["agent"] == 2
    assert {entry.kind for entry in untrained(played)} <= {"title"}
