"""Kinds of calls are told by the marks of the shipped profiles, and by nothing else."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rolltape.chat import ChatRequest, Message
from rolltape.harness import builtin_profiles
from rolltape.harness.kinds import classifier
from rolltape.harness.profile import Calls, KindMark, Profile
from rolltape.wire.openai_chat import OpenAIChat

KIND = classifier(builtin_profiles())
CLAUDE = {"user-agent": "claude-cli/2.1.332 (external, sdk-cli)", "x-claude-code-session-id": "s"}
CODEX = {"user-agent": "codex_exec/0.171.0 (Debian 12.0.0; x86_64)"}
SUMMARISE = "CRITICAL: Respond with TEXT ONLY.\n\nYour task is to create a detailed summary of the conversation"


def request(*texts: str, tools: tuple[str, ...] = (), **fields: object) -> ChatRequest:
    messages = tuple(Message(role=text.partition(":")[0], content=text.partition(":")[2]) for text in texts)  # type: ignore[arg-type]
    named = tuple({"type": "function", "function": {"name": name}} for name in tools)
    return ChatRequest(model="m", messages=messages, tools=named, **fields)  # type: ignore[arg-type]


def turn(kind: str) -> dict[str, str]:
    return {**CODEX, "x-codex-turn-metadata": json.dumps({"thread_id": "t", "request_kind": kind})}


TITLE = {"type": "json_schema", "json_schema": {"schema": {"properties": {"title": {"type": "string"}}}}}
TOOLS = ("Agent", "Bash", "Read")
DIALOGUE = ("system:You are an agent", "user:do it", "assistant:yes", "tool:done")


@pytest.mark.parametrize(
    ("headers", "asked", "kind"),
    [
        (CLAUDE, request(*DIALOGUE, tools=TOOLS), "agent"),
        (CLAUDE, request("user:do it", "system:Today is Monday", tools=TOOLS), "agent"),
        ({**CLAUDE, "x-claude-code-agent-id": "a1"}, request(*DIALOGUE, tools=TOOLS), "subagent"),
        (CLAUDE, request("system:cc_entrypoint=cli; cc_is_subagent=true;", "user:do it", tools=TOOLS), "subagent"),
        (CLAUDE, request(*DIALOGUE, f"user:{SUMMARISE}", tools=TOOLS), "compaction"),
        (CLAUDE, request(*DIALOGUE, f"user:{SUMMARISE}", "assistant:no", tools=TOOLS), "agent"),
        (CLAUDE, request("user:name it", response_format=TITLE), "title"),
        (CLAUDE, request("user:Web page content: ..."), "other"),
        (CLAUDE, request("user:Perform a web search", tools=("web_search",)), "other"),
        ({"user-agent": "claude-cli/9"}, request("user:hi"), None),
        (turn("turn"), request(*DIALOGUE), "agent"),
        (turn("compaction"), request(*DIALOGUE), "compaction"),
        ({**turn("turn"), "x-openai-subagent": "collab_spawn"}, request(*DIALOGUE), "subagent"),
        ({**turn("compaction"), "x-openai-subagent": "collab_spawn"}, request(*DIALOGUE), "compaction"),
        ({**turn("turn"), "x-openai-subagent": "memory_consolidation"}, request(*DIALOGUE), "other"),
        (CODEX, request(*DIALOGUE), None),
        ({"user-agent": "curl/8"}, request(f"user:{SUMMARISE}"), None),
    ],
)
def test_the_shipped_marks_tell_the_kinds_apart(headers: dict[str, str], asked: ChatRequest, kind: str | None) -> None:
    said, evidence = KIND(headers, asked, {})

    assert said == kind
    assert (evidence is None) == (kind is None)


def recorded(harness: str) -> Iterator[tuple[str, str | None]]:
    """Number of each recorded request and the kind it is told to be. Long texts are markers, so that what is told by
    words alone is told by tools and headers only."""
    for line in (Path(__file__).parents[1] / "data" / "traffic" / f"{harness}.jsonl").read_text().splitlines():
        sent = json.loads(line)
        headers = {name.lower(): value for name, value in sent["headers"]}
        asked = OpenAIChat().decode("/v1/chat/completions", json.dumps(sent["body"]).encode(), headers)
        yield sent["id"].partition("#")[2], KIND(headers, asked, {})[0]


@pytest.mark.parametrize(
    ("harness", "others"),
    [
        ("qwen-code", {"130": "subagent", "131": "subagent", "132": "subagent", "133": "subagent"}),
        (
            "opencode",
            dict.fromkeys(("22", "24", "68"), "compaction") | dict.fromkeys(("70", "71", "72", "73"), "subagent"),
        ),
    ],
)
def test_recorded_requests_are_told_apart_by_their_user_agents_profile(harness: str, others: dict[str, str]) -> None:
    told = dict(recorded(harness))
    assert {number: kind for number, kind in told.items() if kind != "agent"} == others
    assert len(told) > 20


def test_the_label_of_a_rollout_goes_before_its_user_agent() -> None:
    assert KIND(CLAUDE, request("user:hi"), {"harness": "mini-swe-agent"})[0] == "agent"
    assert KIND({}, request("user:hi"), {"harness": "mini-swe-agent"}) == ("agent", "mini-swe-agent 2.4.6: every call")


def test_a_label_that_no_profile_has_leaves_the_user_agent_to_tell() -> None:
    assert KIND(CLAUDE, request("user:hi"), {"harness": "mine"})[0] == "other"
    assert KIND({}, request("user:hi"), {"harness": "mine"}) == (None, None)


def test_evidence_names_the_profile_the_places_and_what_was_found() -> None:
    _, evidence = KIND({**CLAUDE, "x-claude-code-agent-id": "a1"}, request("user:hi"), {})
    assert evidence == "claude-code 2.1.332: header:x-claude-code-agent-id has 'a'"
    _, evidence = KIND(CLAUDE, request("user:hi", response_format=TITLE), {})
    assert evidence == "claude-code 2.1.332: no tools; format has '\"title\"'"


def test_every_pattern_of_a_mark_must_be_found() -> None:
    mark = KindMark("probe", {"last_user": "ping", "tools": "^$"})
    mine = Profile("mine", "1", "openai_chat", "mine", ("x",), calls=Calls(kinds=(mark,)))
    kind = classifier({"mine": mine})

    assert kind({}, request("user:ping"), {"harness": "mine"})[0] == "probe"
    assert kind({}, request("user:ping", tools=("bash",)), {"harness": "mine"})[0] is None
    assert kind({}, request("user:pong"), {"harness": "mine"})[0] is None
