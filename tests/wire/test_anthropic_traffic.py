"""Recorded Anthropic traffic: all of it decodes, and a chain that grows on the wire grows in canonical messages.

A line of the data is `{id, run, path, headers, body}`; `tools_of` names an earlier request whose `tools` were equal.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rolltape.chat import ChatRequest, Message
from rolltape.errors import RequestError
from rolltape.wire.anthropic_messages import AnthropicMessages

TRAFFIC = Path(__file__).parent.parent / "data" / "traffic"
HARNESSES = ("claude-code", "mini-swe-agent-anthropic")
PROTOCOL = AnthropicMessages()
WEB_SEARCH = "web_search_20250305"


def recorded(harness: str) -> list[dict[str, Any]]:
    requests = [msgspec.json.decode(line) for line in (TRAFFIC / f"{harness}.jsonl").read_bytes().splitlines()]
    tools = {request["id"]: request["body"].get("tools") for request in requests}
    for request in requests:
        if "tools_of" in request:
            request["body"]["tools"] = tools[request["tools_of"]]
    return requests


def decode(body: Mapping[str, Any]) -> ChatRequest:
    return PROTOCOL.decode("/v1/messages", msgspec.json.encode(body), {})


def is_web_search(body: Mapping[str, Any]) -> bool:
    return [tool.get("type") for tool in body.get("tools", [])] == [WEB_SEARCH]


def chains(harness: str) -> dict[tuple[str, str], list[ChatRequest]]:
    """Main and sub-agent chains, told apart by run, agent id and system prompt."""
    found: dict[tuple[str, str], list[ChatRequest]] = defaultdict(list)
    for request in recorded(harness):
        if is_web_search(request["body"]):
            continue
        headers = {name.lower(): value for name, value in request["headers"]}
        decoded = decode(request["body"])
        found[request["run"], headers.get("x-claude-code-agent-id", "") + str(decoded.messages[0])].append(decoded)
    return found


# What a reader of the protocol's own words would call the texts of a request, to hold the translation against.


def texts(value: Any) -> list[str]:
    """Every text, thought, tool name, id and raw image in `value`, in order."""
    if isinstance(value, list):
        return [text for item in value for text in texts(item)]
    if isinstance(value, str):
        return [value] if value else []
    kept = ("text", "thinking", "id", "name", "tool_use_id", "content", "tool_name", "signature")
    return [text for key in kept if key in value for text in texts(value[key])]


@pytest.mark.parametrize("harness", HARNESSES)
def test_every_recorded_request_decodes_without_loss(harness: str) -> None:
    decoded = 0
    for request in recorded(harness):
        body = request["body"]
        if is_web_search(body):
            continue
        decoded += 1
        got = decode(body)
        held = msgspec.json.encode((got.messages, got.extra, got.aside)).decode()
        for text in [*texts(body.get("system", [])), *texts([m["content"] for m in body["messages"]])]:
            assert msgspec.json.encode(text).decode()[1:-1] in held
        names = {tool["name"] for tool in body.get("tools", [])}
        shown = [tool["function"]["name"] for tool in (*got.tools, *got.aside.get("deferred_tools", ()))]
        assert set(shown) == names
        assert len(shown) == len(names)
        assert got.sampling == {"max_tokens": body["max_tokens"]}
        assert (got.model, got.stream) == (body["model"], body.get("stream", False))
    assert decoded >= 5


@pytest.mark.parametrize("harness", HARNESSES)
def test_roles_come_in_the_order_in_which_they_were_sent(harness: str) -> None:
    for request in recorded(harness):
        body = request["body"]
        if is_web_search(body):
            continue
        sent = ["system"] if body.get("system") else []
        for message in body["messages"]:
            blocks = message["content"] if isinstance(message["content"], list) else [{"type": "text"}]
            kinds = ["tool" if block["type"] == "tool_result" else message["role"] for block in blocks]
            sent += [kind for i, kind in enumerate(kinds) if kind == "tool" or i == 0 or kinds[i - 1] != kind]
        roles = [message.role for message in decode(body).messages]
        assert roles == [role for i, role in enumerate(sent) if role != "assistant" or i == 0 or sent[i - 1] != role]


def breaks(chain: Sequence[ChatRequest]) -> list[tuple[Message, Message]]:
    """First differing messages of each pair of requests of which the later does not extend the earlier."""
    return [
        next((a, b) for a, b in zip(one.messages, two.messages, strict=False) if a != b)
        for one, two in pairwise(chain)
        if two.messages[: len(one.messages)] != one.messages
    ]


def test_each_chain_of_claude_code_only_grows_and_its_tools_stay() -> None:
    pairs = 0
    broken = []
    for (run, _), chain in chains("claude-code").items():
        broken += [run for _ in breaks(chain)]
        pairs += len(chain) - 1
        assert all(one.tools == two.tools for one, two in pairwise(chain)), run
    assert broken == ["cn-toolong"], "only the compaction rewrites a history"
    assert pairs >= 60


def test_a_deferred_tool_comes_in_where_it_is_referenced_and_the_head_stays() -> None:
    first, second, *_ = next(chain for (run, _), chain in chains("claude-code").items() if run == "cn-tools")
    assert len(second.aside["deferred_tools"]) == len(first.aside["deferred_tools"]) + 2
    assert second.tools == first.tools
    assert "DeferredToolPlaceholder" not in str(second.tools)
    loaded = second.messages[-1]
    assert loaded.role == "tool"
    assert isinstance(loaded.content, tuple)
    definitions = [msgspec.json.decode(part["text"]) for part in loaded.content]
    assert [definition["function"]["name"] for definition in definitions] == ["WebFetch", "WebSearch"]
    assert all(definition in second.aside["deferred_tools"] for definition in definitions)


def test_input_that_claude_code_could_not_parse_comes_back_as_it_was_sampled() -> None:
    (chain,) = [chain for (run, _), chain in chains("claude-code").items() if run == "cn-malformed"]
    calls = [call.arguments for message in chain[-1].messages for call in message.tool_calls]
    assert calls == ['{"command": "echo ', "echo hello", '{"wrong_param": 1}', '{"x": 1}', "{}"]


def test_only_a_merged_user_message_breaks_a_chain_of_mini_swe_agent() -> None:
    ((_, chain),) = chains("mini-swe-agent-anthropic").items()
    for before, after in breaks(chain):
        assert (before.role, after.role) == ("user", "user")
        assert isinstance(after.content, tuple)
        assert after.content[0]["text"] == before.text()


def test_a_search_that_only_the_cloud_can_do_stops_without_a_400() -> None:
    searches = [request["body"] for request in recorded("claude-code") if is_web_search(request["body"])]
    assert searches
    for body in searches:
        with pytest.raises(RequestError, match=WEB_SEARCH) as caught:
            decode(body)
        assert (caught.value.status, caught.value.param) == (403, "tools[0].type")


@pytest.mark.parametrize("harness", HARNESSES)
def test_marks_are_kept_and_credentials_are_not(harness: str) -> None:
    agents = set()
    for request in recorded(harness):
        tags = PROTOCOL.tagged(dict(request["headers"]))
        assert tags["user-agent"] == dict(request["headers"])["User-Agent"]
        assert not {"authorization", "x-api-key", "cookie"} & tags.keys()
        assert not any("dummy" in value for value in tags.values())
        agents.add(tags.get("x-claude-code-agent-id"))
        if harness == "claude-code":
            assert tags["x-claude-code-session-id"]
            assert tags["x-stainless-retry-count"] == "0"
            assert tags["anthropic-beta"]
    assert (len(agents) > 1) == (harness == "claude-code")
