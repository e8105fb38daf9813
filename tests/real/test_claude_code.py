"""Claude Code itself, unmodified and headless, against the real gateway: every sampled token is kept, once."""

import json
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


def bash(number: int, command: str, **changes: object) -> Step:
    call = ("Bash", json.dumps({"command": command, "description": "run a command"}))
    return Step(text=f"sample {number}", tool_calls=(call,), **changes)  # type: ignore[arg-type]


def work(request: ChatRequest, number: int) -> Step:
    """Three commands, then an end; each *sampling* differs, so that attempts at one turn can be told apart."""
    turn = turns(request)
    return bash(number, COMMANDS[turn], delay=0.005) if turn < 3 else Step(text=f"sample {number}: all done")


def test_what_is_installed_is_what_the_profile_knows() -> None:
    assert builtin_profiles()["claude-code"].version in installed_version("claude-code")


async def test_tools_are_run_and_the_whole_chain_is_one_row(tmp_path: Path) -> None:
    played = await play(tmp_path, "claude-code", work)

    assert (played.row["ending"], played.row["harness_status"], played.row["reward"]) == ("finished", "completed", 1.0)
    check_every_token(played)
    assert played.kinds == {"agent": 4}
    (row,) = played.rows
    assert row.loss_tokens == sum(len(entry.generation_token_ids) for entry in played.held.entries)
    assert played.metrics["delivered_fraction"] == 1.0


async def test_arguments_that_it_writes_anew_break_rows_and_lose_nothing(tmp_path: Path) -> None:
    def script(request: ChatRequest, number: int) -> Step:
        step = work(request, number)
        return replace(step, tool_calls=tuple((name, f" {text} ") for name, text in step.tool_calls))

    played = await play(tmp_path, "claude-code", script)

    check_every_token(played)
    assert played.row["reward"] == 1.0
    assert len(played.rows) == 4
    assert untrained(played) == []


async def test_a_spent_budget_ends_it_and_keeps_its_reward(tmp_path: Path) -> None:
    played = await play(tmp_path, "claude-code", work, budget={"calls": 2})

    check_every_token(played)
    assert (played.row["ending"], played.row["reward"], played.row["exclude"]) == ("budget", 1.0, False)
    assert played.outcomes == {"completed": 2}


async def test_thinking_stays_in_the_chain(tmp_path: Path) -> None:
    played = await play(tmp_path, "claude-code", lambda r, n: replace(work(r, n), reasoning=f"I think {n} times."))

    check_every_token(played)
    assert played.row["reward"] == 1.0
    assert len(played.rows) == 1


@pytest.mark.parametrize("background", [True, False])
async def test_two_subagents_beside_the_main_chain_keep_apart(tmp_path: Path, background: bool) -> None:
    env = {} if background else {"CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1"}
    played = await play(tmp_path, "claude-code", delegate, prompt="Do it.", check="cat ALPHA BETA", env=env)

    check_every_token(played)
    assert (played.row["ending"], played.row["reward"]) == ("finished", 1.0)
    assert set(played.kinds) == {"agent", "subagent"}
    agents = {entry.headers.get("x-claude-code-agent-id") for entry in played.held.entries}
    assert len(agents) == 3
    by_agent = {
        (row.kind, *{entries[call].headers.get("x-claude-code-agent-id") for call in row.model_call_ids})
        for entries in [{entry.model_call_id: entry for entry in played.held.entries}]
        for row in played.rows
    }
    assert len(by_agent) == 3, "a row holds calls of one agent only"
    assert untrained(played) == []


def delegate(request: ChatRequest, number: int) -> Step:
    """Two helpers in one message, each of which writes a file while the main chain goes on."""
    for name in ("ALPHA", "BETA"):
        if f"HELPER-{name}" in said(request):
            return (
                bash(number, f"sleep 0.5; echo from > {name}") if turns(request) == 0 else Step(text=f"{name} is there")
            )
    if turns(request) > 0:
        return bash(number, "sleep 1") if turns(request) == 1 else Step(text=f"sample {number}: finished")
    helpers = tuple(
        ("Agent", json.dumps({"description": "a job", "prompt": f"HELPER-{name}: do it", "subagent_type": kind}))
        for name, kind in (("ALPHA", "general-purpose"), ("BETA", "Explore"))
    )
    return Step(text="I start two helpers.", tool_calls=helpers)


SUMMARY = "<analysis>a</analysis>\n<summary>SUMMARISED: the file is there.</summary>"


def is_compaction(request: ChatRequest) -> bool:
    return "Respond with TEXT ONLY" in next(m.text() for m in reversed(request.messages) if m.role != "system")


async def test_a_compaction_by_reported_usage_starts_a_second_chain(tmp_path: Path) -> None:
    def script(request: ChatRequest, number: int) -> Step:
        if is_compaction(request):
            return Step(text=SUMMARY)
        if "SUMMARISED" in said(request):
            return Step(text=f"sample {number}: finished")
        return bash(number, "echo hello > out.txt; seq 1 3000 | tr '\\n' ' '")

    played = await play(tmp_path, "claude-code", script, context_length=131_072)

    check_every_token(played)
    assert (played.row["ending"], played.row["reward"]) == ("finished", 1.0)
    assert played.kinds["compaction"] == 1
    assert played.kinds["agent"] >= 3
    assert {entry.kind for entry in untrained(played)} == {"compaction"}
    assert len([row for row in played.rows if row.kind == "agent" and row.loss_tokens]) == 2


async def test_a_prompt_that_outgrew_the_context_is_compacted(tmp_path: Path) -> None:
    overflowed: set[int] = set()

    def script(request: ChatRequest, number: int) -> Step:
        if is_compaction(request):
            return Step(text=SUMMARY)
        if "SUMMARISED" in said(request):
            return Step(text=f"sample {number}: finished")
        if turns(request) == 2:
            overflowed.add(number)
            return Step(fault=Fault.OVERFLOW)
        return work(request, number)

    played = await play(tmp_path, "claude-code", script)

    check_every_token(played)
    assert (played.row["ending"], played.row["reward"]) == ("finished", 1.0)
    assert len(overflowed) == played.outcomes["refused"] == 1
    assert {entry.kind for entry in untrained(played)} == {"compaction"}


async def test_an_error_of_the_engine_is_tried_again(tmp_path: Path) -> None:
    failed: list[int] = []

    def script(request: ChatRequest, number: int) -> Step:
        if turns(request) == 1 and not failed:
            failed.append(number)
            return Step(fault=Fault.ERROR_500)
        return work(request, number)

    played = await play(tmp_path, "claude-code", script)

    check_every_token(played)
    assert played.row["reward"] == 1.0
    assert played.outcomes == {"completed": 4, "failed": 1}
    assert len(played.rows) == 1
    assert untrained(played) == []


async def test_an_engine_that_breaks_in_mid_stream_is_asked_again(tmp_path: Path) -> None:
    broken: list[int] = []

    def script(request: ChatRequest, number: int) -> Step:
        if turns(request) == 1 and not broken:
            broken.append(number)
            return replace(work(request, number), fault=Fault.DIE_MID_STREAM, after=6)
        return work(request, number)

    played = await play(tmp_path, "claude-code", script)

    check_every_token(played)
    assert played.row["reward"] == 1.0
    assert played.outcomes == {"completed": 4, "failed": 1}
    assert untrained(played) == []


CUTS: dict[str, tuple[Cuts, int]] = {
    "before any byte": (Cut.BEFORE_REPLY, 1),
    "instead of the reply": (Cut.INSTEAD_OF_REPLY, 1),
    "before the text": (CutAt(b"content_block_start", after=False), 1),
    "within the text": (CutAt(b"sam"), 1),
    "behind the text": (CutAt(b'"type":"content_block_stop","index":0}\n\n'), 1),
    "within the tool call": (CutAt(b"input_json_delta"), 1),
    "behind the tool call": (CutAt(b'"type":"content_block_stop","index":1}\n\n'), 0),
    "before the last event": (CutAt(b"event: message_stop", after=False), 0),
}
"""Where the second call's reply is cut, and how many calls the gateway sees as cancelled by it."""


@pytest.mark.parametrize("where", CUTS)
async def test_a_connection_cut_at_the_second_turn_loses_and_doubles_nothing(tmp_path: Path, where: str) -> None:
    cut, cancelled = CUTS[where]
    played = await play(tmp_path, "claude-code", work, cut=lambda number: cut if number == 1 else Cut.NEVER)

    check_every_token(played)
    assert (played.row["ending"], played.row["reward"]) == ("finished", 1.0)
    assert played.outcomes["cancelled"] == cancelled
    assert len(played.rows) == 1
    assert untrained(played) == []


async def test_a_reply_cut_between_its_tool_calls_stays_in_the_history_in_part(tmp_path: Path) -> None:
    def script(request: ChatRequest, number: int) -> Step:
        step = work(request, number)
        return replace(step, tool_calls=step.tool_calls * 2) if turns(request) == 1 else step

    def cut(number: int) -> Cuts:
        return CutAt(b'"type":"content_block_stop","index":1}\n\n') if number == 1 else Cut.NEVER

    played = await play(tmp_path, "claude-code", script, cut=cut)

    check_every_token(played)
    assert played.outcomes == {"completed": 4}
    assert len(played.rows) == 2, "what was cut off has a row of its own"
    assert untrained(played) == []
