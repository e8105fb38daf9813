"""What nobody foresaw still gets an answer in the caller's dialect, and one entry that settles the call."""

import asyncio
import json
import socket
from concurrent.futures import ThreadPoolExecutor

import aiohttp
import pytest

from rolltape.config import read_config
from rolltape.gateway import serve
from rolltape.record import Delivery, Outcome
from rolltape.store import TokenCaptureStore
from rolltape.testing.scripted import Fault, ScriptedEngine, Step

from .conftest import CHAT


class TimesOut(ScriptedEngine):
    """An engine whose own time limit ends a call in a way that no contract names."""

    async def generate(self, request, sampling):
        if False:
            yield
        raise TimeoutError("the engine's own clock")


class ModelsFail(ScriptedEngine):
    async def models(self):
        raise OSError("no such model list")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_times_out_by_itself_is_an_error_and_a_failed_entry(gateway, stream):
    async with gateway(engine=TimesOut()) as lab:
        status, body = await lab.ask(stream=stream)
        (entry,) = await lab.entries()
        state = await lab.store.rollout("R1")
    assert (status, body["error"]["code"]) == (500, "internal_error")
    assert (entry.outcome, state.n_open_calls) == (Outcome.FAILED, 0)


async def test_a_fault_before_any_call_is_told_in_the_callers_dialect(gateway):
    async with gateway(engine=ModelsFail()) as lab:
        status, body = await lab.ask()
        async with lab.http.get(f"{lab.url}/v1/models") as models:
            assert (models.status, models.content_type) == (500, "application/json")
    assert (status, body["error"]["code"]) == (500, "internal_error")
    assert "no such model list" in body["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_gateway_that_stops_tells_the_caller_and_settles_the_call(gateway, monkeypatch, tmp_path, stream):
    monkeypatch.setattr(serve, "_GRACE_SECONDS", 0.2)
    sampling = asyncio.Event()

    def answer(request, number):
        sampling.set()
        return Step(text="a b c", fault=Fault.STALL)

    async with gateway(script=answer) as lab:
        asking = asyncio.create_task(_raw(lab, stream))
        await asyncio.wait_for(sampling.wait(), 5)
    status, text = await asking
    assert status == (200 if stream else 503)
    assert json.loads(text.strip().rpartition("data: ")[2])["error"]["code"] == "gateway_stopped"
    async with TokenCaptureStore(tmp_path / "store") as store:
        held = await store.read("R1")
    assert [(e.outcome, len(e.generation_token_ids)) for e in held.entries] == [(Outcome.CANCELLED, 2)]
    assert not held.incomplete


async def _raw(lab, stream):
    body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
    async with (
        aiohttp.ClientSession() as http,
        http.post(lab.url + "/rollout/R1" + CHAT, json=body) as response,
    ):
        return response.status, await response.text()


def test_gateways_that_start_at_once_share_one_control_token(tmp_path):
    def token(_):
        return serve.control_token(read_config(None, dir=str(tmp_path), control_token=None), tmp_path)

    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(token, range(32)))
    assert tokens == {(tmp_path / serve.TOKEN_FILE).read_text()}


@pytest.mark.parametrize("held", ["", "\n"])
def test_an_empty_token_file_is_filled(tmp_path, held):
    (tmp_path / serve.TOKEN_FILE).write_text(held)
    assert len(serve.control_token(read_config(None, dir=str(tmp_path)), tmp_path)) > 32


async def test_a_whole_reply_that_its_client_never_read_was_not_delivered(gateway):
    """The reply is larger than what the kernel takes for a client that does not read: the rest waits in the gateway."""
    script = [Step(text="w" * 60_000)]
    body = json.dumps({"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "logprobs": True})
    head = f"POST /rollout/R1{CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    async with gateway(engine=ScriptedEngine(script=script, chunk=60_000)) as lab:
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            deaf.connect(("127.0.0.1", int(lab.url.rpartition(":")[2])))
            deaf.sendall((head + body).encode())
            assert await asyncio.to_thread(deaf.recv, 12) == b"HTTP/1.1 200"
        for _ in range(100):
            (entry,) = await lab.entries()
            if entry.delivery is not Delivery.UNKNOWN:
                break
            await asyncio.sleep(0.02)
    assert (entry.outcome, entry.delivery) == (Outcome.COMPLETED, Delivery.UNDELIVERED)
