"""Responses and legacy completions through a real gateway: what the SDK sees, and what is recorded."""

import asyncio
import json

import openai
import pytest

from rolltape.record import Outcome
from rolltape.testing.scripted import Fault, ScriptedEngine, Step, decode, encode

FUNCTION = {"type": "function", "name": "bash", "parameters": {"type": "object", "properties": {}}, "strict": False}
SPAWN = {"type": "function", "name": "spawn", "description": "d", "parameters": {"type": "object"}, "strict": False}
PATCH = {"type": "custom", "name": "patch", "description": "Edits."}
TOOLS = [FUNCTION, {"type": "namespace", "name": "ns", "description": "d", "tools": [SPAWN]}, PATCH]
ACT = Step(
    reasoning="let me see",
    text="looking",
    tool_calls=(("bash", '{"command":  "ls"}'), ("ns__spawn", "{ }"), ("patch", '{"input": "*** é\\n"}')),
)
ASK = {"model": "scripted", "input": [{"role": "user", "content": "go"}]}


def sdk(lab, rollout="R1") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{lab.url}/rollout/{rollout}/v1", api_key="dummy", max_retries=0)


async def answer(client, stream: bool, **fields):
    """The final response, streamed or whole."""
    if not stream:
        return await client.responses.create(**fields)
    async with client.responses.stream(**fields) as events:
        return await events.get_final_response()


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echoed_turn_with_thinking_and_tools_extends_the_chain(gateway, stream):
    async with gateway(script=[ACT, Step(text="done")]) as lab, sdk(lab) as client:
        first = await answer(client, stream, **ASK, tools=TOOLS, include=["reasoning.encrypted_content"])
        echoed = [item.to_dict() for item in first.output]
        results = [
            {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "ok"}
            for item in echoed
            if "call_id" in item
        ]
        items = [*ASK["input"], *echoed, *results]
        second = await answer(client, stream, model="scripted", input=items, tools=TOOLS)
        before, after = await lab.entries()
    assert [item.type for item in first.output] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
        "custom_tool_call",
    ]
    assert (first.output[3].namespace, first.output[3].name) == ("ns", "spawn")
    assert first.output[4].input == "*** é\n"
    assert (first.id, second.id) == (before.response_id, after.response_id)
    assert first.output[0].encrypted_content == before.model_call_id
    assert second.output_text == "done"
    assert after.parent_call_id == before.model_call_id
    assert after.prompt_token_ids.tolist()[: before.length] == before.sequence.tolist()
    assert (before.protocol, before.outcome, before.faults) == ("openai_responses", "completed", ())
    usage = first.usage
    assert (usage.input_tokens, usage.output_tokens) == (len(before.prompt_token_ids), len(before.generation_token_ids))
    assert usage.output_tokens_details.reasoning_tokens >= len("let me see")


def told(response):
    """The items without ids, which differ from call to call."""
    return [
        {key: value for key, value in item.to_dict().items() if key not in ("id", "call_id")}
        for item in response.output
    ]


async def test_a_streamed_reply_is_the_whole_one(gateway):
    async with gateway(script=[ACT] * 2) as lab, sdk(lab) as client:
        whole = await client.responses.create(**ASK, tools=TOOLS)
        events = [event async for event in await client.responses.create(**ASK, tools=TOOLS, stream=True)]
        first, second = await lab.entries()
    assert told(whole) == told(events[-1].response)
    assert whole.usage == events[-1].response.usage
    assert first.sequence.tolist() == second.sequence.tolist()


async def test_done_items_wait_for_the_durable_entry_and_deltas_do_not(gateway, monkeypatch):
    async with gateway(engine=ScriptedEngine(script=[ACT], chunk=64)) as lab:
        gate, put = asyncio.Event(), lab.store.put

        async def slow_put(entry):
            await gate.wait()
            await put(entry)

        monkeypatch.setattr(lab.store, "put", slow_put)
        body = {**ASK, "tools": TOOLS, "stream": True}
        async with lab.http.post(f"{lab.url}/rollout/R1/v1/responses", json=body) as response:
            seen = b""
            while seen.count(b"event: response.output_item.added") < 5:
                seen += await response.content.readany()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(response.content.readany(), 0.2)
            assert b"looking" in seen
            assert b"output_item.done" not in seen
            assert b"arguments.done" not in seen
            gate.set()
            seen += await response.content.read()
    assert seen.count(b"event: response.output_item.done") == 5
    assert seen.rstrip().rpartition(b"event: ")[2].startswith(b"response.completed\n")


@pytest.mark.parametrize("fault", [Fault.DIE_MID_STREAM, Fault.ENDS_UNFINISHED])
async def test_a_stream_that_the_engine_cut_fails_and_is_never_completed(gateway, fault):
    async with gateway(script=[Step(text="hello there", fault=fault, after=8)]) as lab:
        async with lab.http.post(f"{lab.url}/rollout/R1/v1/responses", json={**ASK, "stream": True}) as response:
            text = await response.text()
        (entry,) = await lab.entries()
    names = [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]
    assert names[-1] == "response.failed"
    assert not {"response.completed", "response.incomplete", "response.output_item.done"} & set(names)
    assert entry.outcome == Outcome.FAILED
    assert decode(entry.generation_token_ids.tolist()) == "hello th"


async def test_an_overflow_and_a_refusal_come_as_openai_says_them(gateway):
    async with gateway(script=[Step(fault=Fault.OVERFLOW)]) as lab, sdk(lab) as client:
        with pytest.raises(openai.BadRequestError) as overflow:
            await client.responses.create(**ASK)
        with pytest.raises(openai.BadRequestError) as stored:
            await client.responses.create(**ASK, previous_response_id="resp_1")
    assert overflow.value.code == "context_length_exceeded"
    assert (stored.value.param, stored.value.code) == ("previous_response_id", "unsupported_value")


async def test_silence_is_filled_with_pings(gateway):
    slow = ScriptedEngine(script=[Step(text="hello")], delay=0.3, chunk=2)
    limits = {"keep_alive_seconds": 0.1, "first_byte_seconds": 0.1}
    body = {**ASK, "stream": True}
    async with (
        gateway(engine=slow, limits=limits) as lab,
        lab.http.post(f"{lab.url}/rollout/R1/v1/responses", json=body) as response,
    ):
        text = await response.text()
    assert text.startswith("event: response.created\n")
    assert text.count('event: ping\ndata: {"type":"ping"}\n\n') >= 2
    assert "response.completed" in text


async def test_a_request_is_counted_by_the_engine(gateway):
    async with gateway(script=[Step(text="a")]) as lab, sdk(lab) as client:
        url = f"{lab.url}/rollout/R1/v1/responses/input_tokens"
        async with lab.http.post(url, json=ASK) as response:
            counted = json.loads(await response.read())
        reply = await client.responses.create(**ASK)
    assert counted == {"object": "response.input_tokens", "input_tokens": reply.usage.input_tokens}


@pytest.mark.parametrize("prompt", ["once upon", encode("once upon")])
async def test_a_raw_prompt_reaches_the_engine_as_it_is(gateway, prompt):
    script = [Step(text=" a time", reasoning="not parsed")] * 2
    async with gateway(script=script) as lab, sdk(lab) as client:
        whole = await client.completions.create(model="scripted", prompt=prompt, logprobs=0)
        stream = await client.completions.create(model="scripted", prompt=prompt, stream=True)
        text = "".join([choice.text async for chunk in stream for choice in chunk.choices])
        first, second = await lab.entries()
    (choice,) = whole.choices
    assert (choice.text, choice.finish_reason, text) == (" a time", "stop", " a time")
    assert whole.id == first.response_id
    assert choice.logprobs.token_logprobs == pytest.approx(first.generation_log_probs.tolist())
    for entry in (first, second):
        assert entry.prompt_token_ids.tolist() == encode("once upon")
        assert entry.generation_token_ids.tolist()[:-1] == encode(" a time")
        assert (entry.protocol, entry.faults) == ("openai_completions", ())


async def test_a_continued_raw_prompt_extends_its_chain(gateway):
    async with gateway(script=[Step(text="b"), Step(text="c")]) as lab, sdk(lab) as client:
        await client.completions.create(model="scripted", prompt="a")
        (first,) = await lab.entries()
        await client.completions.create(model="scripted", prompt=first.sequence.tolist())
        second = (await lab.entries())[-1]
    assert second.parent_call_id == first.model_call_id


async def test_ids_that_are_no_tokens_are_refused(gateway):
    async with gateway(script=[Step(text="b")]) as lab, sdk(lab) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(model="scripted", prompt=[5, 999])
    assert caught.value.param == "prompt"
