"""Bounds of rates, sizes and times: a call over one is told in its dialect, counted, and masks nothing."""

import asyncio
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltape.config import read_config
from rolltape.errors import ConfigError, RateLimited
from rolltape.gateway.limits import Gate, Limiter, Rates
from rolltape.testing.scripted import ScriptedEngine, Step

from .conftest import until

HELLO = [Step(text="hello there")] * 9
USER = [{"role": "user", "content": "hi"}]
DIALECTS = {
    "/v1/chat/completions": ({"model": "scripted", "messages": USER}, 429),
    "/v1/completions": ({"model": "scripted", "prompt": "hi"}, 429),
    "/v1/responses": ({"model": "scripted", "input": "hi"}, 503),
    "/v1/messages": ({"model": "scripted", "messages": USER, "max_tokens": 9}, 529),
    "/v1beta/models/scripted:generateContent": ({"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}, 429),
}


async def counted(lab) -> dict[str, float]:
    async with lab.http.get(f"{lab.url}/metrics", headers={"authorization": f"Bearer {lab.token}"}) as response:
        text = await response.text()
    return {bound: float(n) for bound, n in re.findall(r'limited_calls_total\{bound="(\w+)"\} (\S+)', text)}


@given(st.integers(1, 50), st.lists(st.floats(0, 5), max_size=200))
def test_a_rate_never_lets_more_pass_than_its_burst_and_what_time_refills(per_minute, pauses):
    gate, now, passed = Gate.opened(Rates(per_minute), 0.0), 0.0, 0
    for pause in pauses:
        now += pause
        if gate.bound(now) is None:
            gate.enter()
            gate.leave()
            passed += 1
    assert passed <= per_minute + now * per_minute / 60 + 1e-6


@given(st.integers(1, 600))
def test_who_asks_again_when_it_was_told_to_passes(per_minute):
    gate = Gate.opened(Rates(per_minute), 0.0)
    for _ in range(per_minute):
        assert gate.bound(0.0) is None
        gate.enter()
    _, seconds = gate.bound(0.0)
    assert 0 < seconds <= 60 / per_minute
    assert gate.bound(seconds + 1e-6) is None


def test_a_clock_that_stands_still_or_goes_back_fills_nothing():
    gate = Gate.opened(Rates(1), 100.0)
    gate.enter()
    assert gate.bound(50.0) is not None


def test_a_call_that_one_gate_refuses_takes_nothing_from_the_other():
    limiter = Limiter(Rates(per_minute=2), 0.0)
    with limiter.passing("a", Rates(at_once=1), 0.0):
        with pytest.raises(RateLimited) as refused, limiter.passing("a", Rates(at_once=1), 0.0):
            pass
        assert refused.value.bound == "rollout_at_once"
        with limiter.passing("b", Rates(), 0.0):
            pass
    with pytest.raises(RateLimited) as refused, limiter.passing("c", Rates(), 0.0):
        pass
    assert refused.value.bound == "gateway_per_minute"


@pytest.mark.parametrize("path", DIALECTS)
async def test_a_call_over_its_rate_is_told_when_to_come_again_in_its_own_words(gateway, path):
    body, status = DIALECTS[path]
    async with gateway(script=HELLO, limits={"rollout_calls_per_minute": 1}) as lab:
        for wanted in (200, status):
            async with lab.http.post(f"{lab.url}/rollout/R1{path}", json=body) as response:
                said = await response.json()
                assert response.status == wanted, said
        assert 1 <= int(response.headers["retry-after"]) <= 60
        assert response.headers.get("x-should-retry") != "false"
        assert "1 calls a minute" in str(said)
        async with lab.http.post(f"{lab.url}/rollout/R2{path}", json=body) as response:
            assert response.status == 200, "another rollout has a rate of its own"
        assert await counted(lab) == {"rollout_per_minute": 1.0}
        frozen = await lab.store.freeze("R1")
    assert not frozen.incomplete
    assert [entry.outcome for entry in frozen.entries] == ["completed"]


async def test_the_budget_of_a_rollout_says_its_own_rates(gateway):
    usual, own = {"rollout_calls_per_minute": 1}, {"calls_per_minute": 2}
    async with gateway(script=HELLO, limits=usual) as lab, lab.control().rollout("t-0", budget=own):
        assert [(await lab.ask("t-0"))[0] for _ in range(3)] == [200, 200, 429]


@pytest.mark.parametrize(
    ("limits", "other", "bound"),
    [({"rollout_calls_at_once": 1}, 200, "rollout_at_once"), ({"calls_at_once": 1}, 429, "gateway_at_once")],
)
async def test_calls_at_once_are_bounded_and_one_that_ends_makes_room(gateway, limits, other, bound):
    engine = ScriptedEngine(script=[Step(text="slowly", delay=0.5), *HELLO])
    async with gateway(engine=engine, limits=limits) as lab:
        running = asyncio.create_task(lab.ask("R1"))
        await until(lambda: engine.started == 1)
        assert (await lab.ask("R1"))[0] == 429
        assert (await lab.ask("R2"))[0] == other
        assert (await running)[0] == 200
        assert (await lab.ask("R1"))[0] == 200
        assert bound in await counted(lab)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_over_its_time_fails_and_masks_nothing(gateway, stream):
    engine = ScriptedEngine(script=[Step(text="word " * 50, delay=0.1)])
    async with gateway(engine=engine, limits={"call_seconds": 0.3}) as lab:
        body = {"model": "scripted", "messages": USER, "stream": stream}
        async with lab.http.post(lab.chat_url(), json=body) as response:
            text = await response.text()
        assert response.status == (200 if stream else 504)
        assert "call_timeout" in text
        assert "[DONE]" not in text
        assert engine.alive == 0
        frozen = await lab.store.freeze("R1")
    assert not frozen.incomplete
    (entry,) = frozen.entries
    assert entry.outcome == "failed"
    assert len(entry.generation_token_ids) > 0, "what came is evidence"


def test_limits_are_read_strictly():
    with pytest.raises(ConfigError, match="calls_per_minut"):
        read_config(None, limits={"calls_per_minut": 1})
    with pytest.raises(ConfigError, match="calls_at_once"):
        read_config(None, limits={"calls_at_once": 0})


async def connected(lab):
    host, port = lab.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def left(lab, sent: bytes) -> bytes:
    """What the gateway says until it closes, to a client that sends this and then nothing."""
    reader, writer = await connected(lab)
    writer.write(sent)
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    return answer


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat/comp", b"GET /healthz HTTP/1.1\r\nhost: a\r\nx: "])
async def test_a_head_that_does_not_come_in_time_ends_the_connection(gateway, sent):
    async with gateway(limits={"header_seconds": 0.2}) as lab:
        assert await left(lab, sent) == b""


async def test_a_body_that_trickles_is_given_up(gateway):
    async with gateway(limits={"body_seconds": 0.2}) as lab:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 100\r\n\r\n"
        assert b" 408 " in await left(lab, head + b"{")
        token = f"authorization: Bearer {lab.token}\r\nconnection: close\r\ncontent-length: 100\r\n\r\n"
        control = b"POST /control/policy HTTP/1.1\r\nhost: a\r\n" + token.encode()
        assert b" 408 " in await left(lab, control + b"{")


@pytest.mark.parametrize("end", [b"\r\n\r\n", b""])
async def test_a_head_that_is_too_large_is_refused_before_anything_reads_it(gateway, end):
    async with gateway(limits={"max_header_bytes": 4096}) as lab:
        sent = b"GET /healthz HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 8000 + end
        assert (b" 431 " in await left(lab, sent)) == bool(end)
        whole = b"GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx: " + b"y" * 3000 + b"\r\n\r\n"
        assert b" 200 " in await left(lab, whole)


async def test_a_kept_connection_may_idle_longer_than_a_head_may_take(gateway):
    async with gateway(limits={"header_seconds": 0.1}) as lab:
        reader, writer = await connected(lab)
        for _ in range(2):
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n")
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            await reader.readuntil(b"}")
            await asyncio.sleep(0.3)
        writer.close()


async def test_a_client_that_takes_nothing_is_cut_off_and_its_call_ends(gateway):
    engine = ScriptedEngine(script=[Step(text="word " * 400_000)])
    async with gateway(engine=engine, limits={"stalled_seconds": 0.3}) as lab:
        body = b'{"model": "scripted", "stream": true, "messages": [{"role": "user", "content": "hi"}]}'
        reader, writer = await connected(lab)
        reader._transport.pause_reading()
        head = f"POST /rollout/R1/v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await until(lambda: (engine.started, engine.alive) == (1, 0))
        writer.close()
        frozen = await lab.store.freeze("R1")
    assert [entry.outcome for entry in frozen.entries] == ["cancelled"]
