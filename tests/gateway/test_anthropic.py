"""Anthropic Messages through a real gateway: the official SDK, the store, and the order between them."""

import asyncio
import contextlib
import json

import anthropic
import pytest

from rolltape.record import Delivery, Outcome
from rolltape.testing.scripted import Fault, ScriptedEngine, Step, encode

from .conftest import until

MESSAGES = "/v1/messages"
ASK = {"model": "scripted", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}
BASH = {"name": "Bash", "description": "Run.", "input_schema": {"type": "object", "properties": {}}}
ACT = Step(reasoning="hm", text="look", tool_calls=(("Bash", '{"command": "ls"}'), ("Bash", '{"command": "pwd"}')))


def sdk(lab, rollout="R1") -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=f"{lab.url}/rollout/{rollout}", api_key="dummy", max_retries=0)


def url(lab, rollout="R1", path=MESSAGES) -> str:
    return f"{lab.url}/rollout/{rollout}{path}?beta=true"


async def say(client, *, stream: bool, **fields):
    """One call: the SDK's final message."""
    if not stream:
        return await client.messages.create(**ASK | fields)
    async with client.messages.stream(**ASK | fields) as events:
        return await events.get_final_message()


async def post(lab, path=MESSAGES, rollout="R1", headers=None, **fields):
    async with lab.http.post(url(lab, rollout, path), json=ASK | fields, headers=headers) as response:
        return response.status, await response.json()


async def until_silent(response) -> bytes:
    """What came until nothing did for a while."""
    seen = b""
    with contextlib.suppress(TimeoutError):
        while not response.content.at_eof():
            seen += await asyncio.wait_for(response.content.readany(), 0.3)
    return seen


async def settled(lab):
    """The only entry, once its delivery is known."""
    for _ in range(250):
        entries = await lab.entries()
        if entries and entries[0].delivery != Delivery.UNKNOWN:
            return entries[0]
        await asyncio.sleep(0.02)
    raise AssertionError("no delivery was noted")


@pytest.mark.parametrize("stream", [False, True])
async def test_the_sdk_gets_its_reply_and_the_store_its_exact_ids(gateway, stream):
    async with gateway(script=[Step(text="hello there")]) as lab, sdk(lab) as client:
        reply = await say(client, stream=stream)
        (entry,) = await lab.entries()
    assert [block.text for block in reply.content] == ["hello there"]
    assert (reply.id, reply.model, reply.stop_reason) == (entry.response_id, "scripted", "end_turn")
    assert reply.id == f"msg_{entry.model_call_id}"
    assert entry.generation_token_ids.tolist()[:-1] == encode("hello there")
    assert reply.usage.input_tokens == len(entry.prompt_token_ids)
    assert reply.usage.output_tokens == len(entry.generation_token_ids)
    assert (entry.outcome, entry.faults, entry.protocol) == ("completed", (), "anthropic_messages")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echoed_turn_extends_the_chain_to_the_token(gateway, stream):
    async with gateway(script=[ACT, Step(text="done")]) as lab, sdk(lab) as client:
        reply = await say(client, stream=stream, tools=[BASH])
        thought, text, *calls = reply.content
        assert (thought.thinking, text.text, reply.stop_reason) == ("hm", "look", "tool_use")
        assert [call.input for call in calls] == [{"command": "ls"}, {"command": "pwd"}]
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": "out"} for call in calls]
        history = [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in reply.content]},
            {"role": "user", "content": [*results, {"type": "text", "text": "go on"}]},
            {"role": "system", "content": "a reminder"},
        ]
        await say(client, stream=stream, tools=[BASH], messages=history)
        first, second = await lab.entries()
    assert thought.signature == f"rolltape.msg_{first.model_call_id}.0"
    assert second.parent_call_id == first.model_call_id
    assert second.prompt_token_ids.tolist()[: first.length] == first.sequence.tolist()


@pytest.mark.parametrize(
    ("step", "held"), [(Step(text="hello there"), b"content_block_stop"), (ACT, b'"content_block_stop","index":2}')]
)
async def test_what_a_harness_acts_on_waits_for_the_durable_entry(gateway, monkeypatch, step, held):
    async with gateway(engine=ScriptedEngine(script=[step], chunk=6)) as lab:
        gate, put = asyncio.Event(), lab.store.put

        async def slow_put(entry):
            await gate.wait()
            await put(entry)

        monkeypatch.setattr(lab.store, "put", slow_put)
        async with lab.http.post(url(lab), json=ASK | {"stream": True}) as response:
            seen = await until_silent(response)
            assert b"delta" in seen
            assert held not in seen
            assert b"message_delta" not in seen
            gate.set()
            seen += await response.content.read()
    assert held in seen
    assert b"event: message_stop\n" in seen


async def test_deltas_leave_as_they_are_sampled(gateway):
    step = Step(text="abcdefgh" * 2, tool_calls=(("Bash", '{"command": "' + "x" * 20 + '"}'),))
    async with gateway(engine=ScriptedEngine(script=[step], delay=0.03, chunk=4)) as lab:
        loop = asyncio.get_running_loop()
        times = {b"text_delta": [], b"input_json_delta": []}
        async with lab.http.post(url(lab), json=ASK | {"stream": True}) as response:
            async for line in response.content:
                for kind, at in times.items():
                    if line.startswith(b"data") and kind in line:
                        at.append(loop.time())
    for at in times.values():
        assert at[-1] - at[0] > 0.08, "the deltas came all at once"


@pytest.mark.parametrize("query", ["", "?beta=true"])
async def test_counting_adds_no_record_and_agrees_with_the_call(gateway, query):
    async with gateway() as lab, sdk(lab) as client:
        body = {"model": "scripted", "system": "S", "tools": [BASH], "messages": ASK["messages"]}
        path = f"{lab.url}/rollout/R1{MESSAGES}/count_tokens{query}"
        async with lab.http.post(path, json=body) as response:
            status, counted = response.status, await response.json()
        assert await lab.store.read("R1") is None
        reply = await client.messages.create(**ASK | body)
        assert len(await lab.entries()) == 1
    assert (status, counted) == (200, {"input_tokens": reply.usage.input_tokens})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fault", "status", "kind", "outcome"),
    [
        (Fault.REFUSE_400, 400, "invalid_request_error", Outcome.REFUSED),
        (Fault.OVERFLOW, 400, "invalid_request_error", Outcome.REFUSED),
        (Fault.UNAVAILABLE, 503, "overloaded_error", Outcome.FAILED),
        (Fault.ERROR_500, 500, "api_error", Outcome.FAILED),
    ],
)
async def test_an_engine_that_fails_before_any_token_gives_a_typed_error(gateway, fault, status, kind, outcome, stream):
    async with gateway(script=[Step(text="hello", fault=fault)]) as lab:
        got, body = await post(lab, stream=stream)
        (entry,) = await lab.entries()
    assert (got, body["type"], body["error"]["type"], entry.outcome) == (status, "error", kind, outcome)


async def test_an_overflow_makes_claude_code_compact(gateway):
    async with gateway(engine=ScriptedEngine(context_length=40)) as lab:
        status, body = await post(lab, messages=[{"role": "user", "content": "x" * 60}])
    words = body["error"]["message"].split()
    assert (status, words[:4], words[5:7], words[8]) == (
        400, ["prompt", "is", "too", "long:"], ["tokens", ">"], "maximum",
    )  # fmt: skip
    assert int(words[4]) > int(words[7]) == 40


async def test_a_stream_that_breaks_ends_in_an_error_event(gateway):
    async with gateway(script=[Step(text="hello there", fault=Fault.DIE_MID_STREAM, after=6)]) as lab:
        async with lab.http.post(url(lab), json=ASK | {"stream": True}) as response:
            seen = await response.text()
        (entry,) = await lab.entries()
    assert seen.rstrip().splitlines()[-2] == "event: error"
    assert "message_stop" not in seen
    assert "content_block_stop" not in seen
    assert (entry.outcome, entry.generation_token_ids.tolist()) == (Outcome.FAILED, encode("hello there")[:6])


async def test_a_client_that_leaves_before_the_end_never_had_a_finished_block(gateway):
    async with gateway(engine=ScriptedEngine(script=[Step(text="x" * 400)], delay=0.02)) as lab:
        async with lab.http.post(url(lab), json=ASK | {"stream": True}) as response:
            seen = b""
            while b"text_delta" not in seen:
                seen += await response.content.readany()
            response.close()
        await until(lambda: lab.engine.aborted == 1)
        entry = await settled(lab)
    assert b"content_block_stop" not in seen
    assert (entry.outcome, entry.delivery) == (Outcome.CANCELLED, Delivery.UNDELIVERED)


async def test_a_frozen_rollout_stops_claude_code_at_once(gateway):
    async with gateway() as lab:
        await post(lab)
        await lab.store.freeze("R1")
        status, body = await post(lab, stream=True)
    assert (status, body["error"]["type"]) == (403, "permission_error")


async def test_silence_is_filled_with_what_claude_code_counts_as_life(gateway):
    limits = {"keep_alive_seconds": 0.05, "first_byte_seconds": 0.05}
    step = Step(text="late", delay=0.2)
    async with (
        gateway(engine=ScriptedEngine(script=[step], chunk=2), limits=limits) as lab,
        lab.http.post(url(lab), json=ASK | {"stream": True}) as response,
    ):
        seen = await response.text()
    assert "event: ping\n" in seen
    assert seen.index("event: message_start") < seen.index("event: ping")


async def test_the_marks_of_sub_agents_are_recorded_and_the_key_is_not(gateway):
    headers = {
        "x-claude-code-session-id": "s1", "x-claude-code-agent-id": "a1", "x-api-key": "secret", "x-app": "cli",
    }  # fmt: skip
    async with gateway() as lab:
        await post(lab, headers=headers)
        (entry,) = await lab.entries()
    assert {name: entry.headers.get(name) for name in headers if name != "x-api-key"} == {
        "x-claude-code-session-id": "s1", "x-claude-code-agent-id": "a1", "x-app": "cli",
    }  # fmt: skip
    assert "secret" not in json.dumps(dict(entry.headers))


async def test_the_requested_name_is_echoed_and_both_names_are_recorded(gateway):
    async with gateway(model_aliases=["*"]) as lab:
        status, body = await post(lab, model="claude-haiku-4-5")
        (entry,) = await lab.entries()
    assert (status, body["model"], entry.model_asked, entry.model) == (
        200, "claude-haiku-4-5", "claude-haiku-4-5", "scripted",
    )  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages?beta=true", "//v1/messages"])
async def test_the_ways_in_which_clients_join_paths_reach_the_rollout(gateway, path):
    async with gateway() as lab:
        async with lab.http.post(f"{lab.url}/rollout/R1{path}", json=ASK) as response:
            assert response.status == 200
        assert len(await lab.entries()) == 1


@pytest.mark.parametrize(("method", "path", "status"), [
    ("POST", f"{MESSAGES}/batches", 404), ("POST", f"{MESSAGES}/", 404), ("GET", f"{MESSAGES}/batches/b1", 404),
    ("GET", MESSAGES, 405), ("GET", f"{MESSAGES}/count_tokens", 405), ("PUT", MESSAGES, 404),
])  # fmt: skip
async def test_what_is_no_call_on_the_protocol_s_paths_is_refused_in_its_words(gateway, method, path, status):
    async with gateway() as lab:
        async with lab.http.request(method, url(lab, path=path), json=ASK) as response:
            body = await response.json()
        assert (response.status, body["type"]) == (status, "error")
        assert await lab.entries() == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_that_a_stop_sequence_ended_names_it(gateway, stream):
    async with gateway(script=[Step(text="one two STOP three")]) as lab, sdk(lab) as client:
        reply = await say(client, stream=stream, stop_sequences=["END", "STOP"])
        assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", "STOP")
        assert [block.text for block in reply.content] == ["one two "]


async def test_counting_tokens_with_a_query_leaves_no_ghost_call(gateway) -> None:
    """SC-07"""
    asked = {
        "model": "scripted",
        "system": "Be brief.",
        "tools": [{"name": "Bash", "input_schema": {"type": "object"}}],
        "messages": [{"role": "user", "content": "hi"}],
    }
    async with gateway() as lab:
        url = f"{lab.url}/rollout/R1/v1/messages/count_tokens?beta=true"
        async with lab.http.post(url, json=asked) as response:
            assert response.status == 200
            counted = await response.json()
        assert type(counted["input_tokens"]) is int
        assert counted["input_tokens"] > 0
        assert await lab.entries() == []
