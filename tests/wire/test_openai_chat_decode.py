"""Chat requests: what harnesses send decodes without loss, what cannot be honoured is refused by name."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolltape.chat import ChatRequest, Message
from rolltape.errors import RequestError
from rolltape.wire import WireProtocol
from rolltape.wire.openai_chat import OpenAIChat

from .traffic import HARNESSES, recorded

PROTOCOL: WireProtocol = OpenAIChat()
USER = {"role": "user", "content": "hi"}
BASH = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}


def decode(**fields: Any) -> ChatRequest:
    return decode_bytes(msgspec.json.encode({"model": "m", "messages": [USER]} | fields))


def decode_bytes(body: bytes) -> ChatRequest:
    return PROTOCOL.decode("/v1/chat/completions", body, {})


def refusal(body: bytes) -> RequestError:
    with pytest.raises(RequestError) as caught:
        decode_bytes(body)
    assert caught.value.status == 400
    return caught.value


def refused(**fields: Any) -> str | None:
    body = {"model": "m", "messages": [USER]} | fields
    return refusal(msgspec.json.encode(body)).param


def round_trip(message: dict[str, Any]) -> dict[str, Any]:
    return decode(messages=[message]).messages[0].to_openai()


# Real traffic


@pytest.mark.parametrize("harness", HARNESSES)
def test_every_recorded_request_decodes_and_its_messages_come_back_as_sent(harness: str) -> None:
    requests = recorded(harness)
    assert len(requests) >= 18
    for request in requests:
        body = request["body"]
        decoded = decode_bytes(msgspec.json.encode(body))
        assert [message.to_openai() for message in decoded.messages] == body["messages"]
        assert list(decoded.tools) == body.get("tools", [])
        assert decoded.tool_choice == body.get("tool_choice")
        assert decoded.sampling == {k: body[k] for k in ("max_tokens",) if k in body}
        assert (decoded.stream, decoded.stream_usage) == (body.get("stream", False), "stream_options" in body)
        assert decoded.extra == {}


@pytest.mark.parametrize("harness", HARNESSES)
def test_session_and_retry_marks_are_kept_and_credentials_are_not(harness: str) -> None:
    for request in recorded(harness):
        headers = dict(request["headers"])
        tags = PROTOCOL.tagged(headers)
        assert tags["user-agent"] == headers["User-Agent"]
        assert not {"authorization", "x-api-key", "cookie"} & tags.keys()
        assert "dummy-rollout-1" not in tags.values()
        if harness != "opencode":
            assert tags["x-stainless-retry-count"].isdigit()
        else:
            assert tags["x-session-id"].startswith("ses_")


# Messages


@pytest.mark.parametrize(
    "message",
    [
        {"role": "developer", "content": "be terse"},
        {"role": "system", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:"}}],
        },
        {"role": "user", "content": "a", "name": "ann", "unknown": {"deep": [1, None]}},
        {"role": "user", "content": ""},
        {"role": "user", "content": []},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": None, "reasoning_content": "hm", "refusal": None, "function_call": None},
        {"role": "assistant", "content": "a", "reasoning_content": None, "tool_calls": None},
        {"role": "assistant", "content": "a", "tool_calls": []},
        {"role": "assistant", "content": "a", "reasoning_content": "x", "reasoning": "y", "reasoning_details": [{}]},
        {"role": "tool", "content": [{"type": "text", "text": "done"}], "tool_call_id": "c1"},
        {"role": "tool", "content": "done", "tool_call_id": None},
        {"role": "assistant", "content": "half \\ud83d stays text", "annotations": []},
    ],
)
def test_a_message_comes_back_as_it_was_sent(message: dict[str, Any]) -> None:
    assert round_trip(message) == message


@pytest.mark.parametrize("arguments", ['{"path": "a, "n": ', "", "not json", '{ "b" :1,\t"a":2}', '"\\u00e9"', "null"])
def test_tool_arguments_stay_the_text_they_were(arguments: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert round_trip(message) == message
    assert decode(messages=[message]).messages[0].tool_calls[0].arguments == arguments


def test_system_messages_stay_where_they_stand_so_that_a_longer_history_extends_a_shorter_one() -> None:
    shorter = [USER, {"role": "assistant", "content": "a1"}, {"role": "system", "content": "reminder"}, USER]
    longer = [*shorter, {"role": "assistant", "content": "a2"}, {"role": "system", "content": "reminder 2"}, USER]
    assert decode(messages=longer).messages[: len(shorter)] == decode(messages=shorter).messages
    assert [m.role for m in decode(messages=longer).messages] == [m["role"] for m in longer]


def test_unknown_fields_of_a_tool_call_and_of_its_function_are_kept() -> None:
    function = {"name": "f", "arguments": "{}", "strict": True}
    call = {"id": "c1", "type": "function", "function": function, "index": 0, "extra_content": {"g": 1}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    assert round_trip(message) == message


def test_the_normalisations_of_messages_are_these() -> None:
    call = {"id": "c1", "function": {"name": "f", "arguments": "{}"}}
    sent = {"role": "assistant", "reasoning": "hm", "tool_calls": [call]}
    assert round_trip(sent) == {
        "role": "assistant",
        "content": None,
        "reasoning": "hm",
        "reasoning_content": "hm",
        "tool_calls": [{"type": "function", **call}],
    }


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("hi", "messages[0]"),
        ({"content": "a"}, "messages[0].role"),
        ({"role": ["user"], "content": "a"}, "messages[0].role"),
        ({"role": "function", "name": "f", "content": "a"}, "messages[0].role"),
        ({"role": "user", "content": 7}, "messages[0].content"),
        ({"role": "user", "content": {"type": "text"}}, "messages[0].content"),
        ({"role": "user", "content": ["a"]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "tool", "content": "a", "tool_call_id": 3}, "messages[0].tool_call_id"),
        ({"role": "assistant", "function_call": {"name": "f"}}, "messages[0].function_call"),
        ({"role": "assistant", "audio": {"id": "a"}}, "messages[0].audio"),
        ({"role": "assistant", "tool_calls": {}}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": ["f"]}, "messages[0].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "messages[0].tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": [{"type": "custom"}]}, "messages[0].tool_calls[0].type"),
    ],
)
def test_a_message_that_cannot_be_read_is_refused_by_its_path(message: Any, param: str) -> None:
    assert refused(messages=[message]) == param


@pytest.mark.parametrize("arguments", [{"command": "ls"}, None, 3])
def test_tool_arguments_that_are_no_text_are_refused_since_no_such_text_was_sampled(arguments: Any) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    assert refused(messages=[{"role": "assistant", "tool_calls": [call]}]) == (
        "messages[0].tool_calls[0].function.arguments"
    )


# Request fields


def test_sampling_fields_are_gathered_and_null_is_the_same_as_absent() -> None:
    request = decode(temperature=0, top_p=0.9, top_k=20, min_p=None, stop=None, seed=7, logit_bias={"5": -1})
    assert request.sampling == {"logit_bias": {"5": -1}, "seed": 7, "temperature": 0, "top_k": 20, "top_p": 0.9}


@pytest.mark.parametrize(
    ("sent", "asked"),
    [({"max_tokens": 5}, 5), ({"max_completion_tokens": 6}, 6), ({"max_tokens": 5, "max_completion_tokens": 6}, 6)],
)
def test_both_names_of_the_token_limit_mean_the_same_and_the_newer_wins(sent: dict[str, int], asked: int) -> None:
    request = decode(**sent)
    assert (request.sampling, request.extra) == ({"max_tokens": asked}, {})


def test_one_stop_string_becomes_a_list() -> None:
    assert decode(stop="x").sampling["stop"] == decode(stop=["x"]).sampling["stop"] == ["x"]
    assert "stop" not in decode(stop=[]).sampling


def test_log_probs_usage_and_tools_have_fields_of_their_own() -> None:
    options = {"include_usage": True, "include_obfuscation": False}
    request = decode(
        logprobs=True, top_logprobs=0, stream=True, stream_options=options, tools=[BASH], tool_choice="auto"
    )
    assert (request.want_log_probs, request.stream, request.stream_usage) == (True, True, True)
    assert (request.tools, request.tool_choice, request.extra) == ((BASH,), "auto", {})


@pytest.mark.parametrize("choice", ["none", "auto", "required", {"type": "function", "function": {"name": "bash"}}])
def test_a_tool_choice_is_kept_as_sent(choice: Any) -> None:
    assert decode(tools=[BASH], tool_choice=choice).tool_choice == choice


def test_a_response_format_is_kept_as_sent() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}
    assert decode(response_format=schema).response_format == schema


def test_fields_that_only_a_vendor_knows_are_tolerated_and_kept() -> None:
    vendor = {
        "store": False, "metadata": {"a": "b"}, "user": "u", "service_tier": "auto", "prompt_cache_key": "k",
        "safety_identifier": "s", "verbosity": "low", "reasoning_effort": "high", "parallel_tool_calls": True,
        "prediction": {"type": "content", "content": "x"}, "zz": None,
    }  # fmt: skip
    assert decode(**vendor).extra == vendor


def test_values_that_say_what_happens_anyway_are_no_reason_to_refuse() -> None:
    harmless = {"n": 1, "best_of": None, "modalities": ["text"], "functions": None, "echo": False, "audio": None}
    assert decode(**harmless).extra == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 2), ("n", 0), ("best_of", 3), ("use_beam_search", True), ("echo", True), ("audio", {"voice": "v"}),
        ("modalities", ["text", "audio"]), ("functions", []), ("function_call", "auto"), ("web_search_options", {}),
        ("prompt_token_ids", [1]), ("prompt_logprobs", 1),
    ],
)  # fmt: skip
def test_what_would_change_the_meaning_is_refused_by_name(name: str, value: Any) -> None:
    assert refused(**{name: value}) == name


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"), ({"model": ""}, "model"), ({"model": 3}, "model"),
        ({"messages": None}, "messages"), ({"messages": []}, "messages"), ({"messages": "hi"}, "messages"),
        ({"stream": "yes"}, "stream"), ({"stream_options": []}, "stream_options"),
        ({"stream_options": {"include_usage": 1}}, "include_usage"),
        ({"tools": {}}, "tools"), ({"tools": [3]}, "tools[0]"), ({"tools": [{"type": "custom"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function.name"), ({"tool_choice": "some"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"), ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [BASH], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"response_format": "json"}, "response_format"), ({"logprobs": 5}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 1}, "top_logprobs"),
        ({"temperature": "0"}, "temperature"), ({"temperature": -1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"), ({"top_p": 1.1}, "top_p"), ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"), ({"max_completion_tokens": -1}, "max_tokens"), ({"seed": 2**63}, "seed"),
        ({"stop": 3}, "stop"), ({"stop": [""]}, "stop"), ({"return_token_ids": 1}, "return_token_ids"),
    ],
)  # fmt: skip
def test_a_malformed_field_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields) == param


def test_fields_that_only_ask_how_an_engine_tells_its_answer_are_dropped() -> None:
    assert decode(return_tokens_as_token_ids=True, return_prompt_text=True, return_token_ids=False).extra == {}
    assert decode(return_token_ids=True).extra == {"return_token_ids": True}


# Bodies


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b'{"model":NaN}',
        b"[" * 200_000,
        b'{"a":' * 500 + b"1" + b"}" * 500,
    ],
)
def test_a_body_that_is_no_readable_object_is_refused(body: bytes) -> None:
    assert refusal(body).code == "invalid_json"


def test_nesting_is_allowed_up_to_a_limit_that_every_encoder_can_take() -> None:
    def nested(depth: int) -> bytes:
        deep = b"[" * depth + b"]" * depth
        return b'{"model":"m","messages":[{"role":"user","content":"a"}],"x":' + deep + b"}"

    assert msgspec.json.encode(decode_bytes(nested(90)))
    assert refusal(nested(110)).code == "invalid_json"


def test_a_huge_number_is_kept_where_it_means_nothing_and_refused_where_it_steers() -> None:
    huge = b"1" + b"0" * 400
    body = b'{"model":"m","messages":[{"role":"user","content":"a"}],"%s":%s}'
    assert decode_bytes(body % (b"x", huge)).extra == {"x": int(huge)}
    assert refusal(body % (b"max_tokens", huge)).param == "max_tokens"
    assert refusal(body % (b"temperature", b"1e999")).code == "invalid_json"


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (rb"\ud83d", "\ufffd"), (rb"\ude00", "\ufffd"), (rb"\ud83d\ude00", "😀"), (rb"\uD83D\ud83d\ude00", "\ufffd😀"),
        (rb"\\ud83d", r"\ud83d"), (rb"\\\ud83d", "\\\ufffd"), (rb"\ud83dx\n\"", '\ufffdx\n"'),
    ],
)  # fmt: skip
def test_half_a_surrogate_pair_becomes_the_replacement_character_and_nothing_else_does(sent: bytes, read: str) -> None:
    request = decode_bytes(
        b'{"model":"m","messages":[{"role":"user","content":"' + sent + rb'"},{"role":"user","content":"\ud83d"}]}'
    )
    assert [message.content for message in request.messages] == [read, "\ufffd"]
    assert msgspec.json.encode(request)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(
    ["model", "messages", "tools", "tool_choice", "stream", "stream_options", "stop", "n", "logprobs", "top_logprobs",
     "temperature", "max_tokens", "response_format", "return_token_ids", "functions", "seed", "x"]
)  # fmt: skip
message_names = st.sampled_from(["role", "content", "tool_calls", "tool_call_id", "reasoning", "reasoning_content"])
call_names = st.sampled_from(["id", "type", "function", "index"])
calls = st.dictionaries(call_names, json_values | st.just({"name": "f", "arguments": "{"}), max_size=4)
roles = st.sampled_from(["user", "assistant", "tool", "developer"])
messages = st.dictionaries(message_names, json_values | roles | st.lists(calls, max_size=2), max_size=6)
bodies = st.dictionaries(names, json_values | st.lists(messages, min_size=1, max_size=3) | st.just("m"), max_size=8)


def decoded_or_refused(body: bytes) -> ChatRequest | RequestError:
    try:
        return decode_bytes(body)
    except RequestError as error:
        return error


@settings(deadline=None)
@given(st.binary(max_size=300) | bodies.map(msgspec.json.encode))
def test_any_bytes_decode_or_are_refused(body: bytes) -> None:
    result = decoded_or_refused(body)
    if isinstance(result, RequestError):
        assert result.status == 400
        assert PROTOCOL.encode_error(result).body
    else:
        assert msgspec.json.decode(msgspec.json.encode(result), type=ChatRequest).model == result.model


good_calls = st.fixed_dictionaries(
    {
        "id": st.text(max_size=5),
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": st.text(max_size=5), "arguments": st.text(max_size=20)}),
    },
    optional={"index": st.integers(0, 9)},
)
good_content = (
    st.none()
    | st.text(max_size=9)
    | st.lists(st.builds(lambda text: {"type": "text", "text": text}, st.text(max_size=9)))
)
good_messages = st.fixed_dictionaries(
    {"role": roles, "content": good_content},
    optional={
        "tool_calls": st.lists(good_calls),
        "tool_call_id": st.text(max_size=4),
        "reasoning_content": st.text(max_size=9),
        "x-unknown": json_values,
    },
)


@settings(deadline=None)
@given(st.lists(good_messages, min_size=1, max_size=4))
def test_any_well_formed_history_comes_back_as_it_was_sent(history: list[dict[str, Any]]) -> None:
    decoded = decode(messages=history).messages
    assert [message.to_openai() for message in decoded] == history
    assert msgspec.json.decode(msgspec.json.encode(decoded), type=tuple[Message, ...]) == decoded


# Errors


@pytest.mark.parametrize(
    ("status", "kind", "retry"),
    [(400, "invalid_request_error", "false"), (403, "permission_error", "false"), (404, "not_found_error", "false"),
     (409, "invalid_request_error", "false"), (429, "rate_limit_error", None), (502, "server_error", None),
     (503, "server_error", None)],
)  # fmt: skip
def test_an_error_keeps_its_status_and_says_whether_asking_again_helps(
    status: int, kind: str, retry: str | None
) -> None:
    encoded = PROTOCOL.encode_error(RequestError(status, "why", "What went wrong.", param="n", hint="do this"))
    assert (encoded.status, encoded.headers.get("x-should-retry")) == (status, retry)
    body = {"message": "What went wrong. (do this)", "type": kind, "param": "n", "code": "why"}
    assert msgspec.json.decode(encoded.body) == {"error": body}


def test_a_context_overflow_has_the_words_on_which_harnesses_compact_whoever_worded_it() -> None:
    encoded = PROTOCOL.encode_error(RequestError(400, "context_length_exceeded", "too long"))
    error = msgspec.json.decode(encoded.body)["error"]
    assert error["code"] == "context_length_exceeded"
    assert "maximum context length" in error["message"]
