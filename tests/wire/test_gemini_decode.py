"""Gemini requests: what clients send decodes without loss, what cannot be honoured is refused by name."""

import contextlib
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolltape.chat import ChatRequest, Message, ToolCall
from rolltape.errors import RequestError
from rolltape.wire import WireProtocol
from rolltape.wire.gemini import Gemini

from .traffic import recorded

PROTOCOL: WireProtocol = Gemini()
PATH = "/v1beta/models/m:generateContent"
USER = {"role": "user", "parts": [{"text": "hi"}]}
BASH = {
    "name": "bash",
    "description": "Run.",
    "parameters": {"type": "OBJECT", "properties": {"c": {"type": "STRING"}}},
}


def decode(path: str = PATH, **fields: Any) -> ChatRequest:
    return PROTOCOL.decode(path, msgspec.json.encode({"contents": [USER]} | fields), {})


def config(**fields: Any) -> ChatRequest:
    return decode(generationConfig=fields)


def refused(path: str = PATH, **fields: Any) -> str | None:
    with pytest.raises(RequestError) as caught:
        decode(path, **fields)
    assert caught.value.status == 400
    return caught.value.param


def model(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


# Real traffic


def texts(value: Any) -> list[str]:
    """Every text, name, id, argument, output and signature in `value`."""
    if isinstance(value, dict):
        return [text for key, inner in value.items() if key != "role" for text in texts(inner)]
    if isinstance(value, list):
        return [text for inner in value for text in texts(inner)]
    return [value] if isinstance(value, str) else []


def test_every_recorded_request_of_gemini_cli_decodes_without_loss() -> None:
    requests = recorded("gemini-cli")
    tools = {request["id"]: request["body"].get("tools") for request in requests}
    for request in requests:
        body = request["body"]
        body.setdefault("tools", tools.get(request.get("tools_of")))
        got = PROTOCOL.decode(request["path"].removeprefix("/rollout/abc-1"), msgspec.json.encode(body), {})
        held = [m.text() for m in got.messages] + [text for m in got.messages for text in texts(m.aside)]
        held += [text for m in got.messages for c in m.tool_calls for text in (c.id, c.name, *texts(args(c)))]
        held += [text for m in got.messages for text in (m.tool_call_id, m.extra.get("name")) if text]
        for text in texts([body["systemInstruction"], body["contents"]]):
            assert any(text in kept for kept in held), text
        assert [t["function"]["parameters"] for t in got.tools] == [
            declared["parametersJsonSchema"] for tool in body["tools"] for declared in tool["functionDeclarations"]
        ]
        assert (got.model, got.stream, got.aside["alt"]) == ("gemini-2.5-pro", True, "sse")
        assert got.sampling == {"temperature": 1, "top_p": 0.95, "top_k": 64}
        assert got.aside["generationConfig"] == {"thinkingConfig": body["generationConfig"]["thinkingConfig"]}
    assert len(requests) == 11


def args(call: ToolCall) -> Any:
    return msgspec.json.decode(call.arguments)


def test_a_chain_that_grows_on_the_wire_grows_in_canonical_messages() -> None:
    decoded = [
        (request["run"], PROTOCOL.decode(PATH, msgspec.json.encode(request["body"]), {}))
        for request in recorded("gemini-cli")
    ]
    pairs = [(a, b) for (run, a), (other, b) in pairwise(decoded) if run == other]
    assert len(pairs) == 8
    for before, after in pairs:
        assert after.messages[: len(before.messages)] == before.messages
        assert after.messages[len(before.messages)].role == "assistant"


def test_marks_are_kept_and_the_key_is_not() -> None:
    tags = PROTOCOL.tagged(dict(recorded("gemini-cli")[0]["headers"]))
    assert tags["x-goog-api-client"] == "google-genai-sdk/1.30.0 gl-node/v20.20.2"
    assert "x-goog-api-key" not in tags


# Contents


def test_a_conversation_becomes_turns_in_place() -> None:
    call = {"functionCall": {"id": "c1", "name": "bash", "args": {"c": "ls"}}, "thoughtSignature": "c2ln"}
    answer = {"functionResponse": {"id": "c1", "name": "bash", "response": {"output": "a b"}}}
    got = decode(
        systemInstruction={"parts": [{"text": "S"}]},
        contents=[USER, model({"text": "hm", "thought": True}, {"text": "look"}, call), user(answer, {"text": "go"})],
    )
    assert got.messages == (
        Message("system", "S"),
        Message("user", "hi"),
        Message(
            "assistant", "look", reasoning="hm", tool_calls=(ToolCall("c1", "bash", '{"c": "ls"}'),),
            aside={"parts": [{"thoughtSignature": "c2ln", "of": "functionCall"}]},
        ),
        Message("tool", "a b", tool_call_id="c1", extra={"name": "bash"}),
        Message("user", "go"),
    )  # fmt: skip


def test_neighbouring_contents_of_the_model_are_one_turn_as_the_sdk_keeps_a_stream() -> None:
    chunks = [model({"text": "lo"}), model({"text": "ok"}), model({"functionCall": {"name": "bash", "args": {}}})]
    whole = model({"text": "look"}, {"functionCall": {"name": "bash", "args": {}}})
    assert decode(contents=[USER, *chunks, USER]).messages == decode(contents=[USER, whole, USER]).messages


def test_calls_without_an_id_are_numbered_and_answered_in_their_order() -> None:
    calls = [{"functionCall": {"name": name, "args": {}}} for name in ("a", "b", "a")]
    answers = [{"functionResponse": {"name": name, "response": {"x": i}}} for i, name in enumerate(("a", "a", "b"))]
    got = decode(contents=[USER, model(*calls), user(*answers)])
    assert [call.id for call in got.messages[1].tool_calls] == ["call_0", "call_1", "call_2"]
    assert [(m.tool_call_id, m.content) for m in got.messages[2:]] == [
        ("call_0", '{"x": 0}'), ("call_2", '{"x": 1}'), ("call_1", '{"x": 2}'),
    ]  # fmt: skip


def test_arguments_that_were_no_object_come_back_as_they_were_sampled() -> None:
    wrapped = {"functionCall": {"name": "bash", "args": {"__unparsedArguments": '{"c": "ls'}}}
    assert decode(contents=[USER, model(wrapped), USER]).messages[1].tool_calls[0].arguments == '{"c": "ls'


def test_images_in_a_content_and_in_a_result_become_parts() -> None:
    image = {"inlineData": {"mimeType": "image/png", "data": "_-8="}}
    result = {"functionResponse": {"name": "see", "response": {"output": "x"}, "parts": [image]}}
    linked = {"fileData": {"mimeType": "image/png", "fileUri": "https://e.x/a.png"}}
    got = decode(contents=[user({"text": "see"}, image, linked), user(result)])
    shown = {"type": "image_url", "image_url": {"url": "data:image/png;base64,/+8="}}
    assert got.messages[0].content == (
        {"type": "text", "text": "see"}, shown, {"type": "image_url", "image_url": {"url": "https://e.x/a.png"}},
    )  # fmt: skip
    assert got.messages[1].content == ({"type": "text", "text": "x"}, shown)


def test_fields_may_be_named_as_protobuf_names_them() -> None:
    tools = [{"function_declarations": [{"name": "bash", "parameters_json_schema": {"type": "object"}}]}]
    snake = decode(system_instruction={"parts": {"text": "S"}}, generation_config={"max_output_tokens": 5}, tools=tools)
    assert (snake.messages[0].content, snake.sampling) == ("S", {"max_tokens": 5})
    assert snake.tools[0]["function"] == {"name": "bash", "parameters": {"type": "object"}}


@pytest.mark.parametrize(("content", "param"), [
    ({"role": "system", "parts": [{"text": "x"}]}, "contents[0].role"),
    (user({}), "contents[0].parts[0]"),
    (user({"text": "a", "inlineData": {}}), "contents[0].parts[0]"),
    (user({"text": 5}), "contents[0].parts[0].text"),
    (user({"executableCode": {}}), "contents[0].parts[0].executableCode"),
    (user({"inlineData": {"mimeType": "audio/mp3", "data": "AAAA"}}), "contents[0].parts[0]"),
    (user({"inlineData": {"mimeType": "image/png"}}), "contents[0].parts[0].inlineData.data"),
    (user({"fileData": {"fileUri": "gs://b/x.png", "mimeType": "image/png"}}), "contents[0].parts[0].fileData"),
    (model({"functionCall": {"name": "f", "args": []}}), "contents[0].parts[0].functionCall.args"),
    (model({"functionCall": {"name": "f", "partialArgs": [1]}}), "contents[0].parts[0].functionCall.partialArgs"),
    (user({"functionResponse": {"response": {}}}), "contents[0].parts[0].functionResponse.name"),
    (model({"text": "x"}), "contents"),
    (7, "contents[0]"),
])  # fmt: skip
def test_a_content_that_cannot_be_shown_is_refused_by_name(content: Any, param: str) -> None:
    assert refused(contents=[content]) == param


# Tools


def test_declared_functions_and_the_choice_among_them() -> None:
    called = {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["bash"]}}
    got = decode(tools=[{"functionDeclarations": [BASH, {"name": "read"}]}, {"googleSearch": {}}], toolConfig=called)
    schema = {"type": "object", "properties": {"c": {"type": "string"}}}
    assert [tool["function"] for tool in got.tools] == [
        {"name": "bash", "description": "Run.", "parameters": schema}, {"name": "read"},
    ]  # fmt: skip
    assert got.tool_choice == {"type": "function", "function": {"name": "bash"}}
    assert got.aside["server_tools"] == [{"googleSearch": {}}]


@pytest.mark.parametrize(("mode", "choice"), [("AUTO", "auto"), ("ANY", "required"), ("NONE", "none"), (None, None)])
def test_modes_of_calling(mode: str | None, choice: str | None) -> None:
    got = decode(tools=[{"functionDeclarations": [BASH]}], toolConfig={"functionCallingConfig": {"mode": mode}})
    assert got.tool_choice == choice


@pytest.mark.parametrize(("tools", "chosen", "param"), [
    ([{"googleSearch": {}}], {}, "tools[0].googleSearch"),
    ([], {"mode": "ANY"}, "toolConfig.functionCallingConfig.mode"),
    ([{"functionDeclarations": [BASH]}], {"mode": "VALIDATED"}, "toolConfig.functionCallingConfig.mode"),
    ([{"functionDeclarations": [BASH]}], {"mode": ["AUTO"]}, "toolConfig.functionCallingConfig.mode"),
    ([{"functionDeclarations": [BASH]}], {"mode": "ANY", "allowedFunctionNames": ["no"]},
     "toolConfig.functionCallingConfig.allowedFunctionNames"),
    ([{"functionDeclarations": [{"parameters": {}}]}], {}, "tools[0].functionDeclarations[0].name"),
    ([{"functionDeclarations": [{"name": "f", "parameters": 1}]}], {}, "tools[0].functionDeclarations[0].parameters"),
])  # fmt: skip
def test_tools_that_nothing_here_can_run_are_refused_by_name(tools: Any, chosen: Any, param: str) -> None:
    assert refused(tools=tools, toolConfig={"functionCallingConfig": chosen}) == param


# generationConfig and the rest


def test_sampling_has_canonical_names_and_its_numbers_stay() -> None:
    got = config(
        temperature=0.5, topP=0.9, topK=40.0, maxOutputTokens=7, stopSequences=["a"], seed=3,
        presencePenalty=0.1, frequencyPenalty=0.2, candidateCount=1, responseModalities=["TEXT"],
    )  # fmt: skip
    assert got.sampling == {
        "temperature": 0.5, "top_p": 0.9, "top_k": 40, "max_tokens": 7, "stop": ["a"], "seed": 3,
        "presence_penalty": 0.1, "frequency_penalty": 0.2,
    }  # fmt: skip


def test_a_schema_of_google_s_is_json_schema() -> None:
    schema = {
        "type": "OBJECT", "propertyOrdering": ["a"],
        "properties": {
            "a": {"type": "STRING", "nullable": True}, "type": {"type": "ARRAY", "items": {"type": "NUMBER"}},
        },
    }  # fmt: skip
    form = config(responseMimeType="application/json", responseSchema=schema).response_format
    assert form is not None
    assert form["json_schema"]["schema"] == {
        "type": "object",
        "properties": {"a": {"type": ["string", "null"]}, "type": {"type": "array", "items": {"type": "number"}}},
    }
    exact = config(responseMimeType="application/json", responseJsonSchema={"type": ["STRING"]}).response_format
    assert exact is not None
    assert exact["json_schema"]["schema"] == {"type": ["STRING"]}
    assert config(responseMimeType="application/json").response_format == {"type": "json_object"}
    assert config(responseMimeType="text/plain").response_format is None


@pytest.mark.parametrize(("field", "value"), [
    ("candidateCount", 2), ("responseModalities", ["IMAGE"]), ("responseLogprobs", True), ("logprobs", 3),
    ("speechConfig", {"x": 1}), ("mediaResolution", "MEDIA_RESOLUTION_LOW"), ("responseMimeType", "text/x.enum"),
    ("aNewKnob", 1), ("maxOutputTokens", 0),
])  # fmt: skip
def test_what_would_change_the_reply_and_cannot_be_honoured_is_refused_by_name(field: str, value: Any) -> None:
    assert refused(generationConfig={field: value}) == f"generationConfig.{field}"


def test_what_only_the_cloud_knows_is_kept_and_told_to_no_engine() -> None:
    safety = [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]
    got = decode(safetySettings=safety, labels={"a": "b"}, generationConfig={"thinkingConfig": {"thinkingBudget": 0}})
    assert got.extra == {}
    assert (got.aside["safetySettings"], got.aside["labels"]) == (safety, {"a": "b"})
    assert got.aside["generationConfig"] == {"thinkingConfig": {"thinkingBudget": 0}}


def test_stored_contents_are_refused_by_name() -> None:
    assert refused(cachedContent="cachedContents/x") == "cachedContent"


# Paths


@pytest.mark.parametrize(("path", "name"), [
    ("/v1beta/models/gemini-2.5-pro:generateContent", "gemini-2.5-pro"),
    ("/v1/models/Qwen/Qwen3-4B:generateContent", "Qwen/Qwen3-4B"),
    ("/v1beta/models/Qwen%2FQwen3:tuned%3AgenerateContent", "Qwen/Qwen3:tuned"),
])  # fmt: skip
def test_the_path_names_the_model(path: str, name: str) -> None:
    assert decode(path).model == name


@pytest.mark.parametrize(
    ("query", "alt"), [("?alt=sse", "sse"), ("?key=k&alt=sse", "sse"), ("?$alt=sse", "sse"), ("", None)]
)
def test_the_query_says_how_a_stream_is_told(query: str, alt: str | None) -> None:
    got = decode(f"/v1beta/models/m:streamGenerateContent{query}")
    assert (got.stream, got.aside.get("alt")) == (True, alt)


def test_a_count_may_be_asked_of_any_part_of_a_conversation() -> None:
    count = "/v1beta/models/m:countTokens"
    assert decode(count, contents=[model({"text": "x"})]).messages == (Message("assistant", "x"),)
    wrapped = {"model": "models/m", "contents": [USER], "systemInstruction": {"parts": [{"text": "S"}]}}
    body = msgspec.json.encode({"generateContentRequest": wrapped})
    assert [m.role for m in PROTOCOL.decode(count, body, {}).messages] == ["system", "user"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from([
    "contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "parts", "role", "text", "functionCall",
    "functionResponse", "inlineData", "fileData", "name", "args", "response", "functionDeclarations", "temperature",
])  # fmt: skip


@settings(deadline=None)
@given(st.dictionaries(NAMES, JSON | st.dictionaries(NAMES, JSON, max_size=3), max_size=5), JSON)
def test_any_body_decodes_or_is_refused(fields: dict[str, Any], part: Any) -> None:
    for body in (fields, {"contents": [{"parts": [part, fields]}]}, {"contents": [USER]} | fields):
        with contextlib.suppress(RequestError):
            PROTOCOL.decode(PATH, msgspec.json.encode(body), {})
