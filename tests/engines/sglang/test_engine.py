"""The engine over sockets: recorded answers replayed by a server that fails in every way there is."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rolltape.chat import ChatRequest, EngineEvent, Finished, Message, Started
from rolltape.engines.sglang import SglangEngine
from rolltape.errors import ConfigError, EngineBroken, EngineRefused, EngineUnavailable, RequestError
from rolltape.registry import load

from ..server import STREAM, FakeServer, answer, piece, streamed
from ..tape import entry
from .recorded import answer as recorded_body
from .recorded import chunks, recording

CARDS = {"data": [{"id": "policy", "max_model_len": 4096}, {"id": "tuned", "parent": "policy", "max_model_len": None}]}
HI = ChatRequest("anything", messages=(Message("user", "hi"),))
PROMPT = chunks("chat_stream_sglext_hdr")[-1]["sglext"]["input_ids"]
RAW = ChatRequest("anything", prompt=tuple(recording("generate_stream")["request"]["input_ids"]))
WHOLE = answer(200, recorded_body("chat_ids"))
CHAT = streamed(recorded_body("chat_stream_sglext_hdr"))
NATIVE = streamed(recorded_body("generate_stream"))
TOO_MANY = (
    "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of 4122 "
    "tokens: 26 tokens from the input messages and 4096 tokens for the completion."
)


@asynccontextmanager
async def engine(
    *replies: bytes, hold: bool = False, info: Any = None, rendered: Any = None, **options: Any
) -> AsyncIterator[tuple[SglangEngine, FakeServer]]:
    fixed = {
        "/v1/models": answer(200, CARDS),
        "/health": answer(200, b""),
        "/server_info": answer(404, {}) if info is None else answer(200, info),
        "/tokenize": answer(200, rendered or {"tokens": PROMPT, "count": len(PROMPT)}),
    }
    fake = FakeServer(fixed, list(replies), hold)
    async with fake.listening() as url:
        made = SglangEngine(url=url, **options)
        try:
            await made.start()
            yield made, fake
        finally:
            await made.close()


async def collect(made: SglangEngine, request: ChatRequest = HI, **sampling: Any) -> list[EngineEvent]:
    return [event async for event in made.generate(request, sampling)]


async def test_a_server_without_a_parser_is_asked_for_whole_answers() -> None:
    """Its streams leave out the stop token's log-prob."""
    async with engine(WHOLE, info={"sampling_defaults": "openai"}) as (made, fake):
        events = await collect(made, max_tokens=3)

    assert fake.paths == ["/v1/chat/completions"]
    assert fake.bodies[0]["stream"] is False
    assert made.gives.policy_version
    assert entry(events).faults == ()
    assert isinstance(events[0], Started)
    assert events[0].log_prob_kind == "raw"


@pytest.mark.parametrize(
    "options",
    [{"info": {"tool_call_parser": "qwen"}}, {"info": {"reasoning_parser": "qwen3"}}, {"answers": "streamed"}],
)
async def test_a_server_with_a_parser_streams_and_its_prompt_is_known_first(options: dict[str, Any]) -> None:
    async with engine(CHAT, **options) as (made, fake):
        events = await collect(made, max_tokens=9_000)

    assert fake.bodies[0]["stream"] is True
    assert not made.gives.policy_version
    assert fake.bodies[0]["max_tokens"] == 4096 - len(PROMPT)
    assert isinstance(events[0], Started)
    assert events[0].prompt_token_ids is not None
    assert events[0].prompt_token_ids.tolist() == PROMPT
    assert entry(events).faults == ()


async def test_images_are_asked_for_whole() -> None:
    """What stands for them in the prompt is not in `/tokenize`."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
    request = ChatRequest("m", messages=(Message("user", (image,)),))
    async with engine(WHOLE, answers="streamed") as (made, fake):
        await collect(made, request)
        with pytest.raises(EngineRefused, match="counts images only"):
            await made.count_tokens(request)

    assert fake.bodies[0]["stream"] is False


async def test_a_raw_prompt_goes_to_the_native_endpoint() -> None:
    async with engine(NATIVE) as (made, fake):
        events = await collect(made, RAW, max_tokens=9_000)

    assert fake.paths == ["/generate"]
    assert fake.bodies[0]["sampling_params"]["max_new_tokens"] == 4096 - 26
    assert entry(events).faults == ()


async def test_an_adapter_is_asked_for_by_the_field_that_loads_it() -> None:
    """Its bare name as the model would be answered by the base model."""
    async with engine(WHOLE, NATIVE, model="tuned") as (made, fake):
        await collect(made)
        await collect(made, RAW)
        assert [(one.name, one.context_length) for one in await made.models()] == [("tuned", 4096), ("policy", 4096)]

    assert [body["lora_path"] for body in fake.bodies] == ["tuned", "tuned"]


@pytest.mark.parametrize(
    ("refusal", "then", "request_"),
    [
        (answer(400, {"object": "error", "message": TOO_MANY, "code": 400}), WHOLE, HI),
        (
            streamed(b"data: %s\n\n" % json.dumps({"error": {"message": TOO_MANY, "code": 400}}).encode()),
            NATIVE,
            ChatRequest("m", prompt="What is the capital of France?"),
        ),
    ],
)
async def test_more_than_fits_is_asked_once_more_with_what_is_left(
    refusal: bytes, then: bytes, request_: ChatRequest
) -> None:
    async with engine(refusal, then) as (made, fake):
        events = await collect(made, request_, max_tokens=4096)

    assert [body.get("sampling_params", {}).get("max_new_tokens", body.get("max_tokens")) for body in fake.bodies] == [
        4096,
        4070,
    ]
    assert isinstance(events[0], Started)
    assert events[0].sampling_applied["max_tokens"] == 4070


async def test_a_server_that_always_says_too_many_is_asked_no_third_time() -> None:
    async with engine(answer(400, {"message": TOO_MANY})) as (made, fake):
        with pytest.raises(EngineRefused):
            await collect(made, max_tokens=4096)

    assert len(fake.bodies) == 2


async def test_a_prompt_that_leaves_no_room_is_an_overflow_with_numbers_and_is_not_sent() -> None:
    async with engine(CHAT, answers="streamed", rendered={"tokens": list(range(4096))}) as (made, fake):
        with pytest.raises(EngineRefused) as caught:
            await collect(made)

    assert caught.value.overflow == (4096, 4096)
    assert fake.bodies == []


async def test_a_server_that_renders_nothing_is_broken_and_never_counted_for() -> None:
    async with engine(CHAT, answers="streamed", rendered={"detail": "?"}) as (made, fake):
        with pytest.raises(EngineBroken, match="rendered no prompt"):
            await collect(made)
        with pytest.raises(EngineBroken, match="counted no tokens"):
            await made.count_tokens(HI)

    assert fake.bodies == []


@pytest.mark.parametrize("request_", [HI, RAW])
@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (answer(400, {"object": "error", "message": "bad", "param": "tools"}), EngineRefused),
        (answer(401, {"error": "Unauthorized"}), EngineBroken),
        (answer(503, {"object": "error", "message": "The request queue is full."}), EngineUnavailable),
        (answer(500, b"<html>"), EngineBroken),
        (answer(200, b"hello"), EngineBroken),
        (answer(200, [1]), EngineBroken),
        (answer(200, {}), EngineBroken),
        (streamed(b""), EngineBroken),
        (streamed(b": ping\n\ndata: [DONE]\n\n"), EngineBroken),
        (STREAM + piece(b'data: {"choices": [{"tok'), EngineBroken),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", EngineBroken),
        (b"", EngineBroken),
    ],
)
async def test_each_failure_has_its_error_and_nothing_is_sent_twice(
    reply: bytes, error: type[RequestError], request_: ChatRequest
) -> None:
    async with engine(reply) as (made, fake):
        with pytest.raises(error):
            await collect(made, request_)

    assert len(fake.bodies) == 1


async def test_what_came_before_a_break_was_passed_on() -> None:
    got: list[EngineEvent] = []

    async def run(made: SglangEngine) -> None:
        async for event in made.generate(RAW, {}):
            got.append(event)

    async with engine(STREAM + piece(recorded_body("generate_stream")[:900])) as (made, _):
        with pytest.raises(EngineBroken):
            await run(made)

    assert len(got) > 1
    assert not any(isinstance(event, Finished) for event in got)


@pytest.mark.parametrize("request_", [HI, RAW])
async def test_closing_the_iterator_closes_the_connection(request_: ChatRequest) -> None:
    body = recorded_body("chat_stream_sglext_hdr" if request_ is HI else "generate_stream")[:900]
    async with engine(STREAM + piece(body), hold=True, answers="streamed") as (made, fake):
        events: Any = made.generate(request_, {})
        assert isinstance(await anext(events), Started)
        await events.aclose()

        await asyncio.wait_for(fake.closed.wait(), 2)


async def test_tokens_of_ids_need_no_server_and_others_are_its_own_count() -> None:
    async with engine(WHOLE) as (made, _):
        assert await made.count_tokens(RAW) == 26
        assert await made.count_tokens(HI) == 26


async def test_health_is_the_servers() -> None:
    async with engine(WHOLE) as (made, _):
        assert await made.healthy()
        await made.close()
        assert not await made.healthy()


@pytest.mark.parametrize("options", [{"answers": "?"}, {"tool_grammar": "?"}, {"original_logprobs": "yes"}])
def test_an_option_that_is_none_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        SglangEngine(**options)


async def test_nothing_at_the_address_is_a_config_error_at_start() -> None:
    with pytest.raises(ConfigError, match="does not answer like SGLang"):
        await SglangEngine(url="http://127.0.0.1:1").start()


def test_its_name_loads_it() -> None:
    assert load("engine", "sglang") is SglangEngine
