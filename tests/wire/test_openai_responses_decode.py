"""Responses requests: items become turns, tools become functions, what cannot be honoured is refused by name."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolltape.chat import ChatRequest, Message, ToolCall
from rolltape.errors import RequestError
from rolltape.wire import WireProtocol
from rolltape.wire.openai_responses import OpenAIResponses

PROTOCOL: WireProtocol = OpenAIResponses()
USER = {"role": "user", "content": "hi"}
SHELL = {"type": "function", "name": "shell", "parameters": {"type": "object"}, "strict": False}
SPAWN = {"type": "function", "name": "spawn", "description": "d", "parameters": {}, "strict": False}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'}
PATCH = {"type": "custom", "name": "patch", "description": "Edits files.", "format": GRAMMAR}
A, B = "a" * 32, "b" * 32


def decode(*items: Any, **fields: Any) -> ChatRequest:
    return decode_bytes(msgspec.json.encode({"model": "m", "input": list(items) or [USER]} | fields))


def decode_bytes(body: bytes) -> ChatRequest:
    return PROTOCOL.decode("/v1/responses", body, {})


def refused(*items: Any, **fields: Any) -> str | None:
    with pytest.raises(RequestError) as caught:
        decode(*items, **fields)
    assert caught.value.status == 400
    return caught.value.param


def thought(text: str, call: str | None = None) -> dict[str, Any]:
    item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}
    return item | ({"id": f"rs_{call}"} if call else {})


def said(text: str, call: str | None = None) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"type": "message", "role": "assistant", "content": [part]}
    return item | ({"id": f"msg_{call}"} if call else {})


def called(call_id: str, call: str | None = None, **more: Any) -> dict[str, Any]:
    item = {"type": "function_call", "call_id": call_id, "name": "shell", "arguments": "{ }", **more}
    return item | ({"id": f"fc_{call}"} if call else {})


def output(call_id: str, value: Any = "done") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": value}


# Items and turns


def test_input_may_be_a_string_and_instructions_come_first() -> None:
    assert decode(input="go", instructions="be terse").messages == (
        Message("system", "be terse"),
        Message("user", "go"),
    )


def test_messages_of_every_role_keep_the_form_of_their_content() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b", "new": 1}]
    got = decode({"role": "system", "content": "s"}, {"type": "message", "role": "developer", "content": parts}, USER)
    assert got.messages == (
        Message("system", "s"),
        Message("developer", ({"type": "text", "text": "a"}, {"type": "text", "text": "b", "new": 1})),
        Message("user", "hi"),
    )


def test_images_and_files_become_the_parts_that_chat_has_for_them() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low", "file_id": None}
    file = {"type": "input_file", "filename": "a.txt", "file_data": "data:,x"}
    (message,) = decode({"role": "user", "content": [image, file]}).messages
    assert message.content == (
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}},
        {"type": "file", "file": {"filename": "a.txt", "file_data": "data:,x"}},
    )


def test_an_echoed_turn_is_one_message() -> None:
    got = decode(
        USER, thought("hm", A), said("ok", A), called("c1", A), called("c2", f"{A}_1"), output("c1"), output("c2")
    )
    _, message, first, second = got.messages
    assert (message.reasoning, message.content) == ("hm", "ok")
    assert message.tool_calls == (ToolCall("c1", "shell", "{ }"), ToolCall("c2", "shell", "{ }"))
    assert [rest["id"] for rest in message.aside["items"]] == [f"rs_{A}", f"msg_{A}", f"fc_{A}", f"fc_{A}_1"]
    assert (first.role, first.tool_call_id, second.tool_call_id) == ("tool", "c1", "c2")


def test_texts_and_thoughts_that_one_call_interleaved_stay_one_turn() -> None:
    items = (thought("a", A), said("b", A), thought("c", f"{A}_1"), called("c1", A), said("d", f"{A}_1"))
    (turn,) = decode(*items).messages
    assert (turn.reasoning, turn.content, len(turn.tool_calls)) == ("ac", "bd", 1)


@pytest.mark.parametrize(
    ("items", "turns"),
    [
        ((said("a", A), called("c", B)), 2),
        ((thought("a", A), thought("b", B)), 2),
        ((said("a"), said("b")), 2),
        ((said("a"), thought("b")), 2),
        ((called("c"), said("b")), 2),
        ((thought("a"), said("b"), called("c"), called("d")), 1),
        ((thought("a", A), said("b"), called("c")), 1),
    ],
)
def test_a_turn_ends_where_another_call_begins(items: tuple[Any, ...], turns: int) -> None:
    assert len(decode(*items).messages) == turns


def test_reasoning_in_full_is_preferred_to_its_summary_and_sealed_reasoning_is_kept() -> None:
    item = thought("short") | {"content": [{"type": "reasoning_text", "text": "long"}], "encrypted_content": "xyz"}
    (turn,) = decode(item).messages
    assert turn.reasoning == "long"
    (rest,) = turn.aside["items"]
    assert rest == {"type": "reasoning", "summary": item["summary"], "encrypted_content": "xyz"}


def test_reasoning_without_a_text_says_nothing_and_is_kept_for_the_record() -> None:
    sealed = {"type": "reasoning", "summary": [], "encrypted_content": "xyz"}
    got = decode(USER, sealed, USER)
    assert [message.role for message in got.messages] == ["user", "user"]
    assert got.aside["unseen_items"] == [{"before_message": 1, "type": "reasoning", "encrypted_content": "xyz"}]
    (turn,) = decode(sealed, said("a")).messages
    assert (turn.reasoning, turn.content) == (None, "a")


@pytest.mark.parametrize("arguments", ['{"path": "a, "n": ', "", "not json", '{ "b" :1,\t"a":2}', '"\\u00e9"'])
def test_arguments_stay_the_text_they_were(arguments: str) -> None:
    (turn,) = decode(called("c1") | {"arguments": arguments}).messages
    assert turn.tool_calls[0].arguments == arguments


def test_outputs_may_be_text_or_parts() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "data:,"}]
    _, text, mixed = decode(called("c1"), output("c1", ""), output("c1", parts)).messages
    assert text.content == ""
    assert mixed.content == ({"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:,"}})


def test_calls_of_other_forms_are_calls() -> None:
    custom = {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": 'é "x"\n'}
    shell = {"type": "local_shell_call", "call_id": "c2", "action": {"type": "exec", "command": ["ls"]}}
    done = {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"}
    turn, result = decode(custom, shell, done).messages
    assert turn.tool_calls == (
        ToolCall("c1", "patch", '{"input": "é \\"x\\"\\n"}'),
        ToolCall("c2", "local_shell", '{"type":"exec","command":["ls"]}'),
    )
    assert (result.role, result.tool_call_id, result.content) == ("tool", "c1", "ok")


def test_items_that_chat_has_no_form_for_are_kept_with_their_place() -> None:
    search = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "q"},
    }
    compaction = {"type": "compaction", "encrypted_content": "xyz"}
    got = decode(compaction, USER, search, said("a"))
    assert [message.role for message in got.messages] == ["user", "assistant"]
    assert got.aside["unseen_items"] == [
        {"before_message": 0, **compaction},
        {"before_message": 1, **search},
    ]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "item_reference", "id": "msg_1"}, "input[0].type"),
        ({"type": "file_search_call", "id": "fs"}, "input[0].type"),
        ({"content": "hi"}, "input[0].type"),
        ("hi", "input[0]"),
        ({"role": "tool", "content": "hi"}, "input[0].role"),
        ({"role": "user"}, "input[0].content"),
        ({"role": "user", "content": [{"type": "input_video"}]}, "input[0].content[0].type"),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}, "input[0].content[0].file_id"),
        (called("c1") | {"arguments": {}}, "input[0].arguments"),
        (called("c1") | {"namespace": 1}, "input[0].namespace"),
        ({"type": "function_call", "call_id": "c1", "arguments": ""}, "input[0].name"),
        ({"type": "function_call_output", "output": ""}, "input[0].id"),
    ],
)
def test_an_item_that_cannot_be_read_is_named(item: Any, param: str) -> None:
    assert refused(item) == param


# Tools


def test_functions_are_told_to_engines_as_chat_tells_them() -> None:
    got = decode(tools=[SHELL | {"defer_loading": True}])
    assert got.tools == (
        {"type": "function", "function": {"name": "shell", "parameters": {"type": "object"}, "strict": False}},
    )
    assert got.aside["tool_notes"] == {"shell": {"defer_loading": True}}


def test_a_custom_tool_is_a_function_with_one_text_and_its_grammar_in_words() -> None:
    ((function,),) = ([tool["function"] for tool in decode(tools=[PATCH]).tools],)
    assert (function["name"], function["description"]) == ("patch", "Edits files.")
    assert function["parameters"]["required"] == ["input"]
    assert function["parameters"]["properties"]["input"] == {
        "type": "string",
        "description": 'Text in this lark grammar:\nstart: "x"',
    }


def test_tools_may_come_as_an_item() -> None:
    item = {"type": "additional_tools", "role": "developer", "tools": [SHELL, PATCH]}
    got = decode(item, USER)
    assert [tool["function"]["name"] for tool in got.tools] == ["shell", "patch"]
    assert got.messages == (Message("user", "hi"),)


def test_tools_of_the_vendors_servers_are_not_shown_but_kept() -> None:
    hosted = [{"type": "web_search_2025_08_26"}, {"type": "mcp", "server_label": "x"}, {"type": "tool_search"}]
    got = decode(tools=[SHELL, *hosted], tool_choice="required")
    assert len(got.tools) == 1
    assert got.aside["hosted_tools"] == hosted


def test_two_tools_that_would_share_a_flat_name_are_refused() -> None:
    namespace = {"type": "namespace", "name": "a", "tools": [SPAWN]}
    assert refused(tools=[namespace, SPAWN | {"name": "a__spawn"}]) == "tools[1].name"
    assert refused(tools=[SPAWN, PATCH | {"name": "spawn"}]) == "tools[1].name"


@pytest.mark.parametrize("choice", ["none", "auto", "required", None])
def test_a_plain_tool_choice_is_kept(choice: str | None) -> None:
    assert decode(tools=[SHELL], tool_choice=choice).tool_choice == choice


def test_a_named_tool_choice_takes_chats_form() -> None:
    tools = [PATCH, {"type": "namespace", "name": "ns", "tools": [SPAWN]}]
    custom = decode(tools=tools, tool_choice={"type": "custom", "name": "patch"})
    spaced = decode(tools=tools, tool_choice={"type": "function", "name": "spawn", "namespace": "ns"})
    assert custom.tool_choice == {"type": "function", "function": {"name": "patch"}}
    assert spaced.tool_choice == {"type": "function", "function": {"name": "ns__spawn"}}


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "web_search"},
        {"type": "allowed_tools", "mode": "auto", "tools": []},
        {"type": "function", "name": "other"},
        {"type": "function"},
        "sometimes",
        7,
    ],
)
def test_a_tool_choice_that_cannot_be_honoured_is_refused(choice: Any) -> None:
    assert str(refused(tools=[SHELL, {"type": "web_search"}], tool_choice=choice)).startswith("tool_choice")


def test_a_tool_call_cannot_be_demanded_where_the_model_is_shown_no_tool() -> None:
    assert refused(tools=[{"type": "web_search"}], tool_choice="required") == "tool_choice"


# Other fields


def test_sampling_has_chats_names() -> None:
    got = decode(temperature=0.5, top_p=0.9, max_output_tokens=64, top_k=5, presence_penalty=None)
    assert got.sampling == {"max_tokens": 64, "temperature": 0.5, "top_k": 5, "top_p": 0.9}


def test_a_json_schema_takes_chats_form() -> None:
    form = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    got = decode(text={"format": form, "verbosity": "low"})
    assert got.response_format == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
    }
    assert got.extra["verbosity"] == "low"
    assert decode(text={"format": {"type": "text"}}).response_format is None
    assert decode(text={"format": {"type": "json_object"}}).response_format == {"type": "json_object"}


def test_what_only_this_dialect_knows_is_kept_apart_from_what_an_engine_may_be_sent() -> None:
    own = {
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "low", "summary": "auto"},
        "client_metadata": {"a": "b"},
        "truncation": "auto",
    }
    shared = {
        "store": True,
        "prompt_cache_key": "k",
        "parallel_tool_calls": False,
        "service_tier": "auto",
        "metadata": {"x": "y"},
        "user": "u",
        "brand_new": 1,
    }
    got = decode(**own, **shared)
    assert (got.extra, got.aside) == ({**shared, "reasoning_effort": "low"}, own)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("previous_response_id", "resp_1"),
        ("conversation", "conv_1"),
        ("conversation", {"id": "conv_1"}),
        ("background", True),
        ("prompt", {"id": "pmpt_1"}),
        ("context_management", [{"type": "compaction"}]),
        ("n", 2),
        ("top_logprobs", 5),
        ("include", ["message.output_text.logprobs"]),
        ("include", "all"),
        ("max_output_tokens", 0),
        ("max_output_tokens", "many"),
        ("instructions", ["be terse"]),
        ("text", "json"),
        ("reasoning", "high"),
        ("stream", "yes"),
        ("model", ""),
        ("input", None),
        ("input", []),
        ("input", 7),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(field: str, value: Any) -> None:
    assert refused(**{field: value}) == field


@pytest.mark.parametrize("field", ["previous_response_id", "conversation", "prompt", "context_management"])
def test_null_and_values_that_say_what_happens_anyway_are_no_reason_to_refuse(field: str) -> None:
    assert decode(**{field: None}, background=False, top_logprobs=0, n=1).extra == {}


# Any bytes


def status(body: bytes) -> int:
    """200, or the status of the refusal; what decodes is written down as the record does."""
    try:
        msgspec.json.encode(decode_bytes(body))
    except RequestError as error:
        return error.status
    return 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
KINDS = st.sampled_from(
    ["message", "reasoning", "function_call", "custom_tool_call", "local_shell_call", "function_call_output",
     "additional_tools", "web_search_call", "compaction", "item_reference"]
)  # fmt: skip
ITEM_KEYS = ("id", "role", "content", "summary", "call_id", "name", "arguments", "input", "output", "tools", "action")
ITEM = st.fixed_dictionaries({"type": KINDS}, optional={key: JSON | st.just("x") for key in ITEM_KEYS}) | JSON
TOOL = st.fixed_dictionaries(
    {"type": st.sampled_from(["function", "custom", "namespace", "web_search", "x"])},
    optional=dict.fromkeys(("name", "tools", "format", "parameters"), JSON),
)
FIELDS = ("instructions", "text", "reasoning", "include", "tool_choice", "temperature", "max_output_tokens", "stream")


@settings(max_examples=300, deadline=None)
@given(
    st.fixed_dictionaries(
        {"model": st.just("m"), "input": st.lists(ITEM, max_size=4) | JSON},
        optional={"tools": st.lists(TOOL, max_size=3)} | dict.fromkeys(FIELDS, JSON),
    )
)
def test_any_request_decodes_or_is_refused_and_what_decodes_can_be_written(body: Any) -> None:
    assert status(msgspec.json.encode(body)) in (200, 400)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_decode_or_are_refused(body: bytes) -> None:
    assert status(body) == 400
