"""The engine over sockets: recorded answers replayed by a server that fails in every way there is."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rolltape.chat import ChatRequest, EngineEvent, Finished, Message, Started
from rolltape.engines.vllm import VllmEngine
from rolltape.errors import ConfigError, EngineBroken, EngineRefused, EngineUnavailable, RequestError

from ..server import STREAM, FakeServer, answer, piece, streamed

DATA = Path(__file__).parents[2] / "data" / "vllm"
MODELS = {"object": "list", "data": [{"id": "policy", "max_model_len": 4096}, {"id": "adapter"}]}
HI = ChatRequest("anything", messages=(Message("user", "hi"),))
CHAT = streamed((DATA / "chat.sse").read_bytes())


@asynccontextmanager
async def engine(*replies: bytes, hold: bool = False, **options: Any) -> AsyncIterator[tuple[VllmEngine, FakeServer]]:
    fake = FakeServer({"/v1/models": answer(200, MODELS), "/health": answer(200, b"")}, list(replies), hold)
    async with fake.listening() as url:
        made = VllmEngine(url=url, **options)
        try:
            await made.start()
            yield made, fake
        finally:
            await made.close()


async def collect(made: VllmEngine, request: ChatRequest = HI, **sampling: Any) -> list[EngineEvent]:
    return [event async for event in made.generate(request, sampling)]


async def test_a_call_is_one_request_and_its_events_come_in_order() -> None:
    async with engine(CHAT) as (made, fake):
        events = await collect(made, max_tokens=6)

    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Finished)
    assert len(fake.bodies) == 1
    assert fake.bodies[0]["model"] == "policy"


async def test_a_model_is_asked_by_its_own_name_where_it_has_that() -> None:
    async with engine(CHAT, model="adapter") as (made, fake):
        assert [model.name for model in await made.models()] == ["adapter", "policy"]
        await collect(made)
        await collect(made, ChatRequest("policy", messages=HI.messages))

    assert [body["model"] for body in fake.bodies] == ["adapter", "policy"]


async def test_more_than_the_context_is_clamped_before_it_is_asked_for() -> None:
    async with engine(CHAT) as (made, fake):
        events = await collect(made, max_tokens=32_000)

    assert fake.bodies[0]["max_tokens"] == 4096
    assert isinstance(events[0], Started)
    assert events[0].prompt_token_ids is not None
    assert events[0].sampling_applied["max_tokens"] == 4096 - len(events[0].prompt_token_ids)


async def test_a_server_that_does_not_clamp_is_asked_once_more_with_what_is_left() -> None:
    refused = answer(
        400,
        {
            "error": {
                "message": "This model's maximum context length is 4096 tokens. However, you requested 4122 tokens "
                "(26 in the messages, 4096 in the completion). Please reduce the length."
            }
        },
    )
    async with engine(refused, CHAT) as (made, fake):
        events = await collect(made, max_tokens=32_000)

    assert [body["max_tokens"] for body in fake.bodies] == [4096, 4070]
    assert isinstance(events[0], Started)
    assert events[0].sampling_applied["max_tokens"] == 4070


async def test_a_prompt_that_leaves_no_room_is_an_overflow_with_numbers() -> None:
    refused = answer(400, {"error": {"message": "max_tokens must be at least 1, got 0. (parameter=max_tokens)"}})
    async with engine(refused) as (made, _):
        with pytest.raises(EngineRefused, match="4096 tokens") as caught:
            await collect(made, max_tokens=5)

    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (answer(400, {"error": {"message": "bad", "param": "tools"}}), EngineRefused),
        (answer(503, {"error": {"message": "sleeping"}}), EngineUnavailable),
        (answer(500, b"<html>"), EngineBroken),
        (answer(200, b"hello"), EngineBroken),
        (answer(200, [1]), EngineBroken),
        (answer(200, {}), EngineBroken),
        (streamed(b""), EngineBroken),
        (streamed(b": ping\n\ndata: [DONE]\n\n"), EngineBroken),
        (STREAM + piece(b'data: {"choices": [{"tok'), EngineBroken),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", EngineBroken),
        (b"", EngineBroken),
        (b"SSH-2.0-OpenSSH\r\n", EngineBroken),
    ],
)
async def test_each_failure_has_its_error_and_nothing_is_sent_twice(reply: bytes, error: type[RequestError]) -> None:
    """RE-08: a request that was taken and then lost may have been sampled."""
    async with engine(reply) as (made, fake):
        with pytest.raises(error):
            await collect(made)

    assert len(fake.bodies) == 1


async def test_what_came_before_a_break_was_passed_on() -> None:
    whole = (DATA / "chat.sse").read_bytes()
    got: list[EngineEvent] = []

    async def run(made: VllmEngine) -> None:
        async for event in made.generate(HI, {}):
            got.append(event)

    async with engine(STREAM + piece(whole[:1500])) as (made, _):
        with pytest.raises(EngineBroken):
            await run(made)

    assert len(got) > 2
    assert not any(isinstance(event, Finished) for event in got)


async def test_calls_after_an_idle_time_need_no_connection_of_before() -> None:
    """RE-08: every call has a connection of its own, so a server that closes idle ones loses none."""
    async with engine(CHAT) as (made, fake):
        for _ in range(3):
            await collect(made)

    assert len(fake.bodies) == 3


async def test_closing_the_iterator_closes_the_connection() -> None:
    part = STREAM + piece((DATA / "chat.sse").read_bytes()[:1500])
    async with engine(part, hold=True) as (made, fake):
        events: Any = made.generate(HI, {})
        assert isinstance(await anext(events), Started)
        await events.aclose()

        await asyncio.wait_for(fake.closed.wait(), 2)


async def test_a_line_that_no_line_reader_takes_is_read() -> None:
    """ST-06, over a socket"""
    first = {"prompt_token_ids": list(range(800_000)), "choices": [{"delta": {}}]}
    last = {"choices": [{"token_ids": [2], "delta": {"content": "x"}, "finish_reason": "stop"}]}
    data = b"".join(b"data: %s\n\n" % json.dumps(chunk).encode() for chunk in (first, last)) + b"data: [DONE]\n\n"
    async with engine(streamed(data), model="adapter") as (made, _):
        started, *_rest = await collect(made)

    assert isinstance(started, Started)
    assert started.prompt_token_ids is not None
    assert len(started.prompt_token_ids) == 800_000


async def test_tokens_of_ids_need_no_server_and_others_are_its_own_count() -> None:
    async with engine(answer(200, {"count": 26, "tokens": []})) as (made, fake):
        assert await made.count_tokens(ChatRequest("m", prompt=(1, 2, 3))) == 3
        assert await made.count_tokens(HI) == 26

    assert [body["messages"] for body in fake.bodies] == [[{"role": "user", "content": "hi"}]]


async def test_health_is_the_servers() -> None:
    async with engine(CHAT) as (made, _):
        assert await made.healthy()
        await made.close()
        assert not await made.healthy()


@pytest.mark.parametrize("options", [{"logprobs_mode": "raw_logits"}, {"tool_grammar": "?"}])
def test_an_option_that_is_none_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        VllmEngine(**options)


async def test_a_model_that_is_not_served_is_a_config_error_that_names_what_is() -> None:
    with pytest.raises(ConfigError, match="policy, adapter"):
        async with engine(CHAT, model="nope"):
            pass


async def test_nothing_at_the_address_is_a_config_error_at_start() -> None:
    with pytest.raises(ConfigError, match="does not answer like vLLM"):
        await VllmEngine(url="http://127.0.0.1:1").start()


async def test_a_server_that_has_gone_means_that_nothing_was_generated() -> None:
    async with engine(CHAT) as (made, fake):
        assert fake.listener is not None
        fake.listener.close()
        with pytest.raises(EngineUnavailable):
            await collect(made)
