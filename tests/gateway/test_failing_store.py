"""A store that is slow, full or gone: what the harness sees, and who is told.

By default the call succeeds, the rollout is marked, the gateway is not ready while a mark waits, and metrics count it.
A strict gateway refuses the call instead. Nothing is silent.
"""

import asyncio
import random
import re
import string

import pytest

from rolltape.testing.scripted import ScriptedEngine, Step

HELLO = [Step(text="hello there")] * 4
LIMITS = {"durable_seconds": 0.3, "settle_seconds": 0.2}


def slow(monkeypatch, store, step: str, seconds: float) -> None:
    """`step` of the store takes so long."""
    real = getattr(store, step)

    async def slowly(*args):
        await asyncio.sleep(seconds)
        return await real(*args)

    monkeypatch.setattr(store, step, slowly)


async def fill(store) -> None:
    """From here on the database file cannot grow."""
    await store._write("", lambda db: db.execute("PRAGMA max_page_count = 1").fetchall())


async def make_room(store) -> None:
    await store._write("", lambda db: db.execute("PRAGMA max_page_count = 1000000").fetchall())


async def said(lab, stream: bool, **fields) -> tuple[int, str]:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "stream": stream, **fields}
    async with lab.http.post(lab.chat_url(), json=body) as response:
        return response.status, await response.text()


async def readiness(lab) -> tuple[int, int]:
    async with lab.http.get(f"{lab.url}/readyz") as response:
        return response.status, (await response.json())["unwritten_marks"]


async def faults(lab) -> set[str]:
    """The steps of recording that have failed, as the metrics count them."""
    async with lab.http.get(f"{lab.url}/metrics", headers={"authorization": f"Bearer {lab.token}"}) as response:
        counted = await response.text()
    return set(re.findall(r'rolltape_capture_faults_total\{step="(\w+)"\}', counted))


def whole(text: str, stream: bool) -> bool:
    return '"finish_reason":"stop"' in text and (not stream or "[DONE]" in text)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("step", ["begin_call", "put"])
async def test_a_slow_store_holds_the_reply_for_a_while_and_is_then_told_of(gateway, monkeypatch, step, stream):
    async with gateway(script=HELLO, limits=LIMITS) as lab:
        slow(monkeypatch, lab.store, step, 0.7)
        status, text = await said(lab, stream)
        assert (status, whole(text, stream)) == (200, True)
        assert await faults(lab) == {step, "put"}, "an entry waits for its intent"
        for _ in range(100):
            if await lab.entries():
                break
            await asyncio.sleep(0.02)
        (entry,) = await lab.entries()
        assert entry.faults == (), "what came late is kept"
        assert (await lab.store.freeze("R1")).incomplete
        assert await readiness(lab) == (200, 0)


@pytest.mark.parametrize("step", ["begin_call", "put"])
async def test_a_store_that_is_slow_within_the_bound_costs_time_and_nothing_else(gateway, monkeypatch, step):
    async with gateway(script=HELLO) as lab:
        slow(monkeypatch, lab.store, step, 0.2)
        assert whole((await said(lab, False))[1], False)
        assert await faults(lab) == set()
        assert not (await lab.store.freeze("R1")).incomplete


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("step", ["begin_call", "put"])
async def test_a_strict_gateway_refuses_what_a_slow_store_does_not_take_in_time(gateway, monkeypatch, step, stream):
    async with gateway(script=HELLO, limits=LIMITS, strict=True) as lab:
        slow(monkeypatch, lab.store, step, 0.7)
        status, text = await said(lab, stream)
        assert "capture_failed" in text
        assert not whole(text, stream)
        assert status == (200 if stream and step == "put" else 503)
        assert await faults(lab) == {step}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_store_spares_the_harness_and_marks_the_rollout_as_soon_as_there_is_room(gateway, stream):
    async with gateway(script=HELLO, limits=LIMITS) as lab:
        assert (await said(lab, stream))[0] == 200
        await fill(lab.store)
        noise = "".join(random.Random(0).choices(string.printable, k=100_000))
        status, text = await said(lab, stream, messages=[{"role": "user", "content": noise}])
        assert (status, whole(text, stream)) == (200, True)
        assert "put" in await faults(lab)
        await make_room(lab.store)
        for _ in range(100):
            if await readiness(lab) == (200, 0):
                break
            await asyncio.sleep(0.05)
        assert await readiness(lab) == (200, 0)
        frozen = await lab.store.freeze("R1")
    assert frozen.incomplete
    assert len(frozen.entries) == 1, "the call before is whole"


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_store_that_is_gone_turns_the_gateway_red(gateway, stream, strict):
    engine = ScriptedEngine(script=HELLO)
    async with gateway(engine=engine, limits=LIMITS, strict=strict) as lab:
        assert await readiness(lab) == (200, 0)
        await lab.store.close()
        status, text = await said(lab, stream)
        if strict:
            assert (status, "capture_failed" in text, "hello" in text) == (503, True, False)
            assert await faults(lab) == {"begin_call"}
        else:
            assert (status, whole(text, stream)) == (200, True)
            assert await faults(lab) == {"begin_call", "put"}
        assert await readiness(lab) == (503, 1)
        assert engine.alive == 0
