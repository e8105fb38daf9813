"""A store that is slow, full or gone: what the harness sees, and who is told.

By default the call succeeds, the rollout is marked, the gateway is not ready while a mark waits, and metrics count it.
A strict gateway refuses the call instead. Nothing is silent.
"""

import asyncio
import contextlib
import random
import re
import resource
import shutil
import string
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest

from rolltape.config import read_config
from rolltape.gateway.serve import running
from rolltape.testing.scripted import ScriptedEngine, Step
from store.postgres_server import Server

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


async def red_then_green(lab, spoil, mend, *, strict: bool) -> None:
    """Calls before, during and after a store that takes nothing; `spoil` and `mend` it."""
    assert (await said(lab, False))[0] == 200
    await spoil()
    status, text = await said(lab, False)
    assert (status, whole(text, False)) == ((503, False) if strict else (200, True))
    assert ("capture_failed" in text) == strict
    assert "begin_call" in await faults(lab)
    assert await readiness(lab) == (503, 1)
    await mend()
    for _ in range(600):
        if await readiness(lab) == (200, 0):
            break
        await asyncio.sleep(0.05)
    assert await readiness(lab) == (200, 0)
    assert whole((await said(lab, False))[1], False)
    async with lab.http.post(f"{lab.url}/control/rollouts/R1/freeze", headers=lab.headers) as response:
        frozen = await response.json()
    assert frozen["incomplete"], "what was lost is known"
    assert frozen["n_entries"] >= 2, "the calls before and after are whole"


def shown(http, url: str, token: str):
    """What the helpers above need of a gateway that is not a `Lab`."""
    headers = {"authorization": f"Bearer {token}"}
    chat_url = f"{url}/rollout/R1/v1/chat/completions"
    return SimpleNamespace(url=url, token=token, http=http, headers=headers, chat_url=lambda: chat_url)


@pytest.mark.parametrize("strict", [False, True])
async def test_a_store_that_may_only_be_read_turns_the_gateway_red_until_it_may_be_written(gateway, strict):
    async with gateway(script=HELLO, limits=LIMITS, strict=strict) as lab:
        lab.headers = {"authorization": f"Bearer {lab.token}"}

        def only_read(on: int):
            async def switch() -> None:
                lab.store._writer._db.execute(f"PRAGMA query_only = {on}").fetchall()

            return switch

        await red_then_green(lab, only_read(1), only_read(0), strict=strict)


@pytest.mark.parametrize("strict", [False, True])
async def test_a_store_whose_directory_is_deleted_turns_the_gateway_red(gateway, tmp_path, strict):
    async with gateway(script=HELLO, limits=LIMITS, strict=strict) as lab:
        assert (await said(lab, False))[0] == 200
        shutil.rmtree(tmp_path / "store")
        assert (await said(lab, False))[0] == (503 if strict else 200)
        assert await readiness(lab) == (503, 1)
        assert "begin_call" in await faults(lab)


@contextlib.asynccontextmanager
async def serving(directory: Path, strict: bool):
    """`rolltape serve` in a process of its own, so that its files can be bounded: (process, url)."""
    (directory / "rolltape.yaml").write_text(
        f"strict: {str(strict).lower()}\nlimits: {{durable_seconds: 1, settle_seconds: 0.2}}\n"
    )
    options = ["--engine", "scripted", "--port", "0", "--dir", str(directory / "store"), "--control-token", "t"]
    command = [str(Path(sys.executable).parent / "rolltape"), "serve", str(directory / "rolltape.yaml"), *options]
    process = await asyncio.to_thread(subprocess.Popen, command, stderr=subprocess.PIPE, text=True)
    try:
        line = await asyncio.to_thread(process.stderr.readline)
        yield process, re.search(r"http://\S+", line)[0]
    finally:
        process.terminate()
        process.communicate()


@pytest.mark.parametrize("strict", [False, True])
async def test_a_disk_that_takes_no_byte_more_turns_the_gateway_red_until_it_does(tmp_path, strict):
    async with serving(tmp_path, strict) as (process, url), aiohttp.ClientSession() as http:
        lab = shown(http, url, "t")

        def at_most(size: int):
            async def bound() -> None:
                _, most = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, most))

            return bound

        await red_then_green(lab, at_most(1), at_most(resource.RLIM_INFINITY), strict=strict)


@pytest.mark.real
@pytest.mark.parametrize("strict", [False, True])
async def test_a_database_server_that_is_stopped_turns_the_gateway_red_until_it_is_back(tmp_path, strict):
    with Server() as server:
        sink = f"sink: rolltape.store.postgres:PostgresStore\n  sink_kwargs: {{dsn: {server.database()!r}}}\n"
        (tmp_path / "g.yaml").write_text(f"token_id_capture:\n  enabled: true\n  {sink}")
        flags = {"dir": str(tmp_path / "a"), "port": 0, "limits": LIMITS | {"durable_seconds": 3}, "strict": strict}
        config = read_config(tmp_path / "g.yaml", **flags)
        async with running(config, engine=ScriptedEngine(script=HELLO)) as up, aiohttp.ClientSession() as http:
            lab = shown(http, up.url, up.control_token)

            async def stop() -> None:
                await asyncio.to_thread(server.stop)

            async def start() -> None:
                await asyncio.to_thread(server.start)

            await red_then_green(lab, stop, start, strict=strict)
