"""Faults that others reported, as calls over HTTP, with the values of their file (`tests/cases/gateway.jsonl`)."""

import asyncio
import gzip
import json
import resource
from pathlib import Path

import pytest
import zstandard

from rolltape.chat import Delta, Finished, Started, ToolCallDelta
from rolltape.rebuild import rebuild
from rolltape.record import Delivery, Outcome
from rolltape.testing.scripted import Fault, ScriptedEngine, Step, encode
from rolltape.tokens import token_ids

from .conftest import until
from .talk import Prompted, Talk

CASES = {
    case["id"]: case
    for case in map(json.loads, (Path(__file__).parents[1] / "cases" / "gateway.jsonl").read_text().splitlines())
}
ASK = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}


class Playing(ScriptedEngine):
    """Gives the events it was made with."""

    def __init__(self, *events):
        super().__init__()
        self._events = events

    async def generate(self, request, sampling):
        for event in self._events:
            yield event


async def test_st_10_parallel_tool_calls_without_a_sound_index_stay_apart(gateway):
    case = CASES["ST-10"]
    deltas, ids = [], 0
    for index, delta in enumerate(case["scenario"]["deltas"]):
        (call,) = delta["tool_calls"]
        piece = ToolCallDelta(call.get("index", 0), call["id"], call["function"]["name"], call["function"]["arguments"])
        deltas.append(Delta(token_ids=(60 + index,), log_probs=(-0.1,), tool_calls=(piece,)))
        ids += 1
    engine = Playing(Started(token_ids([1, 10, 11]), {}, "raw", None), *deltas, Finished("tool_calls", ids))
    async with gateway(engine=engine) as lab:
        url = f"{lab.url}/rollout/R1/v1/messages"
        async with lab.http.post(url, json=ASK | {"max_tokens": 9}) as response:
            whole = await response.json()
        async with lab.http.post(url, json=ASK | {"max_tokens": 9, "stream": True}) as response:
            frames = [json.loads(line[6:]) async for line in response.content if line.startswith(b"data: ")]
    wanted = case["expected"]["tool_use_blocks"]
    assert [{"id": b["id"], "input": b["input"]} for b in whole["content"]] == wanted
    assert whole["stop_reason"] == case["expected"]["stop_reason"]
    starts = {f["index"]: f["content_block"]["id"] for f in frames if f["type"] == "content_block_start"}
    texts = dict.fromkeys(starts, "")
    for frame in frames:
        if frame["type"] == "content_block_delta":
            texts[frame["index"]] += frame["delta"]["partial_json"]
    assert [{"id": starts[at], "input": json.loads(texts[at])} for at in starts] == wanted


async def test_lp_04_log_probs_that_are_too_few_are_never_filled_up(gateway):
    case = CASES["LP-04"]
    ids, probs = case["scenario"]["token_ids"], case["scenario"]["logprobs"]
    delta = Delta(token_ids=tuple(ids), log_probs=tuple(probs), text="hello")
    engine = Playing(Started(token_ids([1, 10, 11]), {}, "raw", None), delta, Finished("stop", len(ids)))
    async with gateway(engine=engine) as lab:
        status, reply = await lab.ask()
        (entry,) = await lab.entries()
        result = rebuild(await lab.store.freeze("R1"))
    assert (status, reply["choices"][0]["message"]["content"]) == (200, "hello")
    assert entry.generation_token_ids.tolist() == ids
    assert entry.generation_log_probs.tolist() == pytest.approx(probs)
    assert [fault for fault in entry.faults if "5" in fault and "3" in fault]
    assert (result.rows, result.ledger[0].reason) == ((), entry.faults[0])


async def test_re_04_a_harness_that_gives_up_before_the_first_byte_has_one_generation_at_a_time(gateway):
    """A second of the case is half a millisecond here."""
    case = CASES["RE-04"]
    scale = 0.001 / 2
    late = case["scenario"]["engine_first_byte_after_s"] * scale
    engine = Prompted()
    alive = []
    async with gateway(engine=engine, limits={"first_byte_seconds": 0.05, "keep_alive_seconds": 0.05}) as lab:
        talk = Talk(lab)
        early = 0
        for request, leaves in zip(case["scenario"]["requests"], case["scenario"]["client_closes_at"], strict=True):
            engine.steps.append(Step(text="late", delay=late / 2))
            async with lab.http.post(lab.chat_url(), json=ASK | {"stream": True}) as response:
                early += b"choices" in await response.content.readline()
                alive.append(engine.alive)
                if leaves is None:
                    assert b"[DONE]" in await response.content.read()
                else:
                    await asyncio.sleep((leaves - request["t"]) * scale - 0.05)
                    response.close()
            await until(lambda: engine.alive == 0)
        entries = await talk.entries()
        result = rebuild(await lab.store.freeze("R1"))
    expected = case["expected"]
    assert max(alive) == expected["engine_calls_alive_at_once"]
    assert (engine.aborted, early) == (expected["aborted_upstream"], len(alive)), "each stream had early bytes"
    arrived = [entry for entry in entries if entry.delivery is Delivery.DELIVERED]
    cancelled = [entry for entry in entries if entry.outcome is Outcome.CANCELLED]
    assert (len(arrived), len(cancelled)) == tuple(expected["records"].values())
    assert result.mask_sample is expected["mask_sample"]
    assert result.metrics["delivered_fraction"] == 1.0


def zstd_of(size: int) -> bytes:
    compressor = zstandard.ZstdCompressor().compressobj()
    block = bytes(2**22)
    return b"".join(compressor.compress(block) for _ in range(size // len(block))) + compressor.flush()


async def test_ht_01_bodies_come_in_any_encoding_and_none_takes_the_gateway_down(gateway):
    case = CASES["HT-01"]
    body = json.dumps(ASK).encode()
    bodies = {
        ("zstd", "valid"): zstandard.compress(body),
        ("gzip", "valid"): gzip.compress(body),
        ("zstd", "truncated frame"): zstandard.compress(body)[:-4],
        ("zstd", "expands to 2 GB"): zstd_of(2**31),
        ("snappy", "x"): b"x",
        ("identity", "valid"): body,
    }
    got = []
    async with gateway() as lab:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for request in case["scenario"]["requests"]:
            headers = {"content-encoding": request["encoding"], "content-type": "application/json"}
            sent = bodies[request["encoding"], request["body"]]
            async with lab.http.post(lab.chat_url(), data=sent, headers=headers) as response:
                got.append(response.status)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        recorded = len(await lab.entries())
    assert got == case["expected"]["status"]
    assert recorded == case["expected"]["records_added"]
    assert grown < 200 * 2**10, "KiB: the bound on a body, not its promise"


async def test_ht_02_paths_come_in_many_forms_and_none_loses_its_rollout(gateway):
    case = CASES["HT-02"]
    async with gateway() as lab:
        for at, one in enumerate(case["scenario"]["paths"], 1):
            method, path = one.split(" ")
            url = lab.url + path.replace("/r/R1", "/rollout/R1")
            before = len(await lab.entries())
            body = ASK | {"max_tokens": 9} if method == "POST" else None
            async with lab.http.request(method, url, json=body) as response:
                assert response.status == 200, one
            captured = len(await lab.entries()) - before
            assert captured == (at <= len(case["expected"]["captured_to_R1"])), one
        metrics = {"authorization": f"Bearer {lab.token}"}
        async with lab.http.get(f"{lab.url}/metrics", headers=metrics) as response:
            counted = await response.text()
        assert [state.rollout_id for state in await lab.store.rollouts()] == ["R1"]
    uncaptured = 'rolltape_calls_total{captured="false",outcome="completed",protocol="anthropic_messages"} 1.0'
    assert uncaptured in counted, "a call that names no rollout is served, and counted"


async def test_ht_07_the_pin_wins_over_whatever_is_asked_and_both_are_recorded(gateway):
    case = CASES["HT-07"]
    pin, asked = case["scenario"]["pin"], case["scenario"]["requests"]
    async with gateway(sampling_overrides=pin) as lab:
        for fields in asked:
            await lab.ask(**fields)
        given = [dict(sampling) for _, sampling in lab.engine.seen]
        entries = await lab.entries()
    assert given == [case["expected"]["upstream_all"]] * 3
    assert [entry.sampling_asked for entry in entries] == asked
    for entry in entries:
        assert {name: entry.sampling_applied[name] for name in pin} == pin
        assert not {"min_p", "presence_penalty"} & entry.sampling_applied.keys()


async def test_wv_01_a_call_is_of_the_policy_that_admitted_it_and_a_failed_update_is_none(gateway):
    """`t2` while the first call is in flight, `t4` is refused."""
    engine = Prompted()
    async with gateway(engine=engine) as lab, lab.control() as control:
        talk = Talk(lab)
        await control.set_policy(version="7")
        first = asyncio.create_task(talk.ask(Step(text="one", delay=0.1)))
        await until(lambda: engine.alive == 1)
        await control.set_policy(version="8")
        talk.keep(await first)
        with pytest.raises(Exception, match="state"):
            await control.set_policy(version="9", state="broken")
        talk.messages.append({"role": "user", "content": "more"})
        await talk.finish()
        one, two = await talk.entries()
        result = rebuild(await lab.store.freeze("R1"))
    assert (one.policy_version, one.policy_version_end) == ("7", "8"), "drained, or mixed: both ends are known"
    assert (two.policy_version, two.policy_version_end) == ("8", "8")
    assert [span.policy_version for span in result.rows[0].spans] == ["7", "8"]


@pytest.mark.parametrize("refused", [False, True])
async def test_ed_01_broken_arguments_stay_as_they_were_sampled(gateway, refused):
    case = CASES["ED-01"]
    sample = case["scenario"]["sample"]
    async with gateway(engine=Prompted()) as lab:
        talk = Talk(lab)
        message = await talk.ask(Step(tool_calls=(("write", sample),)))
        assert message["tool_calls"][0]["function"]["arguments"] == sample
        talk.keep(message, "That is no JSON.")
        assert (
            talk.messages[-2]["tool_calls"][0]["function"]["arguments"] == case["scenario"]["next_request_history_args"]
        )
        await talk.ask(Step(text="sorry", fault=Fault.REFUSE_400 if refused else None), status=400 if refused else 200)
        first, second = await talk.entries()
        result = rebuild(await lab.store.freeze("R1"))
    ids = first.generation_token_ids.tolist()
    assert bytes(i for i in ids if i < 256) == b"write\n" + bytes(encode(sample))
    if not refused:
        assert second.prompt_token_ids[: first.length].tolist() == first.sequence.tolist(), "nothing was repaired"
    assert not result.mask_sample
    assert result.metrics["failed_calls"] == refused
    assert result.metrics["delivered_fraction"] == 1.0
    assert len(result.rows) == 1
