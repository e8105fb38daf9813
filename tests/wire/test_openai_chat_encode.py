"""Replies and streams, read by the official `openai` SDK's own parser, and the frames on which a harness may act."""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import httpx2 as httpx
import msgspec
import numpy as np
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

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
from rolltape.tokens import token_ids
from rolltape.wire import Frame
from rolltape.wire.openai_chat import OpenAIChat

PROTOCOL = OpenAIChat()
REQUEST = ChatRequest(model="my-model", stream=True, stream_usage=True)
STARTED = Started(np.arange(5, dtype=np.int32), {})
TALK: list[EngineEvent] = [
    STARTED,
    Delta((7, 8), (-0.5, -0.25), reasoning="hm"),
    Delta((9,), (-1.0,)),
    Delta((10, 11), (-0.125, -2.0), text="北x"),
    Delta((12,), (-0.5,), tool_calls=(ToolCallDelta(0, "call_a", "bash", '{"comm'),)),
    Delta((13,), (-0.5,), tool_calls=(ToolCallDelta(0, arguments='and": "ls"'),)),
    Delta((14,), (-0.5,), tool_calls=(ToolCallDelta(1, "call_b", "read"), ToolCallDelta(1, arguments="{"))),
    Finished("tool_calls", completion_tokens=8, cached_tokens=2),
]


def frames(events: Iterable[EngineEvent], request: ChatRequest = REQUEST) -> list[Frame]:
    encoder = PROTOCOL.encoder(request, reply_id="chatcmpl-1", created=1700000000)
    return [*encoder.open(), *(frame for event in events for frame in encoder.encode(event))]


def chunks(frames: Sequence[Frame]) -> list[Any]:
    events = SseParser().feed(b"".join(frame.data for frame in frames))
    return [msgspec.json.decode(event.data) for event in events if event.data != b"[DONE]"]


class Served(httpx.AsyncByteStream):
    """Our bytes as a response body, a few at a time."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for at in range(0, len(self.data), 37):
            yield self.data[at : at + 37]


class Server:
    """The `openai` client against fixed answers; counts what it was asked."""

    def __init__(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.asked = 0

        def answer(request: httpx.Request) -> httpx.Response:
            self.asked += 1
            return httpx.Response(status, headers=headers, stream=Served(data))

        transport = httpx.MockTransport(answer)
        http = httpx.AsyncClient(transport=transport)
        self.client = openai.AsyncOpenAI(api_key="k", base_url="http://x/v1", http_client=http)

    async def stream(self) -> list[ChatCompletionChunk]:
        stream = await self.client.chat.completions.create(model="my-model", messages=[], stream=True)
        return [chunk async for chunk in stream]


def streamed(frames: Sequence[Frame]) -> Server:
    return Server(200, {"content-type": CONTENT_TYPE}, b"".join(frame.data for frame in frames))


async def test_the_sdk_reads_a_stream_as_it_was_meant() -> None:
    got = await streamed(frames(TALK)).stream()
    assert {(chunk.id, chunk.model, chunk.created, chunk.object) for chunk in got} == {
        ("chatcmpl-1", "my-model", 1700000000, "chat.completion.chunk")
    }
    assert got[0].choices[0].delta.role == "assistant"
    assert "".join(c.delta.content or "" for chunk in got for c in chunk.choices) == "北x"
    assert got[1].choices[0].delta.reasoning_content == "hm"  # type: ignore[attr-defined]
    assert [c.finish_reason for chunk in got for c in chunk.choices if c.finish_reason] == ["tool_calls"]
    usage = got[-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (5, 8, 13)
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 2
    assert got[-1].choices == []


async def test_the_sdks_own_accumulator_puts_the_tool_calls_together() -> None:
    server = streamed(frames(TALK))
    async with server.client.chat.completions.stream(model="my-model", messages=[]) as stream:
        final = await stream.get_final_completion()
    message = final.choices[0].message
    assert message.content == "北x"
    assert [(c.id, c.type, c.function.name, c.function.arguments) for c in message.tool_calls or ()] == [
        ("call_a", "function", "bash", '{"command": "ls"'),
        ("call_b", "function", "read", "{"),
    ]


async def test_the_sdk_reads_a_whole_reply() -> None:
    call = ToolCall("call_a", "bash", "{ not json", {"index": 0})
    message = Message("assistant", "北", reasoning="hm", tool_calls=(call,))
    reply = Reply("chatcmpl-1", "served", 1700000000, message, "tool_calls", Usage(5, 3, 4))
    server = Server(200, {"content-type": "application/json"}, PROTOCOL.encode_reply(REQUEST, reply))
    got = await server.client.chat.completions.create(model="my-model", messages=[])
    assert (got.id, got.object, got.model, got.created) == ("chatcmpl-1", "chat.completion", "my-model", 1700000000)
    choice = got.choices[0]
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "tool_calls", None)
    assert (choice.message.role, choice.message.content, choice.message.reasoning_content) == ("assistant", "北", "hm")  # type: ignore[attr-defined]
    assert (choice.message.tool_calls or [])[0].function.arguments == "{ not json"  # type: ignore[union-attr]
    assert got.usage is not None
    assert (got.usage.total_tokens, got.usage.prompt_tokens_details.cached_tokens) == (8, 4)  # type: ignore[union-attr]
    assert "token_ids" not in got.to_json()


def test_every_chunk_and_reply_is_what_the_sdks_types_allow() -> None:
    asked = msgspec.structs.replace(REQUEST, want_log_probs=True)
    for chunk in chunks(frames(TALK, asked)):
        ChatCompletionChunk.model_validate(chunk, strict=True)
    reply = Reply("r", "m", 1, Message("assistant", "a"), "stop", Usage(1, 1), (5,), (-0.5,), ("a",))
    ChatCompletion.model_validate_json(PROTOCOL.encode_reply(asked, reply), strict=True)


# What may be acted on


def test_only_the_finish_chunk_and_what_follows_it_may_be_acted_on() -> None:
    sent = frames(TALK)
    acting = [frame for frame in sent if frame.acting]
    assert sent[-3:] == acting
    finish, usage = chunks(acting)
    assert finish["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "tool_calls"}
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 8)
    assert acting[2].data == b"data: [DONE]\n\n"
    assert all(c["finish_reason"] is None for chunk in chunks(sent[:-3]) for c in chunk["choices"])


def test_without_include_usage_no_chunk_is_without_choices() -> None:
    sent = chunks(frames(TALK, ChatRequest(model="m", stream=True)))
    assert all(chunk["choices"] and "usage" not in chunk for chunk in sent)


def test_usage_is_left_out_rather_than_invented_when_the_prompt_is_not_known() -> None:
    sent = chunks(frames([Started(None, {}), Delta((1,), (-1.0,), "a"), Finished("stop")]))
    assert not any("usage" in chunk for chunk in sent)


def test_tokens_are_counted_where_the_engine_does_not() -> None:
    sent = chunks(frames([STARTED, Delta((1, 2), (-1.0, -1.0), "a"), Finished("stop")]))
    assert sent[-1]["usage"]["completion_tokens"] == 2


def test_tokens_that_show_nothing_send_nothing() -> None:
    encoder = PROTOCOL.encoder(REQUEST, reply_id="r", created=1)
    assert list(encoder.encode(STARTED)) == []
    assert list(encoder.encode(Delta((1,), (-1.0,)))) == []


async def test_keep_alive_is_a_chunk_that_the_sdk_takes_and_that_holds_nothing() -> None:
    encoder = PROTOCOL.encoder(REQUEST, reply_id="r", created=1)
    alive = encoder.keep_alive()
    assert not alive.acting
    assert chunks([alive])[0]["choices"] == []
    got = await streamed([*encoder.open(), alive, *encoder.encode(Finished("stop"))]).stream()
    assert [len(chunk.choices) for chunk in got] == [1, 0, 1]


async def test_a_broken_stream_raises_in_the_sdk_and_never_looks_finished() -> None:
    encoder = PROTOCOL.encoder(REQUEST, reply_id="r", created=1)
    sent = [
        *encoder.open(),
        *encoder.encode(STARTED),
        *encoder.encode(TALK[3]),
        *encoder.error(EngineBroken("It died.")),
    ]
    assert not any(frame.acting for frame in sent)
    assert b"[DONE]" not in b"".join(frame.data for frame in sent)
    server = streamed(sent)
    with pytest.raises(openai.APIError, match=r"It died\."):
        await server.stream()
    assert server.asked == 1


@pytest.mark.parametrize("second_index", [0, 1])
def test_a_new_id_starts_a_new_call_whatever_its_index(second_index: int) -> None:
    calls = [
        ToolCallDelta(0, "a", "f", '{"x":1}'),
        ToolCallDelta(second_index, "b", "f", '{"x":'),
        ToolCallDelta(second_index, arguments="2}"),
        ToolCallDelta(0, "c", "g", "{}"),
    ]
    sent = chunks(frames([STARTED, *(Delta(tool_calls=(call,)) for call in calls), Finished("tool_calls")]))
    pieces = [piece for chunk in sent for c in chunk["choices"] for piece in c["delta"].get("tool_calls", ())]
    assert [(piece["index"], piece.get("id"), piece["function"]["arguments"]) for piece in pieces] == [
        (0, "a", '{"x":1}'),
        (1, "b", '{"x":'),
        (1, None, "2}"),
        (2, "c", "{}"),
    ]


# What only those see who ask


def test_log_probs_are_told_to_those_who_ask_and_unknown_ones_are_null() -> None:
    asked = msgspec.structs.replace(REQUEST, want_log_probs=True)
    delta = Delta((5, 6, 7), (-0.5, None), "ab", token_texts=("a", "北", "<0xC3>"))
    sent = chunks(frames([STARTED, delta, Finished("stop")], asked))
    assert sent[1]["choices"][0]["logprobs"]["content"] == [
        {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []},
        {"token": "北", "logprob": None, "bytes": [229, 140, 151], "top_logprobs": []},
        {"token": "<0xC3>", "logprob": None, "bytes": None, "top_logprobs": []},
    ]
    assert all(c["logprobs"] is None for chunk in chunks(frames([STARTED, delta])) for c in chunk["choices"])


def test_a_token_whose_text_the_engine_hides_is_named_by_its_id() -> None:
    asked = msgspec.structs.replace(REQUEST, want_log_probs=True)
    sent = chunks(frames([STARTED, Delta((5,), (float("nan"),))], asked))
    assert sent[1]["choices"][0]["logprobs"]["content"] == [
        {"token": "token_id:5", "logprob": None, "bytes": None, "top_logprobs": []}
    ]


def test_ids_are_told_to_those_who_ask_as_vllm_does() -> None:
    asked = msgspec.structs.replace(REQUEST, extra={"return_token_ids": True})
    sent = chunks(frames(TALK, asked))
    assert sent[1]["prompt_token_ids"] == [0, 1, 2, 3, 4]
    ids = [token for chunk in sent for c in chunk["choices"] for token in c.get("token_ids", ())]
    assert ids == [7, 8, 9, 10, 11, 12, 13, 14]
    reply = Reply("r", "m", 1, Message("assistant", "a"), "stop", Usage(1, 1), (5,), prompt_token_ids=token_ids([3, 4]))
    body = msgspec.json.decode(PROTOCOL.encode_reply(asked, reply))
    assert (body["prompt_token_ids"], body["choices"][0]["token_ids"]) == ([3, 4], [5])
    assert "token_ids" not in str(chunks(frames(TALK))) + str(
        msgspec.json.decode(PROTOCOL.encode_reply(REQUEST, reply))
    )


# Errors, as the SDK reacts


@pytest.mark.parametrize(
    ("error", "raised", "asked"),
    [
        (RequestError(403, "frozen", "No more calls."), openai.PermissionDeniedError, 1),
        (RequestError(409, "conflict", "Twice."), openai.ConflictError, 1),
        (EngineRefused.context_overflow(9000, 8192), openai.BadRequestError, 1),
        (EngineBroken("It died."), openai.InternalServerError, 3),
    ],
)
async def test_the_sdk_raises_its_own_error_and_asks_again_only_where_it_helps(
    error: RequestError, raised: type[openai.APIStatusError], asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.001)
    monkeypatch.setattr("openai._base_client.MAX_RETRY_DELAY", 0.001)
    encoded = PROTOCOL.encode_error(error)
    server = Server(encoded.status, dict(encoded.headers), encoded.body)
    with pytest.raises(raised) as caught:
        await server.client.chat.completions.create(model="m", messages=[])
    assert (caught.value.code, server.asked) == (error.code, asked)


def test_an_overflow_names_the_limit_as_openai_does() -> None:
    encoded = PROTOCOL.encode_error(EngineRefused.context_overflow(9000, 8192))
    error = msgspec.json.decode(encoded.body)["error"]
    assert error["message"].startswith("This model's maximum context length is 8192 tokens. However, your messages")
    assert error["param"] == "messages"
