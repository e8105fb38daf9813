"""One call through a real gateway: what the harness sees, and what is recorded."""

import asyncio
import gzip
import io
import json

import aiohttp
import openai
import pytest
import zstandard

from rolltape.errors import StoreError
from rolltape.record import Delivery, Outcome
from rolltape.testing.scripted import Fault, ScriptedEngine, Step, encode, log_prob

from .conftest import CHAT, until

TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}]
HELLO = [Step(text="hello there")]


def sdk(lab, rollout="R1") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{lab.url}/rollout/{rollout}/v1", api_key="dummy", max_retries=0)


async def test_the_openai_sdk_gets_its_reply_and_the_store_its_exact_ids(gateway):
    async with gateway(script=HELLO) as lab, sdk(lab) as client:
        reply = await client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "hi"}])
        (entry,) = await lab.entries()
    assert reply.choices[0].message.content == "hello there"
    assert reply.id == entry.response_id
    assert entry.generation_token_ids.tolist()[:-1] == encode("hello there")
    assert reply.usage.prompt_tokens == len(entry.prompt_token_ids)
    assert reply.usage.completion_tokens == len(entry.generation_token_ids)
    expected = [log_prob(i, len(entry.prompt_token_ids) + k) for k, i in enumerate(entry.generation_token_ids.tolist())]
    assert entry.generation_log_probs.tolist() == pytest.approx(expected)
    assert (entry.outcome, entry.faults, entry.protocol, entry.engine) == ("completed", (), "openai_chat", "scripted")


async def test_a_streamed_reply_records_the_same_entry_as_a_whole_one(gateway):
    async with gateway(script=HELLO * 2) as lab, sdk(lab) as client:
        ask = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
        whole = await client.chat.completions.create(**ask)
        stream = await client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
        first, second = await lab.entries()
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert first.sequence.tolist() == second.sequence.tolist()
    assert first.generation_log_probs.tolist() == second.generation_log_probs.tolist()


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_calls_reach_the_sdk_and_their_echo_extends_the_chain(gateway, stream):
    script = [Step(text="look", tool_calls=(("bash", '{"command":  "ls"}'),)), Step(text="done")]
    async with gateway(script=script) as lab, sdk(lab) as client:
        messages = [{"role": "user", "content": "go"}]
        if stream:
            async with client.chat.completions.stream(model="scripted", messages=messages, tools=TOOLS) as events:
                message = (await events.get_final_completion()).choices[0].message
        else:
            message = (
                (await client.chat.completions.create(model="scripted", messages=messages, tools=TOOLS))
                .choices[0]
                .message
            )
        (call,) = message.tool_calls
        assert (call.function.name, call.function.arguments) == ("bash", '{"command":  "ls"}')
        messages += [
            {"role": "assistant", "content": message.content, "tool_calls": [
                {"id": call.id, "type": "function", "function": {"name": "bash", "arguments": call.function.arguments}}
            ]},
            {"role": "tool", "tool_call_id": call.id, "content": "a.txt"},
        ]  # fmt: skip
        await client.chat.completions.create(model="scripted", messages=messages, tools=TOOLS)
        first, second = await lab.entries()
    assert second.parent_call_id == first.model_call_id
    assert second.prompt_token_ids.tolist()[: first.length] == first.sequence.tolist()


async def test_deltas_leave_as_they_are_sampled(gateway):
    async with gateway(engine=ScriptedEngine(script=[Step(text="abcdefgh" * 4)], delay=0.05, chunk=4)) as lab:
        body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        loop = asyncio.get_running_loop()
        times = []
        async with lab.http.post(lab.chat_url(), json=body) as response:
            async for line in response.content:
                if b'"content"' in line:
                    times.append(loop.time())
    assert len(times) >= 8
    assert times[-1] - times[0] > 0.2, "the deltas came all at once"


async def test_the_finish_chunk_waits_for_the_durable_entry(gateway, monkeypatch):
    async with gateway(engine=ScriptedEngine(script=HELLO, chunk=64)) as lab:
        gate, put = asyncio.Event(), lab.store.put

        async def slow_put(entry):
            await gate.wait()
            await put(entry)

        monkeypatch.setattr(lab.store, "put", slow_put)
        body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        async with lab.http.post(lab.chat_url(), json=body) as response:
            seen = b""
            while b"there" not in seen:
                seen += await response.content.readany()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(response.content.readany(), 0.2)
            assert b'finish_reason":"stop' not in seen
            gate.set()
            seen += await response.content.read()
    assert b'"finish_reason":"stop"' in seen
    assert seen.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fault", "status", "outcome"),
    [
        (Fault.REFUSE_400, 400, Outcome.REFUSED),
        (Fault.OVERFLOW, 400, Outcome.REFUSED),
        (Fault.UNAVAILABLE, 503, Outcome.FAILED),
        (Fault.ERROR_500, 500, Outcome.FAILED),
    ],
)
async def test_an_engine_that_fails_before_any_token_gives_its_status_and_a_typed_outcome(
    gateway, fault, status, outcome, stream
):
    async with gateway(script=[Step(text="hello", fault=fault)]) as lab:
        body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
        async with lab.http.post(lab.chat_url(), json=body) as response:
            text = await response.text()
        (entry,) = await lab.entries()
        held = await lab.store.freeze("R1")
    assert (response.status, entry.outcome) == (status, outcome)
    assert json.loads(text)["error"]["message"]
    assert not held.incomplete, "a call that failed is an outcome, not a hole"


@pytest.mark.parametrize("fault", [Fault.DIE_MID_STREAM, Fault.ENDS_UNFINISHED])
async def test_a_stream_that_breaks_ends_in_an_error_frame_and_never_in_a_normal_end(gateway, fault):
    async with gateway(script=[Step(text="hello there", fault=fault, after=6)]) as lab:
        body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        async with lab.http.post(lab.chat_url(), json=body) as response:
            seen = await response.text()
        (entry,) = await lab.entries()
        held = await lab.store.freeze("R1")
    assert '"error"' in seen
    assert "[DONE]" not in seen
    assert '"finish_reason":"' not in seen
    assert (entry.outcome, entry.generation_token_ids.tolist()) == (Outcome.FAILED, encode("hello there")[:6])
    assert not held.incomplete


@pytest.mark.parametrize(
    ("fault", "named", "incomplete"),
    [
        (Fault.IDS_MISSING, "generation_ids_missing", True),
        (Fault.PROMPT_IDS_MISSING, "prompt_ids_missing", True),
        (Fault.NO_START, "prompt_ids_missing", True),
        (Fault.BAD_IDS, "generation_ids_missing", True),
        (Fault.COUNT_MISMATCH, "token_count_mismatch", True),
        (Fault.LOG_PROBS_MISSING, "log_probs_missing", False),
        (Fault.LOG_PROBS_SHORT, "log_probs_length", False),
        (Fault.LOG_PROBS_NAN, "log_probs_invalid", False),
    ],
)
async def test_a_faulty_recording_marks_the_call_and_the_harness_gets_its_200(gateway, fault, named, incomplete):
    async with gateway(script=[Step(text="hello", fault=fault)]) as lab:
        status, reply = await lab.ask()
        (entry,) = await lab.entries()
        held = await lab.store.freeze("R1")
    assert status == 200
    assert reply["choices"][0]["message"]["content"] == "hello"
    assert [f for f in entry.faults if f.startswith(named)]
    assert held.incomplete is incomplete


async def test_readiness_is_red_from_the_first_call_without_ids_to_the_next_with_them(gateway):
    """ST-13"""
    async with gateway(script=[Step(text="a"), Step(text="b", fault=Fault.IDS_MISSING), Step(text="c")]) as lab:
        seen = []
        for _ in range(3):
            assert (await lab.ask())[0] == 200
            async with lab.http.get(f"{lab.url}/readyz") as response:
                seen.append((response.status, (await response.json())["ids_arrive"]))
    assert seen == [(200, True), (503, False), (200, True)]


async def test_text_that_is_held_back_keeps_its_ids(gateway):
    async with gateway(script=[Step(text="hello there", fault=Fault.HELD_BACK_TEXT)]) as lab:
        status, _ = await lab.ask()
        (entry,) = await lab.entries()
    assert (status, entry.faults) == (200, ())
    assert entry.generation_token_ids.tolist()[:-1] == encode("hello there")


async def test_a_client_that_leaves_ends_the_generation_and_its_ids_are_evidence(gateway):
    async with gateway(engine=ScriptedEngine(script=[Step(text="x" * 400)], delay=0.02)) as lab:
        body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        async with lab.http.post(lab.chat_url(), json=body) as response:
            seen = b""
            while b"xxxx" not in seen:
                seen += await response.content.readany()
            response.close()
        await until(lambda: lab.engine.aborted == 1)
        (entry,) = await _settled(lab)
        held = await lab.store.freeze("R1")
    assert (entry.outcome, entry.delivery) == (Outcome.CANCELLED, Delivery.UNDELIVERED)
    assert 0 < len(entry.generation_token_ids) < 400
    assert not held.incomplete


async def test_a_client_that_never_saw_a_byte_and_asks_again_has_one_generation_at_a_time(gateway):
    engine = ScriptedEngine(script=[Step(text="a", fault=Fault.HANG), Step(text="b", fault=Fault.HANG), Step(text="c")])
    async with gateway(engine=engine) as lab:
        for _ in range(2):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(lab.ask(), 0.2)
            await until(lambda: engine.alive == 0)
        status, _ = await lab.ask()
        entries = await _settled(lab, 3)
    assert status == 200
    assert sorted(e.outcome for e in entries) == ["cancelled", "cancelled", "completed"]
    assert engine.aborted == 2


async def _settled(lab, count=1):
    """The entries, once `count` of them have a known delivery."""
    async with asyncio.timeout(5):
        while True:
            entries = await lab.entries()
            if len(entries) == count and all(e.delivery != Delivery.UNKNOWN for e in entries):
                return entries
            await asyncio.sleep(0.02)


async def test_a_reply_that_arrived_is_known_to_be_delivered(gateway):
    async with gateway(script=HELLO) as lab:
        await lab.ask()
        (entry,) = await _settled(lab)
    assert entry.delivery == Delivery.DELIVERED


async def test_a_frozen_rollout_takes_no_calls(gateway):
    async with gateway() as lab:
        await lab.ask()
        await lab.store.freeze("R1")
        for stream in (False, True):
            status, reply = await lab.ask(stream=stream)
            assert (status, reply["error"]["code"]) == (403, "rollout_frozen")
        assert len(await lab.entries()) == 1
        await until(lambda: lab.engine.alive == 0)


async def test_a_call_that_names_no_rollout_is_served_and_not_captured(gateway):
    async with gateway() as lab:
        status, _ = await lab.ask(rollout=None)
        assert (status, await lab.store.rollouts()) == (200, [])


async def test_a_store_that_cannot_record_marks_the_rollout_and_spares_the_harness(gateway, monkeypatch):
    async with gateway(script=HELLO) as lab:

        async def broken(*args):
            raise StoreError("no space left on device")

        monkeypatch.setattr(lab.store, "put", broken)
        status, reply = await lab.ask()
        assert (status, reply["choices"][0]["message"]["content"]) == (200, "hello there")
        assert (await lab.store.freeze("R1")).incomplete


async def test_marks_that_cannot_be_written_make_the_gateway_unready_until_they_are(gateway, monkeypatch):
    async with gateway(script=HELLO) as lab:
        mark, full = lab.store.mark_incomplete, True

        async def broken(*args):
            if full:
                raise StoreError("no space left on device")
            await mark(*args)

        monkeypatch.setattr(lab.store, "put", broken)
        monkeypatch.setattr(lab.store, "mark_incomplete", broken)
        assert (await lab.ask())[0] == 200
        async with lab.http.get(f"{lab.url}/readyz") as response:
            assert (response.status, (await response.json())["unwritten_marks"]) == (503, 1)
        full = False
        async with asyncio.timeout(5):
            while True:
                async with lab.http.get(f"{lab.url}/readyz") as response:
                    if response.status == 200:
                        break
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_strict_gateway_fails_a_call_that_it_cannot_record(gateway, monkeypatch, stream):
    async with gateway(script=HELLO, strict=True) as lab:

        async def broken(*args):
            raise StoreError("no space left on device")

        monkeypatch.setattr(lab.store, "put", broken)
        body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
        async with lab.http.post(lab.chat_url(), json=body) as response:
            text = await response.text()
    assert "capture_failed" in text
    assert "[DONE]" not in text
    assert response.status == (200 if stream else 503)


async def test_sampling_overrides_win_and_both_sides_are_recorded(gateway):
    pin = {"temperature": 1.0, "top_p": 1.0}
    async with gateway(sampling_overrides=pin) as lab:
        await lab.ask(temperature=0, top_p=0.5, presence_penalty=1.5, seed=7)
        (entry,) = await lab.entries()
        _, given = lab.engine.seen[-1]
    assert given == {"temperature": 1.0, "top_p": 1.0, "seed": 7}
    assert entry.sampling_asked == {"temperature": 0, "top_p": 0.5, "presence_penalty": 1.5, "seed": 7}
    assert entry.sampling_applied["temperature"] == 1.0
    assert "presence_penalty" not in entry.sampling_applied


async def test_max_tokens_beyond_the_context_are_clamped_and_recorded(gateway):
    async with gateway(engine=ScriptedEngine(context_length=200)) as lab:
        await lab.ask(max_tokens=32000)
        (entry,) = await lab.entries()
    assert entry.sampling_asked["max_tokens"] == 32000
    assert entry.sampling_applied["max_tokens"] == 200 - len(entry.prompt_token_ids)


async def test_silence_is_filled_so_that_no_client_gives_up(gateway):
    limits = {"keep_alive_seconds": 0.1, "first_byte_seconds": 0.1}
    async with gateway(engine=ScriptedEngine(script=[Step(text="late", delay=0.35)]), limits=limits) as lab:
        body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        async with lab.http.post(lab.chat_url(), json=body) as response:
            events = [json.loads(x[6:]) async for x in response.content if x.startswith(b"data: {")]
    assert len([e for e in events if e["choices"] == []]) >= 2
    assert "".join(e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"]) == "late"


@pytest.mark.parametrize(
    ("fields", "status", "named"),
    [
        ({"n": 2}, 400, "n"),
        ({"model": "gpt-9"}, 404, "gpt-9"),
        ({"messages": "hi"}, 400, "messages"),
        ({"messages": []}, 400, "messages"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name_and_leaves_no_trace(gateway, fields, status, named):
    async with gateway() as lab:
        got, reply = await lab.ask(**fields)
        assert got == status
        assert named in reply["error"]["message"]
        assert await lab.entries() == []


async def test_an_alias_is_answered_by_the_served_model_under_the_name_it_was_asked_for(gateway):
    async with gateway(model_aliases=("claude-haiku",)) as lab:
        status, reply = await lab.ask(model="claude-haiku")
        (entry,) = await lab.entries()
    assert (status, reply["model"]) == (200, "claude-haiku")
    assert (entry.model_asked, entry.model) == ("claude-haiku", "scripted")


async def test_bodies_come_compressed_broken_or_too_large(gateway):
    body = json.dumps({"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}).encode()
    bomb = zstandard.ZstdCompressor().compressobj()
    huge = b"".join(bomb.compress(bytes(2**20)) for _ in range(64)) + bomb.flush()
    cases = [
        ("zstd", zstandard.compress(body), 200),
        ("gzip", gzip.compress(body), 200),
        ("zstd", zstandard.compress(body)[:-3], 400),
        ("zstd", huge, 413),
        ("snappy", b"x", 415),
        ("identity", body, 200),
        ("identity", b"{" * 100, 400),
        ("identity", b"\xff\xfe", 400),
        ("identity", b"", 400),
    ]
    async with gateway() as lab:
        for encoding, sent, status in cases:
            headers = {"content-encoding": encoding, "content-type": "application/json"}
            async with lab.http.post(lab.chat_url(), data=sent, headers=headers) as response:
                assert response.status == status, (encoding, status, await response.text())
                assert (await response.json()).keys() & {"choices", "error"}
        assert len(await lab.entries()) == 3


async def test_a_body_of_50_megabytes_is_refused_and_the_gateway_goes_on(gateway):
    async with gateway() as lab:
        sent = b'{"model": "scripted", "messages": [{"role": "user", "content": "' + b"x" * (50 * 2**20)
        try:
            async with lab.http.post(lab.chat_url(), data=io.BytesIO(sent)) as response:
                assert response.status == 413
        except aiohttp.ClientError:
            pass  # the gateway hung up before all was sent
        assert (await lab.ask())[0] == 200


async def test_a_body_that_does_not_arrive_is_not_waited_for_forever(gateway):
    async with gateway(limits={"body_seconds": 0.1}) as lab:

        async def slowly():
            yield b'{"model": "scripted"'
            await asyncio.sleep(1)
            yield b"}"

        async with lab.http.post(lab.chat_url(), data=slowly()) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (408, "request_timeout")


async def test_probes_are_answered_and_never_recorded(gateway):
    async with gateway() as lab:
        for prefix in ("", "/rollout/R1"):
            async with lab.http.get(f"{lab.url}{prefix}/v1/models") as response:
                assert (await response.json())["data"][0]["id"] == "scripted"
            async with lab.http.get(f"{lab.url}{prefix}/v1/models/scripted") as response:
                assert response.status == 200
            async with lab.http.head(f"{lab.url}{prefix}/") as response:
                assert response.status == 200
            async with lab.http.get(f"{lab.url}{prefix}/api/tags") as response:
                assert response.status == 404
            async with lab.http.get(f"{lab.url}{prefix}{CHAT}") as response:
                assert response.status == 405
        assert await lab.store.rollouts() == []


async def test_an_address_that_contradicts_itself_is_refused_in_the_callers_dialect(gateway):
    async with gateway() as lab:
        status, reply = await lab.ask("R1", headers={"x-rolltape-rollout": "R2"})
        assert (status, reply["error"]["code"]) == (400, "contradictory_rollout_id")
        status, reply = await lab.ask("..bad")
        assert status in (400, 404)


async def test_the_request_and_reply_are_kept_as_text_beside_the_tokens_or_not_at_all(gateway):
    async with gateway(script=HELLO) as lab:
        await lab.ask(user="someone")
        (entry,) = await lab.entries()
    assert json.loads(entry.request_text)["messages"][0]["content"] == "hi"
    assert entry.output_items[0]["content"][0]["text"] == "hello there"


async def test_texts_can_be_off(gateway):
    async with gateway(script=HELLO, texts=False) as lab:
        await lab.ask()
        (entry,) = await lab.entries()
    assert (entry.request_text, entry.output_items) == (None, ())
