"""What never leaves the gateway: secrets anywhere, and what was said in its logs or, with texts off, in its store."""

import asyncio
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from rolltape import client
from rolltape.errors import RequestError
from rolltape.testing.scripted import ScriptedEngine, Step

SAID, TOOL, REPLY, DUMMY = "PROMPT-said-9f2c", "TOOL-told-77aa", "REPLY-heard-51d3", "sk-DUMMY-0d4e"
CONTROL = "CONTROL-token-c0ffee"
MARKS = (SAID, TOOL, REPLY, DUMMY, CONTROL)
MESSAGES = [{"role": "user", "content": SAID}, {"role": "tool", "tool_call_id": "x", "content": TOOL}]
ROUTES = {
    "/v1/chat/completions": {"model": "scripted", "messages": MESSAGES},
    "/v1/completions": {"model": "scripted", "prompt": SAID},
    "/v1/responses": {"model": "scripted", "input": SAID},
    "/v1/messages": {"model": "scripted", "messages": MESSAGES[:1], "max_tokens": 50},
    "/v1beta/models/scripted:generateContent": {"contents": [{"role": "user", "parts": [{"text": SAID}]}]},
}


class Odd(ScriptedEngine):
    """Breaks as no engine should, with what it was asked in its words."""

    async def generate(self, request, sampling):
        async for event in super().generate(request, sampling):
            yield event
        raise RuntimeError(f"no idea what to do with {request}")


async def announced(lab) -> str:
    """The key of R1."""
    async with lab.control() as connection:
        return (await connection.create("R1", {}, {}))["api_key"]


async def exercise(lab, key: str) -> list[int]:
    """Every route: whole, streamed, with wrong keys, with bodies that cannot be read or honoured, and left early."""
    statuses = []
    for path, body in ROUTES.items():
        url = f"{lab.url}/rollout/R1{path}"
        for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": DUMMY}, {"x-api-key": f"rt-R1.{DUMMY}"}):
            for sent in (
                body,
                {**body, "stream": True},
                {**body, "n": 2, "max_tokens": SAID},
                [SAID],
                {"a": {SAID: 1}},
            ):
                async with lab.http.post(url, json=sent, headers=headers) as response:
                    statuses.append(response.status)
                    await response.read()
        async with lab.http.post(url, data=f'{{"model": "{SAID}', headers={"authorization": f"Bearer {key}"}) as broken:
            statuses.append(broken.status)
        async with lab.http.get(f"{url}?key={key}") as response:
            statuses.append(response.status)
    return statuses


@pytest.mark.parametrize("engine", [ScriptedEngine, Odd])
async def test_no_secret_and_nothing_that_was_said_is_in_the_logs(gateway, caplog, capfd, monkeypatch, engine):
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.INFO, "rolltape")  # as `rolltape serve` has it
    made = engine(script=lambda request, number: Step(text=REPLY))
    async with gateway(engine=made, auth="keys", control_token=CONTROL, limits={"durable_seconds": 0.2}) as lab:
        key = await announced(lab)
        statuses = await exercise(lab, key)
        for method, path, body in [
            ("POST", "/control/rollouts", {"labels": {"note": SAID}}),
            ("POST", "/control/rollouts", {"note": SAID}),
            ("POST", "/control/policy", {"state": SAID}),
            ("GET", "/control/rollouts", None),
            ("GET", "/control/rollouts/R1/entries", None),
            ("GET", "/control/rollouts/R1/rows", None),
        ]:
            for token in (CONTROL, DUMMY):
                headers = {"authorization": f"Bearer {token}"}
                async with lab.http.request(method, lab.url + path, json=body, headers=headers) as response:
                    await response.read()
        await lab.store.close()
        statuses += await exercise(lab, key)
    assert {200, 400, 401} <= set(statuses)
    assert caplog.records, "there was something to say"
    told = caplog.text + "".join(capfd.readouterr())
    told = "\n".join(line for line in told.splitlines() if "PytestUnraisable" not in line)
    for mark in (*MARKS, key):
        assert mark not in told, [line for line in told.splitlines() if mark in line][:3]


async def test_without_texts_an_entry_keeps_no_words_of_an_engine_that_broke(gateway):
    async with gateway(engine=Odd(script=lambda request, number: Step(text=REPLY)), texts=False) as lab:
        assert (await lab.ask(messages=MESSAGES[:1]))[0] == 502
        (entry,) = await lab.entries()
    assert entry.error == "engine_broken"
    assert SAID not in repr(entry)


@pytest.mark.parametrize("texts", [False, True])
async def test_without_texts_the_store_holds_nothing_that_was_said_and_never_a_secret(gateway, tmp_path, texts):
    engine = ScriptedEngine(script=lambda request, number: Step(text=REPLY))
    async with gateway(engine=engine, auth="keys", control_token=CONTROL, texts=texts) as lab:
        key = await announced(lab)
        for path, body in ROUTES.items():
            headers = {"authorization": f"Bearer {key}", "x-api-key": DUMMY, "x-goog-api-key": DUMMY}
            async with lab.http.post(f"{lab.url}/rollout/R1{path}", json=body, headers=headers) as response:
                assert response.status == 200, await response.text()
        held = await lab.entries()
        await lab.store.freeze("R1")
    raw = b"".join(path.read_bytes() for path in sorted((tmp_path / "store").iterdir()))
    for entry in held:
        assert any(word in repr(entry) for word in (SAID, REPLY)) == texts
    for secret in (CONTROL, key, key.rpartition(".")[2], DUMMY):
        assert secret.encode() not in raw
    if not texts:
        for mark in (SAID, TOOL, REPLY):
            assert mark.encode() not in raw


async def test_the_key_of_one_rollout_opens_no_other(gateway):
    async with gateway(script=[Step(text="hello")] * 9, auth="keys") as lab, lab.control() as connection:
        keys = {name: (await connection.create(name, {}, {}))["api_key"] for name in ("R1", "R2", "R1.x")}
        body = ROUTES["/v1/chat/completions"]
        for path_of in keys:
            for key_of, key in keys.items():
                headers = {"authorization": f"Bearer {key}"}
                async with lab.http.post(lab.chat_url(path_of), json=body, headers=headers) as response:
                    assert (response.status == 200) == (path_of == key_of)
        for key in keys.values():
            async with client.connect(lab.url, key) as other:
                with pytest.raises(RequestError, match="control token"):
                    await other.rollouts()
        assert {name: len(await lab.entries(name)) for name in keys} == {"R1": 1, "R2": 1, "R1.x": 1}


async def test_off_loopback_a_gateway_without_keys_refuses_to_start(tmp_path):
    command = [
        str(Path(sys.executable).parent / "rolltape"),
        "serve",
        "--engine",
        "scripted",
        "--host",
        "0.0.0.0",
        "--port",
        "0",
    ]
    command += ["--auth", "open", "--dir", str(tmp_path)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=30)
    assert done.returncode != 0
    assert "serves anyone" in done.stderr
    assert not list(tmp_path.iterdir())
