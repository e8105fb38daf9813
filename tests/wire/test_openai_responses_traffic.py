"""Recorded Responses traffic: all of it decodes, nothing is lost, and a chain that grows on the wire grows in chat.

A line of the data is `{id, run, path, headers, body}`; `tools_of` names an earlier request whose `tools` were equal.
"""

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rolltape.chat import ChatRequest
from rolltape.wire.openai_responses import OpenAIResponses

TRAFFIC = Path(__file__).parent.parent / "data" / "traffic"
HARNESSES = ("codex", "mini-swe-agent-responses")
PROTOCOL = OpenAIResponses()


def recorded(harness: str) -> list[dict[str, Any]]:
    requests = [msgspec.json.decode(line) for line in (TRAFFIC / f"{harness}.jsonl").read_bytes().splitlines()]
    tools = {request["id"]: request["body"].get("tools") for request in requests}
    for request in requests:
        if "tools_of" in request:
            request["body"]["tools"] = tools[request["tools_of"]]
    return requests


def decode(body: dict[str, Any]) -> ChatRequest:
    return PROTOCOL.decode("/v1/responses", msgspec.json.encode(body), {})


def chains(harness: str) -> list[list[ChatRequest]]:
    """The requests of each thread between two compactions."""
    found: dict[tuple[str, str], list[ChatRequest]] = defaultdict(list)
    for request in recorded(harness):
        headers = {name.lower(): value for name, value in request["headers"]}
        found[request["run"], headers.get("x-codex-window-id", "")].append(decode(request["body"]))
    return list(found.values())


def texts(value: Any) -> set[str]:
    """Every string in `value` but the types of items and parts, which chat names differently."""
    if isinstance(value, str):
        return {value}
    if isinstance(value, list):
        return {text for item in value for text in texts(item)}
    if isinstance(value, dict):
        return {text for key, item in value.items() if key != "type" for text in texts(item)}
    return set()


@pytest.mark.parametrize("harness", HARNESSES)
def test_every_recorded_request_decodes_and_every_text_of_it_is_kept(harness: str) -> None:
    requests = recorded(harness)
    assert len(requests) == {"codex": 43, "mini-swe-agent-responses": 5}[harness]
    for request in requests:
        decoded = decode(request["body"])
        assert texts(request["body"]) - texts(msgspec.json.decode(msgspec.json.encode(decoded))) == set()
        assert decoded.stream == request["body"].get("stream", False)
        assert decoded.sampling == {}


@pytest.mark.parametrize("harness", HARNESSES)
def test_a_chain_is_append_only_byte_for_byte(harness: str) -> None:
    steps = [pair for chain in chains(harness) for pair in pairwise(chain)]
    assert len(steps) == {"codex": 33, "mini-swe-agent-responses": 4}[harness]
    for earlier, later in steps:
        before, after = msgspec.json.encode(earlier.messages), msgspec.json.encode(later.messages)
        assert after.startswith(before.removesuffix(b"]"))


def test_what_was_finished_before_a_cut_stays_a_turn_of_its_own() -> None:
    """Codex keeps a message that was done, asks again, and gets another turn: nothing is between the two."""
    before, after = (decode(r["body"]) for r in recorded("codex") if r["id"] in ("cx-faults#16", "cx-faults#17"))
    assert [message.role for message in after.messages[-4:]] == ["tool", "assistant", "assistant", "tool"]
    assert after.messages[: len(before.messages)] == before.messages


def test_the_tools_of_a_namespace_are_flat_and_their_calls_echo_under_the_flat_name() -> None:
    requests = [decode(request["body"]) for request in recorded("codex") if request["run"] == "cx-sub"]
    names = [tool["function"]["name"] for tool in requests[0].tools]
    assert "multi_agent_v1__spawn_agent" in names
    assert len(names) == len(set(names)) == 12
    called = {call.name for message in requests[-1].messages for call in message.tool_calls}
    assert called <= set(names)
    assert "multi_agent_v1__spawn_agent" in called
    assert requests[0].aside["hosted_tools"] == [{"type": "web_search", "external_web_access": True}]


def test_thread_window_sub_agent_and_turn_marks_are_kept_and_credentials_are_not() -> None:
    tagged = [PROTOCOL.tagged(dict(request["headers"])) for request in recorded("codex")]
    for tags in tagged:
        wanted = {"session-id", "thread-id", "x-client-request-id", "x-codex-window-id", "x-codex-turn-metadata"}
        assert wanted <= tags.keys()
        assert {"user-agent", "originator"} <= tags.keys()
        assert not {"authorization", "x-api-key", "cookie"} & tags.keys()
        assert "dummy-rollout-1" not in str(tags)
    subagents = [tags for tags in tagged if "x-openai-subagent" in tags]
    assert len(subagents) == 4
    assert all(tags["x-codex-parent-thread-id"] != tags["thread-id"] for tags in subagents)
