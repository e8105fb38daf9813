"""Replies and streams, read by the official `anthropic` SDK's own parser, and the events on which a harness may act."""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import anthropic
import httpx2 as httpx
import msgspec
import numpy as np
import pytest
from anthropic.types import Message as SdkMessage
from anthropic.types import RawMessageStreamEvent
from pydantic import TypeAdapter

from rolltape.chat import (
    ChatRequest,
    Delta,
    EngineEvent,
    Finished,
    FinishReason,
    Message,
    Reply,
    Started,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from rolltape.errors import EngineBroken, EngineRefused, EngineUnavailable, RequestError
from rolltape.sse import CONTENT_TYPE, SseParser
from rolltape.wire import Frame, WireProtocol
from rolltape.wire.anthropic_messages import AnthropicMessages

PROTOCOL: WireProtocol = AnthropicMessages()
REQUEST = ChatRequest(model="my-model", stream=True)
STARTED = Started(np.arange(5, dtype=np.int32), {})
TALK: list[EngineEvent] = [
    STARTED,
    Delta((7, 8), (-0.5, -0.25), reasoning="hm"),
    Delta((9,), (-1.0,)),
    Delta((10, 11), (-0.125, -2.0), text="北x"),
    Delta((12,), (-0.5,), tool_calls=(ToolCallDelta(0, "call_a", "bash", '{"comm'),)),
    Delta((13,), (-0.5,), tool_calls=(ToolCallDelta(0, arguments='and": "ls"}'),)),
    Delta((14,), (-0.5,), tool_calls=(ToolCallDelta(1, "call_b", "read"), ToolCallDelta(1, arguments="{}"))),
    Finished("tool_calls", completion_tokens=8, cached_tokens=2),
]
CREATE: dict[str, Any] = {"model": "my-model", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}


def frames(events: Iterable[EngineEvent]) -> list[Frame]:
    encoder = PROTOCOL.encoder(REQUEST, reply_id="msg_1", created=1700000000)
    return [*encoder.open(), *(frame for event in events for frame in encoder.encode(event))]


def read(sent: Sequence[Frame]) -> list[dict[str, Any]]:
    """The events' data; each is named by its own type."""
    events = SseParser().feed(b"".join(frame.data for frame in sent))
    values = [msgspec.json.decode(event.data) for event in events]
    assert [value["type"] for value in values] == [event.name for event in events]
    return values


class Served(httpx.AsyncByteStream):
    """Our bytes as a response body, a few at a time."""

    def __init__(self, data: bytes, size: int) -> None:
        self.data, self.size = data, size

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for at in range(0, len(self.data), self.size):
            yield self.data[at : at + self.size]


class Server:
    """The `anthropic` client against fixed answers; counts what it was asked."""

    def __init__(self, status: int, headers: dict[str, str], data: bytes, *, size: int = 37) -> None:
        self.asked = 0

        def answer(request: httpx.Request) -> httpx.Response:
            self.asked += 1
            return httpx.Response(status, headers=headers, stream=Served(data, size))

        http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
        self.client = anthropic.AsyncAnthropic(api_key="k", base_url="http://x", http_client=http)

    async def final(self) -> SdkMessage:
        async with self.client.messages.stream(**CREATE) as stream:
            return await stream.get_final_message()


def streamed(sent: Sequence[Frame], *, size: int = 37) -> Server:
    data = b"".join(frame.data for frame in sent)
    return Server(200, {"content-type": CONTENT_TYPE}, data, size=size)


def shape(message: SdkMessage) -> list[tuple[Any, ...]]:
    """(kind, what it says) of each block."""
    said: list[tuple[Any, ...]] = []
    for block in message.content:
        match block.type:
            case "thinking":
                said.append(("thinking", block.thinking, block.signature))
            case "text":
                said.append(("text", block.text))
            case "tool_use":
                said.append(("tool_use", block.id, block.name, block.input))
    return said


TALKED = [
    ("thinking", "hm", "rolltape.msg_1.0"),
    ("text", "北x"),
    ("tool_use", "call_a", "bash", {"command": "ls"}),
    ("tool_use", "call_b", "read", {}),
]


async def test_the_sdk_puts_a_stream_together_as_it_was_meant() -> None:
    got = await streamed(frames(TALK)).final()
    assert (got.id, got.model, got.role, got.type) == ("msg_1", "my-model", "assistant", "message")
    assert shape(got) == TALKED
    assert (got.stop_reason, got.stop_sequence) == ("tool_use", None)
    assert (got.usage.input_tokens, got.usage.cache_read_input_tokens, got.usage.output_tokens) == (3, 2, 8)


async def test_the_sdk_reads_a_whole_reply_with_the_same_content() -> None:
    calls = (ToolCall("call_a", "bash", '{"command":  "ls"}'), ToolCall("call_b", "read", " "))
    said = Message("assistant", "北x", reasoning="hm", tool_calls=calls)
    reply = Reply("msg_1", "served", 1700000000, said, "tool_calls", Usage(5, 8, 2))
    body = PROTOCOL.encode_reply(REQUEST, reply)
    got = await Server(200, {"content-type": "application/json"}, body).client.messages.create(**CREATE)
    assert shape(got) == TALKED
    assert (got.id, got.model, got.stop_reason) == ("msg_1", "my-model", "tool_use")
    assert (got.usage.input_tokens, got.usage.cache_read_input_tokens, got.usage.output_tokens) == (3, 2, 8)
    SdkMessage.model_validate_json(body, strict=True)


def test_every_event_is_what_the_sdks_types_allow() -> None:
    adapter: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)
    for event in read(frames(TALK)):
        adapter.validate_json(msgspec.json.encode(event), strict=True)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 4096])
async def test_the_sdk_reads_the_stream_however_it_is_cut(size: int) -> None:
    assert shape(await streamed(frames(TALK), size=size).final()) == TALKED


def test_the_parser_reads_the_stream_split_at_every_position() -> None:
    sent = b"".join(frame.data for frame in frames(TALK))
    whole = SseParser().feed(sent)
    for at in range(len(sent)):
        parser = SseParser()
        assert [*parser.feed(sent[:at]), *parser.feed(sent[at:])] == whole


# What may be acted on


def test_everything_passes_until_a_finished_tool_call_and_nothing_after() -> None:
    sent = frames(TALK)
    first = next(i for i, frame in enumerate(sent) if frame.acting)
    assert all(frame.acting for frame in sent[first:])
    assert [event["type"] for event in read(sent[:first])] == [
        "message_start",
        "content_block_start", "content_block_delta", "content_block_delta", "content_block_stop",
        "content_block_start", "content_block_delta", "content_block_stop",
        "content_block_start", "content_block_delta", "content_block_delta",
    ]  # fmt: skip
    assert read(sent[first:])[0] == {"type": "content_block_stop", "index": 2}
    assert [event["type"] for event in read(sent[-2:])] == ["message_delta", "message_stop"]


def test_the_end_of_a_text_only_reply_is_acting_and_its_text_is_not() -> None:
    sent = frames([STARTED, Delta((1,), (-1.0,), "a"), Delta((2,), (-1.0,), "b"), Finished("stop")])
    assert [event["type"] for event in read([frame for frame in sent if frame.acting])] == [
        "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    assert [event["delta"]["text"] for event in read(sent) if event["type"] == "content_block_delta"] == ["a", "b"]


async def test_text_and_thinking_after_a_tool_call_wait_behind_it_in_the_order_sampled() -> None:
    events = [
        STARTED,
        Delta((1,), (-1.0,), tool_calls=(ToolCallDelta(0, "a", "f", "{"),)),
        Delta((2,), (-1.0,), reasoning="so"),
        Delta((3,), (-1.0,), "te"),
        Delta((4,), (-1.0,), "xt"),
        Delta((5,), (-1.0,), tool_calls=(ToolCallDelta(0, arguments="}"),)),
        Finished("tool_calls"),
    ]
    sent = frames(events)
    first = next(i for i, frame in enumerate(sent) if frame.acting)
    pieces = [event["delta"]["partial_json"] for event in read(sent[:first]) if event["type"] == "content_block_delta"]
    assert pieces == ["{", "}"], "a piece of the open call passes at once"
    assert shape(await streamed(sent).final()) == [
        ("tool_use", "a", "f", {}), ("thinking", "so", "rolltape.msg_1.1"), ("text", "text"),
    ]  # fmt: skip


@pytest.mark.parametrize("third_index", [0, 1, 7])
async def test_a_new_id_starts_a_new_block_whatever_its_index(third_index: int) -> None:
    calls = [
        ToolCallDelta(0, "a", "f", '{"x":1}'),
        ToolCallDelta(0, "b", "f", '{"x":'),
        ToolCallDelta(0, arguments="2}"),
        ToolCallDelta(third_index, "c", "g", "{}"),
    ]
    sent = frames([STARTED, *(Delta(tool_calls=(call,)) for call in calls), Finished("tool_calls")])
    got = await streamed(sent).final()
    assert [(block[1], block[3]) for block in shape(got)] == [("a", {"x": 1}), ("b", {"x": 2}), ("c", {})]
    assert got.stop_reason == "tool_use"
    starts = [event["index"] for event in read(sent) if event["type"] == "content_block_start"]
    assert starts == [0, 1, 2]


async def test_a_call_without_an_id_gets_one_that_names_its_reply() -> None:
    pieces = (ToolCallDelta(0, None, "f", "{}"), ToolCallDelta(1, "", "g", "{}"))
    got = await streamed(frames([STARTED, Delta(tool_calls=pieces), Finished("tool_calls")])).final()
    calls = (ToolCall("", "f", "{}"), ToolCall("", "g", "{}"))
    whole = Reply("msg_1", "m", 1, Message("assistant", None, tool_calls=calls), "tool_calls", Usage(1, 1))
    ids = [block["id"] for block in msgspec.json.decode(PROTOCOL.encode_reply(REQUEST, whole))["content"]]
    assert [block[1] for block in shape(got)] == ids == ["toolu_1_0", "toolu_1_1"]


@pytest.mark.parametrize("arguments", ['{"command": "echo ', "echo hello", "[1]", '"x"', "null"])
def test_arguments_that_are_no_object_pass_as_they_are_or_in_the_harness_own_wrapping(arguments: str) -> None:
    sent = frames([STARTED, Delta(tool_calls=(ToolCallDelta(0, "a", "f", arguments),)), Finished("tool_calls")])
    assert [event["delta"]["partial_json"] for event in read(sent) if "partial_json" in event.get("delta", "")] == [
        arguments
    ]
    said = Message("assistant", None, tool_calls=(ToolCall("a", "f", arguments),))
    body = msgspec.json.decode(PROTOCOL.encode_reply(REQUEST, Reply("r", "m", 1, said, "tool_calls", Usage(1, 1))))
    assert body["content"][0]["input"] == {"__unparsedToolInput": {"raw": arguments, "len": len(arguments)}}
    echoed = {"model": "m", "messages": [{"role": "assistant", "content": body["content"]}]}
    decoded = PROTOCOL.decode("/v1/messages/count_tokens", msgspec.json.encode(echoed), {})
    assert decoded.messages[0].tool_calls[0].arguments == arguments


# Ends, counts, silence


@pytest.mark.parametrize(
    ("finish", "stop", "tool", "reason"),
    [
        ("stop", None, False, "end_turn"), ("stop", "X", False, "stop_sequence"), ("stop", None, True, "tool_use"),
        ("length", None, True, "max_tokens"), ("content_filter", None, False, "refusal"),
        ("tool_calls", None, True, "tool_use"),
    ],
)  # fmt: skip
def test_each_end_has_its_word(finish: FinishReason, stop: str | None, tool: bool, reason: str) -> None:
    pieces = (ToolCallDelta(0, "a", "f", "{}"),) if tool else ()
    sent = read(frames([STARTED, Delta(tool_calls=pieces), Finished(finish, stop_sequence=stop)]))
    assert sent[-2]["delta"] == {"stop_reason": reason, "stop_sequence": stop}
    said = Message("assistant", "", tool_calls=tuple(ToolCall("a", "f", "{}") for _ in pieces))
    reply = Reply("r", "m", 1, said, finish, Usage(1, 1), stop_sequence=stop)
    body = msgspec.json.decode(PROTOCOL.encode_reply(REQUEST, reply))
    assert (body["stop_reason"], body["stop_sequence"]) == (reason, stop)


def test_the_prompt_is_counted_from_the_start_and_cached_tokens_are_not_counted_twice() -> None:
    sent = read(frames(TALK))
    start, end = sent[0]["message"]["usage"], sent[-2]["usage"]
    assert (start["input_tokens"], start["output_tokens"], start["cache_read_input_tokens"]) == (5, 0, None)
    assert (end["input_tokens"], end["cache_read_input_tokens"], end["output_tokens"]) == (3, 2, 8)
    assert read(frames([STARTED, Delta((1, 2), (-1.0, -1.0), "a"), Finished("stop")]))[-2]["usage"] == {
        "input_tokens": 5,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": None,
        "output_tokens": 2,
    }


@pytest.mark.parametrize("started", [[Started(None, {})], []])
def test_a_prompt_of_unknown_length_still_starts_a_message(started: list[EngineEvent]) -> None:
    sent = read(frames([*started, Delta((1,), (-1.0,), "a"), Finished("stop")]))
    assert [event["type"] for event in sent].count("message_start") == 1
    assert sent[0]["type"] == "message_start"
    assert sent[-2]["usage"] == {"output_tokens": 1}


async def test_an_empty_reply_is_a_message_without_blocks() -> None:
    got = await streamed(frames([STARTED, Delta((1,), (-1.0,)), Finished("stop")])).final()
    assert (got.content, got.stop_reason) == ([], "end_turn")


def test_tokens_that_show_nothing_send_nothing() -> None:
    encoder = PROTOCOL.encoder(REQUEST, reply_id="msg_1", created=1)
    assert list(encoder.open()) == []
    encoder.encode(STARTED)
    assert list(encoder.encode(Delta((1,), (-1.0,)))) == []


async def test_silence_is_a_comment_before_the_message_and_a_ping_within() -> None:
    encoder = PROTOCOL.encoder(REQUEST, reply_id="msg_1", created=1)
    before = encoder.keep_alive()
    assert before.data.startswith(b":")
    sent = [before]
    for event in TALK:
        sent += [*encoder.encode(event), encoder.keep_alive()]
    assert read([sent[2]]) == [{"type": "ping"}]
    assert not before.acting
    assert shape(await streamed(sent).final()) == TALKED


# Errors


async def test_a_broken_stream_raises_in_the_sdk_and_never_looks_finished() -> None:
    encoder = PROTOCOL.encoder(REQUEST, reply_id="msg_1", created=1)
    sent = [*encoder.encode(STARTED), *encoder.encode(TALK[3]), *encoder.error(EngineBroken("It died."))]
    assert not any(frame.acting for frame in sent)
    assert read(sent)[-1] == {"type": "error", "error": {"type": "api_error", "message": "It died."}}
    assert b"message_stop" not in b"".join(frame.data for frame in sent)
    server = streamed(sent)
    with pytest.raises(anthropic.APIStatusError, match=r"It died\."):
        await server.final()
    assert server.asked == 1


@pytest.mark.parametrize(
    ("error", "status", "kind", "asked"),
    [
        (RequestError(400, "invalid_value", "No.", param="x"), 400, "invalid_request_error", 1),
        (RequestError(401, "no_key", "Who?"), 401, "authentication_error", 1),
        (RequestError(403, "frozen", "No more calls."), 403, "permission_error", 1),
        (RequestError(404, "model_not_found", "Which?"), 404, "not_found_error", 1),
        (RequestError(409, "conflict", "Twice."), 409, "invalid_request_error", 1),
        (RequestError(413, "too_large", "Too much."), 413, "request_too_large", 1),
        (RequestError(429, "busy", "Busy."), 529, "overloaded_error", 3),
        (EngineUnavailable("Gone."), 503, "overloaded_error", 3),
        (EngineBroken("It died."), 502, "api_error", 3),
    ],
)
async def test_each_error_has_its_type_and_is_asked_again_only_where_it_helps(
    error: RequestError, status: int, kind: str, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anthropic._base_client.INITIAL_RETRY_DELAY", 0.001)
    monkeypatch.setattr("anthropic._base_client.MAX_RETRY_DELAY", 0.001)
    encoded = PROTOCOL.encode_error(error)
    assert (encoded.status, msgspec.json.decode(encoded.body)["error"]) == (
        status,
        {"type": kind, "message": error.message},
    )
    server = Server(encoded.status, dict(encoded.headers), encoded.body)
    with pytest.raises(anthropic.APIStatusError, match=error.message):
        await server.client.messages.create(**CREATE)
    assert server.asked == asked


def test_an_overflow_is_worded_so_that_claude_code_compacts() -> None:
    encoded = PROTOCOL.encode_error(EngineRefused.context_overflow(9000, 8192))
    assert (encoded.status, msgspec.json.decode(encoded.body)) == (
        400,
        {
            "type": "error",
            "error": {"type": "invalid_request_error", "message": "prompt is too long: 9000 tokens > 8192 maximum"},
        },
    )
    bare = PROTOCOL.encode_error(EngineRefused(400, "context_length_exceeded", "It does not fit."))
    assert msgspec.json.decode(bare.body)["error"]["message"] == "prompt is too long: It does not fit."


def test_a_count_is_one_number() -> None:
    assert PROTOCOL.encode_count(7) == b'{"input_tokens":7}'
