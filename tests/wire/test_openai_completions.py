"""Legacy completions: one raw prompt in, its continuation out, read by the official `openai` SDK."""

from collections.abc import Iterable, Sequence
from typing import Any

import httpx2 as httpx
import msgspec
import numpy as np
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolltape.chat import ChatRequest, Delta, EngineEvent, Finished, Message, Reply, Started, Usage
from rolltape.errors import EngineBroken, RequestError
from rolltape.sse import CONTENT_TYPE, SseParser
from rolltape.tokens import token_ids
from rolltape.wire import Frame
from rolltape.wire.openai_completions import OpenAICompletions

PROTOCOL = OpenAICompletions()
STARTED = Started(np.arange(5, dtype=np.int32), {})
TALK: list[EngineEvent] = [
    STARTED,
    Delta((10,), (-0.5,), "ab", token_texts=("ab",)),
    Delta((11,), (-0.25,), token_texts=("<0xE5>",)),
    Delta((12, 2), (None, -1.0), "北", token_texts=("c", "</s>")),
    Finished("stop", completion_tokens=4, cached_tokens=1),
]


def decode(**fields: Any) -> ChatRequest:
    return decode_bytes(msgspec.json.encode({"model": "m", "prompt": "once"} | fields))


def decode_bytes(body: bytes) -> ChatRequest:
    return PROTOCOL.decode("/v1/completions", body, {})


def frames(events: Iterable[EngineEvent], **fields: Any) -> list[Frame]:
    encoder = PROTOCOL.encoder(decode(**fields), reply_id="cmpl-1", created=1700000000)
    return [*encoder.open(), *(frame for event in events for frame in encoder.encode(event))]


def chunks(sent: Sequence[Frame]) -> list[Any]:
    events = SseParser().feed(b"".join(frame.data for frame in sent))
    return [msgspec.json.decode(event.data) for event in events if event.data != b"[DONE]"]


def sdk(data: bytes, content_type: str) -> openai.AsyncOpenAI:
    def answer(asked: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": content_type}, content=data)

    http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    return openai.AsyncOpenAI(api_key="k", base_url="http://x/v1", http_client=http, max_retries=0)


# Requests


@pytest.mark.parametrize(
    ("prompt", "raw"),
    [
        ("once", "once"),
        (["once"], "once"),
        ([5, 6], (5, 6)),
        ([[5, 6]], (5, 6)),
        (" <|im_start|>\n", " <|im_start|>\n"),
    ],
)
def test_one_prompt_is_kept_as_it_is(prompt: Any, raw: Any) -> None:
    got = decode(prompt=prompt)
    assert (got.prompt, got.messages) == (raw, ())


@pytest.mark.parametrize(
    "prompt",
    [None, "", [], [[]], [""], ["a", "b"], [[5], [6]], [5, "a"], ["a", 5], [-1], [2**40], [1.5], [True], 7, {}],
)
def test_no_prompt_several_prompts_and_what_is_none_are_refused(prompt: Any) -> None:
    with pytest.raises(RequestError) as caught:
        decode(prompt=prompt)
    assert (caught.value.status, caught.value.param) == (400, "prompt")


def test_sampling_is_as_sent_and_without_a_limit_it_is_the_protocols_own() -> None:
    assert decode().sampling == {"max_tokens": 16}
    assert decode(max_tokens=None).sampling == {"max_tokens": 16}
    got = decode(max_tokens=5, stop="x", temperature=0, n=1, best_of=1, echo=False, suffix=None, user="u")
    assert got.sampling == {"max_tokens": 5, "stop": ["x"], "temperature": 0}
    assert got.extra == {"user": "u"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("best_of", 2),
        ("echo", True),
        ("suffix", "end"),
        ("prompt_logprobs", 1),
        ("logprobs", -1),
        ("logprobs", True),
        ("model", None),
        ("stream", 1),
        ("max_tokens", 0),
        ("stop", [1]),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        decode(**{field: value})
    assert (caught.value.status, caught.value.param) == (400, field)


@pytest.mark.parametrize(("asked", "want"), [(None, False), (0, True), (3, True)])
def test_log_probs_are_asked_for_by_a_number(asked: Any, want: bool) -> None:
    assert decode(logprobs=asked).want_log_probs is want


def status(body: bytes) -> int:
    try:
        msgspec.json.encode(decode_bytes(body))
    except RequestError as error:
        return error.status
    return 200


LEAF = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
VALUE = LEAF | st.lists(LEAF | st.lists(LEAF, max_size=2), max_size=3) | st.dictionaries(st.text(max_size=3), LEAF)
FIELDS = ("prompt", "logprobs", "stream", "stream_options", "stop", "max_tokens", "response_format", "n", "logit_bias")


@settings(max_examples=200, deadline=None)
@given(st.fixed_dictionaries({"model": st.just("m")}, optional=dict.fromkeys(FIELDS, VALUE)), st.binary(max_size=40))
def test_any_request_decodes_or_is_refused(body: Any, noise: bytes) -> None:
    assert status(msgspec.json.encode(body)) in (200, 400)
    assert status(noise) == 400


# Replies


async def test_the_sdk_reads_a_stream() -> None:
    sent = frames(TALK, logprobs=0, stream_options={"include_usage": True})
    client = sdk(b"".join(frame.data for frame in sent), CONTENT_TYPE)
    got = [chunk async for chunk in await client.completions.create(model="m", prompt="once", stream=True)]
    assert "".join(choice.text for chunk in got for choice in chunk.choices) == "ab北"
    assert [c.finish_reason for chunk in got for c in chunk.choices if c.finish_reason] == ["stop"]
    assert got[-1].usage is not None
    assert (got[-1].usage.prompt_tokens, got[-1].usage.completion_tokens) == (5, 4)
    told = [c.logprobs for chunk in got for c in chunk.choices if c.logprobs]
    assert [token for one in told for token in one.tokens or ()] == ["ab", "<0xE5>", "c", "</s>"]
    assert [value for one in told for value in one.token_logprobs or ()] == [-0.5, -0.25, None, -1.0]
    assert [at for one in told for at in one.text_offset or ()] == [0, 2, 8, 9]


async def test_the_sdk_reads_a_whole_reply() -> None:
    message, ids = Message("assistant", "ab"), (10, 2)
    reply = Reply("cmpl-1", "served", 1700000000, message, "length", Usage(5, 2, 1), ids, (-0.5, None), ("ab", "</s>"))
    client = sdk(PROTOCOL.encode_reply(decode(logprobs=0), reply), "application/json")
    got = await client.completions.create(model="m", prompt="once")
    assert (got.id, got.object, got.model, got.created) == ("cmpl-1", "text_completion", "m", 1700000000)
    (choice,) = got.choices
    assert (choice.text, choice.finish_reason) == ("ab", "length")
    assert choice.logprobs is not None
    assert (choice.logprobs.tokens, choice.logprobs.token_logprobs) == (["ab", "</s>"], [-0.5, None])
    assert got.usage is not None
    assert (got.usage.total_tokens, got.usage.prompt_tokens_details.cached_tokens) == (7, 1)  # type: ignore[union-attr]


def test_only_the_finish_chunk_and_what_follows_it_may_be_acted_on() -> None:
    sent = frames(TALK, stream_options={"include_usage": True})
    assert [frame.acting for frame in sent] == [False, False, True, True, True]
    assert sent[-1].data == b"data: [DONE]\n\n"
    finish, usage = chunks(sent[-3:])
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert (usage["choices"], usage["usage"]["total_tokens"]) == ([], 9)


def test_chunks_show_no_log_probs_unless_asked() -> None:
    assert all("logprobs" in c and c["logprobs"] is None for chunk in chunks(frames(TALK)) for c in chunk["choices"])


def test_ids_are_told_to_those_who_ask_as_vllm_does() -> None:
    sent = chunks(frames(TALK, return_token_ids=True))
    assert sent[0]["choices"][0]["prompt_token_ids"] == [0, 1, 2, 3, 4]
    assert [t for chunk in sent for c in chunk["choices"] for t in c.get("token_ids", ())] == [10, 11, 12, 2]
    reply = Reply("r", "m", 1, Message("assistant", "a"), "stop", Usage(1, 1), (5,), prompt_token_ids=token_ids([3, 4]))
    (choice,) = msgspec.json.decode(PROTOCOL.encode_reply(decode(return_token_ids=True), reply))["choices"]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([3, 4], [5])
    assert "token_ids" not in str(chunks(frames(TALK)))


async def test_a_broken_stream_raises_in_the_sdk_and_never_looks_finished() -> None:
    encoder = PROTOCOL.encoder(decode(), reply_id="r", created=1)
    sent = [f for event in TALK[:-1] for f in encoder.encode(event)] + [*encoder.error(EngineBroken("It died."))]
    assert not any(frame.acting for frame in sent)
    client = sdk(b"".join(frame.data for frame in sent), CONTENT_TYPE)
    with pytest.raises(openai.APIError, match=r"It died\."):
        _ = [chunk async for chunk in await client.completions.create(model="m", prompt="a", stream=True)]


def test_a_stream_is_the_same_wherever_two_reads_meet() -> None:
    data = b"".join(frame.data for frame in frames(TALK, logprobs=0))
    whole = SseParser().feed(data)
    for at in range(len(data)):
        parser = SseParser()
        assert parser.feed(data[:at]) + parser.feed(data[at:]) == whole


def test_retry_marks_are_kept_and_credentials_are_not() -> None:
    tags = PROTOCOL.tagged({"X-Stainless-Retry-Count": "1", "Authorization": "Bearer x", "User-Agent": "u"})
    assert tags == {"x-stainless-retry-count": "1", "user-agent": "u"}
