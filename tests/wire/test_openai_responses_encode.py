"""Responses replies and streams, read by the official `openai` SDK's own parser, and what a harness may act on."""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import httpx2 as httpx
import msgspec
import numpy as np
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from rolltape.chat import (
    ChatRequest,
    Delta,
    EngineEvent,
    Finished,
    Message,
    Reply,
    Started,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from rolltape.errors import EngineBroken, EngineRefused, RequestError
from rolltape.sse import CONTENT_TYPE, SseParser
from rolltape.wire import Frame
from rolltape.wire.openai_responses import OpenAIResponses

PROTOCOL = OpenAIResponses()
CALL = "0" * 31 + "a"
ID = f"resp_{CALL}"
PATCH = {"type": "custom", "name": "patch"}
SPAWN = {"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": "spawn", "parameters": {}}]}
TOOLS = [{"type": "function", "name": "bash", "parameters": {}}, PATCH, SPAWN]
BODY = {"model": "my-model", "input": "hi", "stream": True, "tools": TOOLS, "include": ["reasoning.encrypted_content"]}
STARTED = Started(np.arange(5, dtype=np.int32), {})
TALK: list[EngineEvent] = [
    STARTED,
    Delta((7, 8), (-0.5, -0.25), reasoning="h"),
    Delta((9,), (-1.0,), reasoning="m"),
    Delta((9,), (-1.0,)),
    Delta((10, 11), (-0.125, -2.0), text="北"),
    Delta((10, 11), (-0.125, -2.0), text="x"),
    Delta((12,), (-0.5,), tool_calls=(ToolCallDelta(0, "call_a", "bash", '{"comm'),)),
    Delta((13,), (-0.5,), tool_calls=(ToolCallDelta(0, arguments='and":  "ls"'),)),
    Delta((14,), (-0.5,), tool_calls=(ToolCallDelta(1, "call_b", "ns__spawn"), ToolCallDelta(1, arguments="{}"))),
    Delta((15,), (-0.5,), tool_calls=(ToolCallDelta(2, "call_c", "patch", '{"input": "a\\n'),)),
    Delta((16,), (-0.5,), tool_calls=(ToolCallDelta(2, arguments='b"}'),)),
    Finished("tool_calls", completion_tokens=13, cached_tokens=2),
]


def request(**fields: Any) -> ChatRequest:
    return PROTOCOL.decode("/v1/responses", msgspec.json.encode(BODY | fields), {})


def frames(events: Iterable[EngineEvent], asked: ChatRequest | None = None) -> list[Frame]:
    encoder = PROTOCOL.encoder(asked or request(), reply_id=ID, created=1700000000)
    return [*encoder.open(), *(frame for event in events for frame in encoder.encode(event))]


def events(sent: Sequence[Frame]) -> list[Any]:
    parsed = SseParser().feed(b"".join(frame.data for frame in sent))
    decoded = [msgspec.json.decode(event.data) for event in parsed]
    assert [event.name for event in parsed] == [body["type"] for body in decoded]
    return decoded


def types(sent: Sequence[Frame]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events(sent)]


class Served(httpx.AsyncByteStream):
    """Our bytes as a response body, a few at a time."""

    def __init__(self, data: bytes, size: int) -> None:
        self.data, self.size = data, size

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for at in range(0, len(self.data), self.size):
            yield self.data[at : at + self.size]


def sdk(data: bytes, content_type: str, *, status: int = 200, size: int = 37) -> openai.AsyncOpenAI:
    """The `openai` client against one fixed answer."""

    def answer(asked: httpx.Request) -> httpx.Response:
        return httpx.Response(status, headers={"content-type": content_type}, stream=Served(data, size))

    http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    return openai.AsyncOpenAI(api_key="k", base_url="http://x/v1", http_client=http, max_retries=0)


def streamed(sent: Sequence[Frame], size: int = 37) -> openai.AsyncOpenAI:
    return sdk(b"".join(frame.data for frame in sent), CONTENT_TYPE, size=size)


def check_output(response: Response) -> None:
    reasoning, message, bash, spawn, patch = response.output
    assert reasoning.type == "reasoning"
    assert ([part.text for part in reasoning.summary], reasoning.encrypted_content) == (["hm"], CALL)
    assert message.type == "message"
    assert (message.role, response.output_text) == ("assistant", "北x")
    assert bash.type == "function_call"
    assert (bash.call_id, bash.name, bash.arguments) == ("call_a", "bash", '{"command":  "ls"')
    assert spawn.type == "function_call"
    assert (spawn.namespace, spawn.name, spawn.arguments) == ("ns", "spawn", "{}")
    assert patch.type == "custom_tool_call"
    assert (patch.name, patch.input) == ("patch", "a\nb")
    ids = [item.id for item in response.output]
    assert ids == [f"rs_{CALL}", f"msg_{CALL}", f"fc_{CALL}", f"fc_{CALL}_1", f"ctc_{CALL}_2"]
    assert (response.id, response.model, response.status) == (ID, "my-model", "completed")
    usage = response.usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (5, 13, 18)
    assert (usage.input_tokens_details.cached_tokens, usage.output_tokens_details.reasoning_tokens) == (2, 3)


async def test_the_sdks_own_accumulator_puts_a_stream_together() -> None:
    async with streamed(frames(TALK)).responses.stream(model="my-model", input="hi") as stream:
        seen = [event async for event in stream]
        check_output(await stream.get_final_response())
    assert "".join(event.delta for event in seen if event.type == "response.output_text.delta") == "北x"


async def test_the_sdk_reads_a_whole_reply() -> None:
    calls = (
        ToolCall("call_a", "bash", '{"command":  "ls"'),
        ToolCall("call_b", "ns__spawn", "{}"),
        ToolCall("call_c", "patch", '{"input":"a\\nb"}'),
    )
    message = Message("assistant", "北x", reasoning="hm", tool_calls=calls)
    reply = Reply(ID, "served", 1700000000, message, "tool_calls", Usage(5, 13, 2, 3))
    client = sdk(PROTOCOL.encode_reply(request(), reply), "application/json")
    got = await client.responses.create(model="my-model", input="hi")
    check_output(got)
    assert got.created_at == 1700000000


def test_every_event_and_reply_is_what_the_sdks_types_allow() -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    for event in events(frames(TALK)):
        adapter.validate_python(event)
    reply = Reply(ID, "m", 1, Message("assistant", "a"), "stop", Usage(1, 1))
    Response.model_validate_json(PROTOCOL.encode_reply(request(), reply))


@pytest.mark.parametrize("size", range(1, 12))
async def test_a_stream_is_the_same_however_it_is_cut(size: int) -> None:
    async with streamed(frames(TALK), size).responses.stream(model="my-model", input="hi") as stream:
        check_output(await stream.get_final_response())


def test_the_parser_finds_the_same_events_wherever_two_reads_meet() -> None:
    data = b"".join(frame.data for frame in frames(TALK))
    whole = SseParser().feed(data)
    for at in range(len(data)):
        parser = SseParser()
        assert parser.feed(data[:at]) + parser.feed(data[at:]) == whole


# What may be acted on


def test_events_come_in_this_order_and_items_are_done_at_the_end() -> None:
    assert types(frames(TALK)) == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "output_item.added",
        "function_call_arguments.delta",
        "output_item.added",
        "output_item.done",
        "output_item.done",
        "function_call_arguments.done",
        "output_item.done",
        "function_call_arguments.done",
        "output_item.done",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
        "completed",
    ]


def test_every_done_item_whole_arguments_and_the_end_may_be_acted_on_and_no_delta_is_behind_them() -> None:
    sent = frames(TALK)
    first = next(at for at, frame in enumerate(sent) if frame.acting)
    assert all(frame.acting for frame in sent[first:])
    assert types(sent[first:])[0] == "output_item.done"
    early = set(types(sent[:first]))
    assert not early & {"output_item.done", "function_call_arguments.done", "custom_tool_call_input.done", "completed"}
    assert {"output_text.delta", "function_call_arguments.delta", "reasoning_summary_text.delta"} <= early


def test_sequence_numbers_count_the_events_and_done_items_are_those_of_the_response() -> None:
    sent = events(frames(TALK))
    assert [event["sequence_number"] for event in sent] == list(range(len(sent)))
    done = [event["item"] for event in sent if event["type"] == "response.output_item.done"]
    assert done == sent[-1]["response"]["output"]
    assert [event["output_index"] for event in sent if event["type"] == "response.output_item.done"] == [0, 1, 2, 3, 4]


def test_each_event_leaves_with_the_delta_that_made_it() -> None:
    encoder = PROTOCOL.encoder(request(), reply_id=ID, created=1)
    encoder.open()
    shown = [bool(encoder.encode(event)) for event in TALK]
    assert shown == [False, True, True, False, True, True, True, True, True, True, False, True]


@pytest.mark.parametrize("second_index", [0, 1])
async def test_a_new_id_starts_a_new_call_whatever_its_index(second_index: int) -> None:
    calls = [
        ToolCallDelta(0, "a", "f", '{"x":1}'),
        ToolCallDelta(second_index, "b", "f", '{"x":'),
        ToolCallDelta(second_index, arguments="2}"),
        ToolCallDelta(0, "c", "g", "{}"),
    ]
    sent = frames([STARTED, *(Delta(tool_calls=(call,)) for call in calls), Finished("tool_calls")])
    output = events(sent)[-1]["response"]["output"]
    assert [(item["call_id"], item["arguments"]) for item in output] == [
        ("a", '{"x":1}'),
        ("b", '{"x":2}'),
        ("c", "{}"),
    ]
    assert len({item["id"] for item in output}) == 3


def test_what_alternates_becomes_items_of_its_own_with_ids_of_their_own() -> None:
    talk = [Delta(reasoning="a"), Delta(text="b"), Delta(reasoning="c"), Delta(text="d")]
    output = events(frames([STARTED, *talk, Finished("stop")]))[-1]["response"]["output"]
    assert [item["id"] for item in output] == [f"rs_{CALL}", f"msg_{CALL}", f"rs_{CALL}_1", f"msg_{CALL}_1"]


@pytest.mark.parametrize(("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_a_reply_that_was_cut_is_incomplete_and_so_is_its_last_item(finish: Any, reason: str) -> None:
    sent = events(frames([STARTED, Delta((1,), (-1.0,), reasoning="a"), Delta((2,), (-1.0,), "b"), Finished(finish)]))
    assert sent[-1]["type"] == "response.incomplete"
    body = sent[-1]["response"]
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": reason})
    assert [item["status"] for item in body["output"]] == ["completed", "incomplete"]
    reply = Reply(ID, "m", 1, Message("assistant", "b", reasoning="a"), finish, Usage(5, 2, None, 1))
    whole = msgspec.json.decode(PROTOCOL.encode_reply(request(), reply))
    assert whole | {"created_at": 1700000000} == body


def test_usage_is_left_out_rather_than_invented_when_the_prompt_is_not_known() -> None:
    sent = events(frames([Started(None, {}), Delta((1,), (-1.0,), "a"), Finished("stop")]))
    assert sent[-1]["response"]["usage"] is None


def test_sealed_reasoning_goes_to_those_who_ask() -> None:
    sent = events(frames(TALK, request(include=[])))
    assert "encrypted_content" not in sent[-1]["response"]["output"][0]


def test_an_echo_of_a_reply_is_the_message_that_was_sampled() -> None:
    """What goes out comes back in as one turn: text for text, name for name."""
    output = events(frames(TALK))[-1]["response"]["output"]
    (turn,) = PROTOCOL.decode("", msgspec.json.encode(BODY | {"input": output}), {}).messages
    assert (turn.reasoning, turn.content) == ("hm", "北x")
    assert [(call.id, call.name, call.arguments) for call in turn.tool_calls] == [
        ("call_a", "bash", '{"command":  "ls"'),
        ("call_b", "ns__spawn", "{}"),
        ("call_c", "patch", '{"input": "a\\nb"}'),
    ]


@pytest.mark.parametrize("arguments", ["", "not json", "[1]", '{"input": 1}', '{"text": "a"}'])
def test_arguments_that_hold_no_input_reach_a_custom_tool_as_they_are(arguments: str) -> None:
    calls = (ToolCall("c", "patch", arguments),)
    reply = Reply(ID, "m", 1, Message("assistant", tool_calls=calls), "tool_calls", Usage(1, 1))
    (item,) = msgspec.json.decode(PROTOCOL.encode_reply(request(), reply))["output"]
    assert item["input"] == arguments


# Life, errors


async def test_keep_alive_is_an_event_that_the_sdk_takes_and_that_holds_nothing() -> None:
    encoder = PROTOCOL.encoder(request(), reply_id=ID, created=1)
    alive = encoder.keep_alive()
    assert alive == Frame(b'event: ping\ndata: {"type":"ping"}\n\n')
    sent = [*encoder.open(), alive, *(frame for event in TALK for frame in encoder.encode(event))]
    async with streamed(sent).responses.stream(model="my-model", input="hi") as stream:
        check_output(await stream.get_final_response())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EngineBroken("It died."), "server_error"),
        (EngineRefused.context_overflow(9000, 8192), "context_length_exceeded"),
    ],
)
async def test_a_stream_that_breaks_fails_and_never_completes(error: RequestError, code: str) -> None:
    encoder = PROTOCOL.encoder(request(), reply_id=ID, created=1)
    before = [*encoder.open(), *(frame for event in TALK[:-1] for frame in encoder.encode(event))]
    sent = [*before, *encoder.error(error)]
    assert not any(frame.acting for frame in sent)
    assert types(sent)[-1] == "failed"
    assert not {"completed", "incomplete", "output_item.done"} & set(types(sent))
    failed = events(sent)[-1]["response"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", code)
    assert error.message in failed["error"]["message"]
    with pytest.raises(RuntimeError, match=r"response\.completed"):
        async with streamed(sent).responses.stream(model="my-model", input="hi") as stream:
            await stream.get_final_response()


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (RequestError(403, "frozen", "No more calls."), openai.PermissionDeniedError),
        (EngineRefused.context_overflow(9000, 8192), openai.BadRequestError),
        (EngineBroken("It died."), openai.InternalServerError),
        (RequestError(429, "busy", "Too much."), openai.InternalServerError),
    ],
)
async def test_the_sdk_raises_its_own_error_and_never_sees_429(
    error: RequestError, raised: type[openai.APIStatusError]
) -> None:
    encoded = PROTOCOL.encode_error(error)
    client = sdk(encoded.body, "application/json", status=encoded.status)
    with pytest.raises(raised) as caught:
        await client.responses.create(model="m", input="hi")
    assert caught.value.code == error.code
    assert encoded.status == (503 if error.status == 429 else error.status)


def test_counting_answers_in_the_dialect() -> None:
    assert msgspec.json.decode(PROTOCOL.encode_count(7)) == {"object": "response.input_tokens", "input_tokens": 7}
