"""mini-swe-agent over a line that breaks: every sampled token is in the store once, and the rows are right."""

import json
from pathlib import Path

import pytest

from rolltape.chat import ChatRequest
from rolltape.testing.scripted import Step

from .relay import Cut
from .stage import check_every_token, play, turns

pytestmark = pytest.mark.real
COMMANDS = ("echo hello > out.txt", "cat out.txt", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")


def script(request: ChatRequest, number: int) -> Step:
    """Three commands; each *sampling* differs, so that attempts at one turn can be told apart."""
    call = ("bash", json.dumps({"command": COMMANDS[min(turns(request), 2)]}))
    return Step(text=f"sample {number}", tool_calls=(call,), delay=0.02)


@pytest.mark.parametrize("cut", [Cut.BEFORE_REPLY, Cut.INSTEAD_OF_REPLY, Cut.WITHIN_REPLY])
async def test_a_connection_cut_at_the_second_turn_loses_and_doubles_nothing(tmp_path: Path, cut: Cut) -> None:
    played = await play(tmp_path, "mini-swe-agent", script, cut=lambda number: cut if number == 1 else Cut.NEVER)

    check_every_token(played)
    assert (played.row["ending"], played.row["reward"]) == ("finished", 1.0)
    assert played.kinds == {"agent": 4}
    assert played.outcomes["cancelled"] == (cut is Cut.BEFORE_REPLY)
    assert len(max(played.rows, key=lambda row: len(row.spans)).spans) == 3
