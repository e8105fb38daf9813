"""Codex itself, unmodified and headless, against the real gateway: every sampled token is kept, once."""

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from rolltape.chat import ChatRequest
from rolltape.harness import builtin_profiles
from rolltape.testing.scripted import Fault, Step

from .relay import Cut, CutAt, Cuts
from .stage import check_every_token, installed_version, play, said, turns, untrained

pytestmark = pytest.mark.real
COMMANDS = ("echo hello > out.txt", "cat out.txt", "seq 1 3")


def shell(number: int, command: str, **changes: object) -> Step:
    return Step(text=f"sample {number}", tool_calls=(("exec_command", json.dumps({"cmd": command})),), **changes)  # type: ignore[arg-type]


def results(request: ChatRequest) -> int:
    return sum(message.role == "tool" for message in request.messages)


def work(request: ChatRequest, number: int) -> Step:
    """Three commands, then an end; each *sampling* differs, so that attempts at one turn can be told apart."""
    turn = results(request)
    return shell(number, COMMANDS[turn], delay=0.005) if turn < 3 else Step(text=f"sample {number}: all done")


def test_what_is_installed_is_what_the_profile_knows() -> None:
    assert builtin_profiles()["codex"].version in installed_version("codex")


async def test_tools_are_run_and_the_whole_chain_is_one_row(tmp_path: Path) -> None:
    played = await play(tmp_path, "codex", work)

    assert (played.row["ending"], played.row["harness_status"]) == ("finished", "turn.completed")
    assert played.row["reward"] == 1.0
    check_every_token(played)
    assert played.kinds == {"agent": 4}
    (row,) = played.rows
    assert row.loss_tokens == sum(len(entry.generation_token_ids) for entry in played.held.entries)
    assert {entry.delivery for entry in played.held.entries} == {"delivered"}


async def test_arguments_stay_as_they_were_sampled(tmp_path: Path) -> None:
    def script(request: ChatRequest, number: int) -> Step:
        step = work(request, number)
        spaced = tuple((name, text.replace(":", " :\n")) for name, text in step.tool_calls)
        return replace(step, tool_calls=spaced)

    played = await play(tmp_path, "codex", script)

    check_every_token(played)
    assert played.row["reward"] == 1.0
    assert len(played.rows) == 1


async def test_a_spent_budget_ends_it_and_keeps_its_reward(tmp_path: Path) -> None:
    played = await play(tmp_path, "codex", work, budget={"calls": 2})

    check_every_token(played)
    assert (played.row["ending"], played.row["reward"], played.row["exclude"]) == ("budget", 1.0, False)
    assert played.outcomes == {"completed": 2}


async def test_thinking_stays_in_the_chain(tmp_path: Path) -> None:
    played = await play(tmp_path, "codex", lambda r, n: replace(work(r, n), reasoning=f"I think {n} times."))

    check_every_token(played)
    assert played.row["reward"] == 1.0
    assert len(played.rows) == 1


def delegate(request: ChatRequest, number: int) -> Step:
    """Two helpers, each of which writes a file while the main thread waits for them."""
    for name in ("ALPHA", "BETA"):
        if f"HELPER-{name}" in said(request) and "subagent_notification" not in said(request):
            first = results(request) == 0
            return shell(number, f"sleep 0.3; echo from > {name}") if first else Step(text=f"{name} is there")
    if turns(request) == 0:
        helpers = tuple(
            ("multi_agent_v1__spawn_agent", json.dumps({"message": f"HELPER-{name}: do it"}))
            for name in ("ALPHA", "BETA")
        )
        return Step(text="I start two helpers.", tool_calls=helpers)
    if results(request) == 2:
        told = "".join(message.text() for message in request.messages if message.role == "tool")
        agents = re.findall(r'"agent_id":"([^"]+)"', told)
        waiting = ("multi_agent_v1__wait_agent", json.dumps({"targets": agents, "timeout_ms": 20_000}))
        return Step(text=f"sample {number}", tool_calls=(waiting,))
    return Step(text=f"sample {number}: finished")


async def test_two_subagents_beside_the_main_thread_keep_apart(tmp_path: Path) -> None:
    played = await play(tmp_path, "codex", delegate, prompt="Do it.", check="cat ALPHA BETA")

    check_every_token(played)
    assert (played.row["ending"], played.row["reward"]) == ("finished", 1.0)
    assert set(played.kinds) == {"agent", "subagent"}
    entries = {entry.model_call_id: entry for entry in played.held.entries}
    for row in played.rows:
        assert len({entries[call].headers["thread-id"] for call in row.model_call_ids}) == 1
    assert len({entry.headers["thread-id"] for entry in entries.values()}) == 3
    assert untrained(played) == []


async def test_a_compaction_by_reported_usage_starts_a_second_chain(tmp_path: Path) -> None:
    def script(request: ChatRequest, number: int) -> Step:
        if "CONTEXT CHECKPOINT COMPACTION" in said(request):
            return Step(text="SUMMARISED: the file is there.")
        if "SUMMARISED" in said(request):
            return Step(text=f"sample {number}: finished")
        return shell(number, "echo hello > out.txt; seq 1 2000 | tr '\\n' ' '")

    played = await play(tmp_path, "codex", script, context_length=80_000)

    check_every_token(played)
    assert (played.row["ending"], played.row["reward"]) == ("finished", 1.0)
    assert played.kinds["compaction"] == 1
    assert {entry.kind for entry in untrained(played)} == {"compaction"}
    assert len([row for row in played.rows if row.kind == "agent" and row.loss_tokens]) == 2


async def test_a_prompt_that_outgrew_the_context_ends_it_as_its_own_doing(tmp_path: Path) -> None:
    def script(request: ChatRequest, number: int) -> Step:
        return Step(fault=Fault.OVERFLOW) if results(request) == 2 else work(request, number)

    played = await play(tmp_path, "codex", script)

    check_every_token(played)
    assert (played.row["ending"], played.row["reward"]) == ("finished", 1.0)
    assert played.row["harness_status"].startswith("Codex ran out of room")
    assert played.outcomes == {"completed": 2, "refused": 1}


@pytest.mark.parametrize("fault", [Fault.ERROR_500, Fault.DIE_MID_STREAM])
async def test_an_error_of_the_engine_is_tried_again(tmp_path: Path, fault: Fault) -> None:
    failed: list[int] = []

    def script(request: ChatRequest, number: int) -> Step:
        if results(request) == 1 and not failed:
            failed.append(number)
            return replace(work(request, number), fault=fault, after=6)
        return work(request, number)

    played = await play(tmp_path, "codex", script)

    check_every_token(played)
    assert played.row["reward"] == 1.0
    assert played.outcomes == {"completed": 4, "failed": 1}
    assert len(played.rows) == 1
    assert untrained(played) == []


CUTS: dict[str, tuple[Cuts, dict[str, int], int]] = {
    "before any byte": (Cut.BEFORE_REPLY, {"completed": 4, "cancelled": 1}, 1),
    "instead of the reply": (Cut.INSTEAD_OF_REPLY, {"completed": 4, "cancelled": 1}, 1),
    "within the text": (CutAt(b"response.output_text.delta"), {"completed": 4, "cancelled": 1}, 1),
    "within the tool call": (CutAt(b"response.function_call_arguments.delta"), {"completed": 4, "cancelled": 1}, 1),
    "behind the text": (CutAt(b"event: response.function_call_arguments.done", after=False), {"completed": 5}, 2),
    "behind the tool call": (CutAt(b"event: response.completed", after=False), {"completed": 4}, 1),
}
"""Where the second call's reply is cut, how the gateway sees the calls end, and how many rows there are."""


@pytest.mark.parametrize("where", CUTS)
async def test_a_connection_cut_at_the_second_turn_loses_and_doubles_nothing(tmp_path: Path, where: str) -> None:
    cut, outcomes, rows = CUTS[where]
    played = await play(tmp_path, "codex", work, cut=lambda number: cut if number == 1 else Cut.NEVER)

    check_every_token(played)
    assert (played.row["ending"], played.row["reward"]) == ("finished", 1.0)
    assert played.outcomes == outcomes
    assert len(played.rows) == rows
    assert untrained(played) == []
