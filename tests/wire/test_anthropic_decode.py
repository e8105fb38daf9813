"""Messages requests: each everyday form and its canonical one, and what is refused by name."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolltape.chat import ChatRequest, Message
from rolltape.errors import RequestError
from rolltape.wire import WireProtocol
from rolltape.wire.anthropic_messages import AnthropicMessages

PROTOCOL: WireProtocol = AnthropicMessages()
USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
BASH = {"name": "Bash", "description": "Run it.", "input_schema": SCHEMA}
LATER = {"name": "Fetch", "input_schema": {"type": "object"}, "defer_loading": True}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
MARK = {"cache_control": {"type": "ephemeral"}}


def decode(**fields: Any) -> ChatRequest:
    return decode_bytes(msgspec.json.encode({"model": "m", "max_tokens": 9, "messages": [USER]} | fields))


def decode_bytes(body: bytes) -> ChatRequest:
    return PROTOCOL.decode("/v1/messages", body, {})


def refused(**fields: Any) -> str | None:
    with pytest.raises(RequestError) as caught:
        decode(**fields)
    assert caught.value.status == 400
    assert caught.value.param is not None
    assert caught.value.param.split("[")[0].split(".")[0] in caught.value.message
    return caught.value.param


def user(*blocks: dict[str, Any]) -> list[dict[str, Any]]:
    return decode_messages({"role": "user", "content": list(blocks)})


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return decode_messages({"role": "assistant", "content": list(blocks)}, USER)[0]


def decode_messages(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**message.to_openai(), **message.aside} for message in decode(messages=list(messages)).messages]


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def result(content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "t1", "content": content, **more}


def use(value: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": "t1", "name": "Bash", "input": value, **more}


# System texts


def test_the_system_text_keeps_its_blocks_and_is_the_first_message() -> None:
    blocks = [text("billing"), text("identity", **MARK), text("long", **MARK)]
    first, second = decode(system=blocks).messages
    assert first == Message("system", (text("billing"), text("identity"), text("long")))
    assert second == Message("user", "hi")
    assert decode(system="S").messages[0] == decode(system=[text("S")]).messages[0] == Message("system", "S")
    assert decode(system="").messages == decode(system=[]).messages == decode().messages


def test_system_messages_inside_the_list_stay_where_they_stand_in_every_turn() -> None:
    turns = [
        {"role": "user", "content": "u1"}, {"role": "assistant", "content": "a1"},
        {"role": "system", "content": "reminder 1"}, {"role": "user", "content": "u2"},
        {"role": "assistant", "content": "a2"}, {"role": "system", "content": "reminder 2"},
        {"role": "user", "content": "u3"},
    ]  # fmt: skip
    one, two, three = (decode(system="S", messages=turns[:n]).messages for n in (1, 4, 7))
    assert [message.role for message in two] == ["system", "user", "assistant", "system", "user"]
    assert {messages[0].content for messages in (one, two, three)} == {"S"}
    assert two[: len(one)] == one
    assert three[: len(two)] == two


# User turns


@pytest.mark.parametrize("role", ["user", "system"])
def test_a_text_is_the_same_message_in_either_form_with_or_without_a_cache_mark(role: str) -> None:
    forms: list[Any] = ["a", [text("a")], [text("a", **MARK)], [text("a", citations=None)]]
    messages = [{"role": role, "content": form} for form in forms]
    assert decode_messages(*messages, USER)[:-1] == [{"role": role, "content": "a"}] * 4


def test_several_texts_stay_several_parts() -> None:
    assert user(text("a"), text("b", **MARK)) == [{"role": "user", "content": [text("a"), text("b")]}]


@pytest.mark.parametrize(
    ("source", "url"),
    [
        ({"type": "base64", "media_type": "image/png", "data": "iVBO"}, "data:image/png;base64,iVBO"),
        ({"type": "url", "url": "https://x/y.png"}, "https://x/y.png"),
    ],
)
def test_images_become_image_urls(source: dict[str, str], url: str) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    image = {"type": "image", "source": source, **MARK}
    assert user(image) == [{"role": "user", "content": [part]}]
    assert user(result([text("a"), image]))[0]["content"] == [text("a"), part]


def test_results_and_texts_become_tool_and_user_messages_in_order() -> None:
    sent = [result("r1"), result("r2", tool_use_id="t2"), text("a"), text("b"), result("r3"), text("c")]
    assert [(m["role"], m["content"]) for m in user(*sent)] == [
        ("tool", "r1"), ("tool", "r2"), ("user", [text("a"), text("b")]), ("tool", "r3"), ("user", "c"),
    ]  # fmt: skip
    assert [m.get("tool_call_id") for m in user(*sent)] == ["t1", "t2", None, "t1", None]


@pytest.mark.parametrize("content", ["out", [text("out")], [text("out", **MARK)]])
def test_a_result_is_the_same_in_either_form(content: Any) -> None:
    assert user(result(content, **MARK)) == [{"role": "tool", "content": "out", "tool_call_id": "t1"}]


def test_an_empty_result_is_an_empty_text_and_an_error_stays_marked() -> None:
    empty: list[dict[str, Any]] = [result(None), result([]), result("")]
    assert [message["content"] for message in user(*empty)] == ["", "", ""]
    assert user(result("no", is_error=True))[0]["is_error"] is True
    assert "is_error" not in user(result("no"))[0]


def test_a_reference_shows_the_deferred_tool_and_any_other_reference_itself() -> None:
    references = [{"type": "tool_reference", "tool_name": name} for name in ("Fetch", "Bash")]
    request = decode(tools=[LATER, BASH], messages=[{"role": "user", "content": [result(references)]}])
    definition = '{"type": "function", "function": {"name": "Fetch", "parameters": {"type": "object"}}}'
    content = [text(definition), text('{"type": "tool_reference", "tool_name": "Bash"}')]
    assert request.messages[0].content == tuple(content)


# Assistant turns


def test_text_thinking_and_calls_have_fields_of_their_own() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "sig"}
    assert assistant(thinking, text("look"), use({"command": "ls"}), use({}, id="t2")) == {
        "role": "assistant",
        "content": "look",
        "reasoning_content": "hm",
        "thinking_blocks": [{"type": "thinking", "signature": "sig", "chars": 2}],
        "tool_calls": [
            {"id": "t1", "type": "function", "function": {"name": "Bash", "arguments": '{"command": "ls"}'}},
            {"id": "t2", "type": "function", "function": {"name": "Bash", "arguments": "{}"}},
        ],
    }


@pytest.mark.parametrize("mark", [{}, {"signature": ""}, {"signature": "s", **MARK}])
def test_thinking_is_read_with_any_signature_or_none(mark: dict[str, Any]) -> None:
    got = assistant({"type": "thinking", "thinking": "hm", **mark}, text("a"))
    assert (got["reasoning_content"], got["content"]) == ("hm", "a")
    assert got["thinking_blocks"][0].get("signature") == mark.get("signature")


def test_redacted_thinking_is_kept_and_shown_to_no_one() -> None:
    redacted = {"type": "redacted_thinking", "data": "xyz"}
    assert assistant(redacted, text("a")) == {"role": "assistant", "content": "a", "thinking_blocks": [redacted]}


def test_blocks_in_an_unusual_order_leave_a_trace_of_it() -> None:
    assert assistant(use({}), text("after"))["block_order"] == ["tool_use", "text"]
    assert "block_order" not in assistant(text("before"), use({}))


@pytest.mark.parametrize(("content", "read"), [("a", "a"), ("", ""), ([], ""), ([text("a ")], "a "), ([use({})], None)])
def test_assistant_content_is_text_or_nothing_beside_calls(content: Any, read: str | None) -> None:
    assert decode_messages({"role": "assistant", "content": content}, USER)[0]["content"] == read


@pytest.mark.parametrize(
    ("value", "arguments"),
    [
        ({"b": 1, "a": {"é": [1.5, None, True]}}, '{"b": 1, "a": {"é": [1.5, null, true]}}'),
        ({"t": 'a"\\\n\u2028'}, '{"t": "a\\"\\\\\\n\u2028"}'),
        ({"__unparsedToolInput": {"raw": "echo 😀", "len": 7}}, "echo 😀"),
        ({"__unparsedToolInput": {"raw": "cut", "len": 99}}, '{"__unparsedToolInput": {"raw": "cut", "len": 99}}'),
        ({"__unparsedToolInput": "x"}, '{"__unparsedToolInput": "x"}'),
        ([1, 2], "[1, 2]"),
        ("x", '"x"'),
        (None, "null"),
    ],
)
def test_arguments_have_one_spelling_in_the_order_received(value: Any, arguments: str) -> None:
    got = assistant(use(value, **MARK))["tool_calls"][0]
    assert got == {"id": "t1", "type": "function", "function": {"name": "Bash", "arguments": arguments}}


# Tools


def test_tools_become_functions_and_what_no_prompt_shows_is_kept() -> None:
    sent = [{**BASH, **MARK, "type": "custom", "strict": True, "input_examples": [{}]}, LATER, SEARCH]
    request = decode(tools=sent)
    function = {"name": "Bash", "description": "Run it.", "parameters": SCHEMA, "strict": True}
    assert request.tools == ({"type": "function", "function": function},)
    deferred = {"type": "function", "function": {"name": "Fetch", "parameters": {"type": "object"}}}
    assert request.aside == {
        "deferred_tools": [deferred],
        "server_tools": [SEARCH],
        "tool_details": {"Bash": {"input_examples": [{}]}},
    }


def test_deferred_tools_are_shown_at_once_where_only_the_cloud_could_search_them() -> None:
    search = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
    assert [tool["function"]["name"] for tool in decode(tools=[search, LATER]).tools] == ["Fetch"]


@pytest.mark.parametrize(
    ("choice", "value"),
    [
        ({"type": "auto"}, "auto"), ({"type": "any"}, "required"), ({"type": "none"}, "none"),
        ({"type": "tool", "name": "Bash"}, {"type": "function", "function": {"name": "Bash"}}), (None, None),
    ],
)  # fmt: skip
def test_a_choice_among_tools_takes_openais_form(choice: Any, value: Any) -> None:
    request = decode(tools=[BASH], tool_choice=choice)
    assert (request.tool_choice, request.extra) == (value, {})


def test_one_call_at_a_time_is_asked_for_as_openai_does() -> None:
    request = decode(tools=[BASH], tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert (request.tool_choice, request.extra) == ("auto", {"parallel_tool_calls": False})


# Request fields


def test_sampling_fields_are_gathered() -> None:
    request = decode(temperature=0, top_p=0.9, top_k=5, stop_sequences=["X"], seed=3, min_p=None)
    assert request.sampling == {
        "max_tokens": 9, "seed": 3, "stop": ["X"], "temperature": 0, "top_k": 5, "top_p": 0.9,
    }  # fmt: skip
    assert "stop" not in decode(stop_sequences=[]).sampling


def test_fields_that_only_the_cloud_knows_are_tolerated_and_kept() -> None:
    cloud = {
        "metadata": {"user_id": "{}"}, "thinking": {"type": "adaptive", "display": "updates"}, "container": "c",
        "context_management": {"edits": []}, "service_tier": "auto", "mcp_servers": [], "betas": ["x"], "zz": None,
    }  # fmt: skip
    assert decode(**cloud, **MARK, n=1, stream_options={}).aside == cloud


def test_a_schema_for_the_output_takes_openais_form() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    expected = {
        "type": "json_schema",
        "json_schema": {"name": "output", "schema": {"type": "object"}, "strict": True},
    }
    request = decode(output_config={"effort": "high", "format": form})
    assert (request.response_format, request.aside) == (expected, {"output_config": {"effort": "high"}})
    assert decode(output_format=form).response_format == expected


def test_a_count_needs_no_token_limit_and_may_end_with_the_assistant() -> None:
    messages = [USER, {"role": "assistant", "content": "a"}]
    body = msgspec.json.encode({"model": "m", "messages": messages})
    assert len(PROTOCOL.decode("/v1/messages/count_tokens", body, {}).messages) == 2


def test_a_reply_is_never_a_guess_at_a_prefilled_turn() -> None:
    assert refused(messages=[USER, {"role": "assistant", "content": "{"}]) == "messages"


# Refusals


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (None, "messages[0].content"), (7, "messages[0].content"), ([7], "messages[0].content[0]"),
        ([{}], "messages[0].content[0]"), ([{"type": "text"}], "messages[0].content[0].text"),
        ([{"type": "document", "source": {}}], "messages[0].content[0].type"),
        ([{"type": "search_result"}], "messages[0].content[0].type"),
        ([use({})], "messages[0].content[0].type"),
        ([{"type": "image"}], "messages[0].content[0].source"),
        ([{"type": "image", "source": {"type": "file"}}], "messages[0].content[0].source.type"),
        ([{"type": "image", "source": {"type": "url"}}], "messages[0].content[0].source.url"),
        ([{"type": "tool_result"}], "messages[0].content[0].tool_use_id"),
        ([result(3)], "messages[0].content[0].content"),
        ([result([{"type": "tool_reference"}])], "messages[0].content[0].content[0].tool_name"),
        ([result([{"type": "document"}])], "messages[0].content[0].content[0].type"),
    ],
)  # fmt: skip
def test_user_content_that_cannot_be_read_or_shown_is_refused_by_its_path(content: Any, param: str) -> None:
    assert refused(messages=[{"role": "user", "content": content}]) == param


@pytest.mark.parametrize(
    ("block", "param"),
    [
        ({"type": "tool_use", "id": "t", "name": "f"}, "input"), ({"type": "tool_use", "name": "f", "input": {}}, "id"),
        ({"type": "tool_use", "id": "t", "input": {}}, "name"), ({"type": "thinking"}, "thinking"),
        ({"type": "server_tool_use"}, "type"), (result("x"), "type"), ({"type": "image"}, "type"),
    ],
)  # fmt: skip
def test_assistant_blocks_that_cannot_be_read_are_refused_by_their_path(block: dict[str, Any], param: str) -> None:
    assert refused(messages=[{"role": "assistant", "content": [block]}, USER]) == f"messages[0].content[0].{param}"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"), ({"max_tokens": None}, "max_tokens"), ({"max_tokens": 0}, "max_tokens"),
        ({"messages": None}, "messages"), ({"messages": []}, "messages"), ({"messages": ["a"]}, "messages[0]"),
        ({"messages": [{"role": "tool", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": "system", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
        ({"system": 3}, "system"), ({"system": [3]}, "system[0]"), ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"stream": "yes"}, "stream"), ({"temperature": -1}, "temperature"), ({"top_k": 1.5}, "top_k"),
        ({"stop_sequences": "x"}, "stop_sequences"), ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop": ["x"]}, "stop"), ({"n": 2}, "n"), ({"logprobs": True}, "logprobs"),
        ({"tools": {}}, "tools"), ({"tools": [3]}, "tools[0]"), ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [BASH | {"description": 3}]}, "tools[0].description"),
        ({"tools": [BASH, {"type": "bash_20250124", "name": "bash"}]}, "tools[1].type"),
        ({"tools": [{"type": ["web_search_"]}]}, "tools[0].type"),
        ({"tool_choice": "auto"}, "tool_choice"), ({"tool_choice": {"type": "all"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "f"}, "tools": [BASH]}, "tool_choice.name"),
        ({"output_config": 3}, "output_config"), ({"output_config": {"format": 3}}, "output_config.format"),
        ({"output_format": {"type": "json"}}, "output_format"),
        (
            {"tools": [BASH], "tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}},
            "tool_choice.disable_parallel_tool_use",
        ),
    ],
)  # fmt: skip
def test_a_malformed_field_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields) == param


# Any bytes

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
KINDS = (
    "text", "image", "tool_use", "tool_result", "tool_reference", "thinking", "redacted_thinking", "document", "zz",
)  # fmt: skip
block = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(KINDS) | json_values,
        **dict.fromkeys(("text", "id", "name", "input", "thinking", "signature", "tool_name", "source"), json_values),
        "tool_use_id": st.text() | json_values,
        "content": st.text() | st.lists(st.fixed_dictionaries({"type": st.sampled_from(KINDS), "text": st.text()})),
    },
)
message = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["user", "assistant", "system"]) | json_values,
        "content": st.text() | st.lists(block, max_size=3) | json_values,
        "zz": json_values,
    },
)
FIELDS = (
    "model", "system", "tools", "tool_choice", "max_tokens", "stop_sequences", "output_config", "stream", "temperature",
    "thinking", "metadata",
)  # fmt: skip
bodies = st.fixed_dictionaries(
    {"messages": st.lists(message, max_size=3) | json_values},
    optional={**dict.fromkeys(FIELDS, json_values), "model": st.just("m"), "max_tokens": st.just(5)},
)


def decodes_or_refuses(body: bytes) -> None:
    try:
        request = decode_bytes(body)
    except RequestError as refusal:
        error = refusal
    else:
        assert msgspec.json.encode(request)
        assert all({**message.to_openai(), **message.aside} for message in request.messages)
        return
    assert error.status in (400, 403)
    assert PROTOCOL.encode_error(error).body


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_refused(body: bytes) -> None:
    decodes_or_refuses(body)


@settings(max_examples=250, deadline=None)
@given(bodies)
def test_any_json_decodes_or_is_refused(body: dict[str, Any]) -> None:
    decodes_or_refuses(msgspec.json.encode(body))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["user", "assistant", "system"]), min_size=1, max_size=8), st.data())
def test_a_longer_list_of_messages_extends_a_shorter_one(roles: list[str], data: st.DataObject) -> None:
    sent = [{"role": role, "content": data.draw(st.text(max_size=3))} for role in roles]
    shorter = decode(system="S", messages=[*sent, USER]).messages
    longer = decode(system="S", messages=[*sent, USER, *sent, USER]).messages
    assert longer[: len(shorter)] == shorter
