"""Somebody else's classes: what is wrong with one is found at start-up, and a fitting one carries whole rollouts."""

import asyncio
import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from foreign_transport import KEY, FolderSource
from rolltape.client import connect
from rolltape.config import read_config
from rolltape.delivery import finalize_rollout_token_capture, retire_rollout_token_capture
from rolltape.errors import ConfigError, RequestError
from rolltape.gateway.serve import running
from rolltape.store import TokenCaptureStore
from rolltape.testing.scripted import ScriptedEngine

CHAT = "/v1/chat/completions"
SINK = "foreign_transport:FolderSink"
BODY = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def plane(tmp_path) -> Path:
    """The folder that the transport's two ends share."""
    folder = tmp_path / "plane"
    folder.mkdir()
    return folder


def options(tmp_path, **block):
    return {"dir": str(tmp_path / "gateway"), "port": 0, "token_id_capture": {"enabled": True, **block}}


def foreign(plane, **more):
    return {"sink": SINK, "sink_kwargs": {"folder": str(plane), "key": KEY}, **more}


@contextlib.asynccontextmanager
async def serving(flags):
    engine = ScriptedEngine()
    async with running(read_config(None, **flags), engine=engine) as up, aiohttp.ClientSession() as http:
        yield up, http


async def ask(http, url, **fields):
    async with http.post(url, json={**BODY, **fields}) as response:
        return response.status, await response.json()


async def refusal(tmp_path, **block):
    with pytest.raises(ConfigError) as refused:
        async with serving(options(tmp_path, **block)):
            pass
    return str(refused.value)


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ({"sink": "foreign_transport.FolderSink"}, "did you mean foreign_transport:FolderSink?"),
        ({"sink": "nowhere_to_be_found.sinks:Sink"}, "cannot be imported"),
        ({"sink": "foreign_transport:FolderSnk"}, "did you mean 'FolderSink'?"),
        ({"sink": "foreign_transport:not_a_class"}, "is no class"),
        ({"sink": SINK, "sink_kwargs": {"folder": "x", "key": KEY, "dely": 1}}, "dely.*\n.*did you mean 'delay'"),
        ({"sink": SINK, "sink_kwargs": {"folder": "x"}}, "missing a required argument: 'key'"),
        ({"sink": "foreign_transport:Forgetful"}, "no mark_incomplete.*\n.*would look complete"),
        (
            {"sink": "foreign_transport:Blocking", "sink_kwargs": {"folder": "x", "key": KEY}},
            "put cannot be awaited.*\n.*async def put",
        ),
        (
            {"lineage_store": "foreign_transport:NoQuestions"},
            "foreign_transport:NoQuestions has no resolve",
        ),
        (
            {"lineage_store": "foreign_transport:PlainLineage", "lineage_store_kwargs": {"unreachabl": True}},
            "did you mean 'unreachable'",
        ),
    ],
)
async def test_a_class_that_does_not_fit_is_an_error_before_anything_is_served(tmp_path, plane, block, told):
    refused = await refusal(tmp_path, **({} if "sink" in block else foreign(plane)), **block)
    assert re.search(told, refused, re.DOTALL), refused


async def test_a_constructor_that_fails_says_why_without_its_secrets(tmp_path):
    told = await refusal(tmp_path, sink=SINK, sink_kwargs={"folder": "x", "key": "wrong-s3cret"})
    assert "PermissionError: the key *** opens nothing" in told
    assert "s3cret" not in told


async def test_a_sink_whose_lineage_store_does_not_fit_is_closed_again(tmp_path, plane):
    await refusal(tmp_path, **foreign(plane), lineage_store="foreign_transport:Forgetful")
    assert (plane / "closed").exists()


async def test_calls_go_to_the_sink_and_no_capture_file_appears(tmp_path, plane):
    async with serving(options(tmp_path, **foreign(plane), dir=str(tmp_path / "unused"))) as (up, http):
        status, _ = await ask(http, f"{up.url}/rollout/R1{CHAT}")
        assert status == 200
    held = await FolderSource(plane).freeze("R1")
    assert (len(held.entries), held.incomplete) == (1, False)
    assert len(held.entries[0].generation_token_ids) == len(held.entries[0].generation_log_probs) > 0
    assert not (tmp_path / "unused").exists()
    assert {file.name for file in (tmp_path / "gateway").iterdir()} == {"control-token"}


async def test_rolltape_closes_the_sink_that_it_built(tmp_path, plane):
    async with serving(options(tmp_path, **foreign(plane))):
        assert not (plane / "closed").exists()
    assert (plane / "closed").exists()


async def test_a_put_that_fails_marks_the_rollout_and_the_harness_gets_its_reply(tmp_path, plane, caplog):
    async with serving(options(tmp_path, **foreign(plane))) as (up, http):
        (plane / "broken").touch()
        status, _ = await ask(http, f"{up.url}/rollout/R1{CHAT}")
        assert status == 200
        async with http.get(f"{up.url}/readyz") as ready:
            assert ready.status == 503
        (plane / "broken").unlink()
        for _ in range(200):
            if (await FolderSource(plane).freeze("R1")).incomplete:
                break
            await asyncio.sleep(0.02)
    result = {"_ng_rollout_id": "R1", "response": {"output": []}}
    built = await finalize_rollout_token_capture(result, FolderSource(plane))
    assert result["mask_sample"]
    assert not await retire_rollout_token_capture("R1", FolderSource(plane), built)
    assert (plane / "R1.jsonl").exists()
    assert "ConnectionError: the data plane refuses ***" in caplog.text
    assert KEY not in caplog.text


async def test_a_lineage_store_names_the_parent(tmp_path, plane):
    block = foreign(plane, lineage_store="foreign_transport:PlainLineage")
    async with serving(options(tmp_path, **block)) as (up, http):
        _, first = await ask(http, f"{up.url}/rollout/R1{CHAT}")
        turns = [*BODY["messages"], first["choices"][0]["message"], {"role": "user", "content": "more"}]
        await ask(http, f"{up.url}/rollout/R1{CHAT}", messages=turns)
    one, two = (await FolderSource(plane).freeze("R1")).entries
    extends = two.prompt_token_ids[: one.length].tolist() == one.sequence.tolist()
    assert (one.parent_call_id, two.parent_call_id) == (None, one.model_call_id if extends else None)
    assert extends


async def test_a_lineage_store_that_fails_costs_no_entry(tmp_path, plane):
    block = foreign(plane, lineage_store="foreign_transport:PlainLineage", lineage_store_kwargs={"unreachable": True})
    async with serving(options(tmp_path, **block)) as (up, http):
        await ask(http, f"{up.url}/rollout/R1{CHAT}")
    held = await FolderSource(plane).freeze("R1")
    assert (len(held.entries), held.incomplete) == (1, False)


async def test_control_says_why_it_cannot_read_what_a_sink_holds(tmp_path, plane):
    async with serving(options(tmp_path, **foreign(plane))) as (up, http):
        await ask(http, f"{up.url}/rollout/R1{CHAT}")
        control = connect(up.url, up.control_token)
        async with control:
            asked = (control.freeze, control.entries, control.rows)
            for question in asked:
                with pytest.raises(RequestError, match=f"writes to {SINK} and reads nothing back") as refused:
                    await question("R1")
                assert (refused.value.status, refused.value.code) == (501, "elsewhere")
            state = await control.state("R1")
            assert (state["n_entries"], state["n_open_calls"], state["incomplete"]) == (1, 0, False)


async def test_budgets_outcomes_and_the_policy_hold_in_memory(tmp_path, plane):
    async with serving(options(tmp_path, **foreign(plane))) as (up, http), connect(up.url, up.control_token) as control:
        await control.create("R1", {"task": "t"}, {"calls": 1})
        await control.set_policy(version="7")
        assert (await ask(http, f"{up.url}/rollout/R1{CHAT}"))[0] == 200
        assert (await ask(http, f"{up.url}/rollout/R1{CHAT}"))[0] == 403
        state = await control.state("R1")
        assert (state["ending"], state["labels"]["task"]) == ("budget", "t")
    (entry,) = (await FolderSource(plane).freeze("R1")).entries
    assert entry.policy_version == "7"


async def test_a_class_that_is_a_whole_store_serves_as_one(tmp_path):
    block = {"sink": "rolltape.store:TokenCaptureStore", "sink_kwargs": {"dir": str(tmp_path / "theirs")}}
    async with serving(options(tmp_path, **block)) as (up, http), connect(up.url, up.control_token) as control:
        await ask(http, f"{up.url}/rollout/R1{CHAT}")
        assert (await control.freeze("R1"))["n_entries"] == 1
        assert isinstance(up.store, TokenCaptureStore)


# --- off, and who opted in


async def test_while_capture_is_off_everything_is_served_and_nothing_recorded(tmp_path, plane, caplog):
    flags = options(tmp_path, **{**foreign(plane), "enabled": False})
    flags["agents"] = {"claude_code": {"token_id_capture": True}}
    async with serving(flags) as (up, http), connect(up.url, up.control_token) as control:
        made = await control.create("R1", {"agent": "claude_code"}, {})
        for address in ("/rollout/R1", "/ng-rollout/R1/training-token-capture", ""):
            assert (await ask(http, f"{up.url}{address}{CHAT}"))[0] == 200
        assert not made["captured"]
        with pytest.raises(RequestError, match="nothing is captured"):
            await control.freeze("R1")
    assert not list(plane.iterdir())
    assert any(r.levelno == logging.WARNING and r.message.startswith("NOTHING IS CAPTURED") for r in caplog.records)


async def test_an_agent_that_did_not_opt_in_is_served_uncaptured_unless_its_address_opts_in(tmp_path, plane):
    flags = options(tmp_path, **foreign(plane))
    flags["agents"] = {"willing": {"token_id_capture": True}, "native": {}}
    async with serving(flags) as (up, http), connect(up.url, up.control_token) as control:
        captured = {}
        for name in ("willing", "native", "native-by-path"):
            made = await control.create(name, {"agent": name.partition("-")[0]}, {})
            captured[name] = made["captured"]
        for address in ("rollout/willing", "rollout/native", "ng-rollout/native-by-path/training-token-capture"):
            assert (await ask(http, f"{up.url}/{address}{CHAT}"))[0] == 200
    assert captured == {"willing": True, "native": False, "native-by-path": False}
    assert {file.stem for file in plane.glob("*.jsonl")} == {"willing", "native-by-path"}


async def test_a_gateway_that_stops_after_the_write_keeps_the_evidence_and_builds_no_rows(tmp_path):
    flags = options(tmp_path, dir=str(tmp_path / "store"), rebuild_response=False)
    flags["dir"] = None
    async with serving(flags) as (up, http), connect(up.url, up.control_token) as control:
        assert not (await control.create("R1", {}, {}))["rebuild"]
        await ask(http, f"{up.url}/rollout/R1{CHAT}")
        with pytest.raises(RequestError, match="rebuild_response is false"):
            await control.rows("R1")
        assert (await control.freeze("R1"))["n_entries"] == 1


# --- two processes


@contextlib.asynccontextmanager
async def gateway_process(tmp_path, plane, **kwargs):
    """`rolltape serve` in a process of its own; its URL, and afterwards its stderr under tmp_path."""
    config = {
        "engine": {"kind": "scripted"},
        "port": 0,
        "dir": str(tmp_path / "gateway"),
        "token_id_capture": {
            "enabled": True,
            "sink": SINK,
            "sink_kwargs": {"folder": str(plane), "key": "${oc.env:PLANE_KEY}", **kwargs},
            "rebuild_response": False,
        },
    }
    (tmp_path / "rolltape.yaml").write_text(json.dumps(config))
    program = Path(sys.executable).with_name("rolltape")
    env = {**os.environ, "PLANE_KEY": KEY, "PYTHONPATH": str(Path(__file__).parent)}
    with (tmp_path / "stderr").open("w") as err:
        process = subprocess.Popen(  # noqa: ASYNC220 - the test waits for its ready line anyway
            [program, "serve", str(tmp_path / "rolltape.yaml"), "--json"],
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            env=env,
        )
        try:
            assert process.stdout is not None
            yield json.loads(await asyncio.to_thread(process.stdout.readline))["url"]
        finally:
            process.send_signal(signal.SIGINT)
            await asyncio.to_thread(process.wait, 30)
            process.stdout.close()


async def test_a_rollout_goes_through_a_foreign_transport_from_one_process_to_another(tmp_path, plane):
    source = FolderSource(plane)
    async with gateway_process(tmp_path, plane, delay=0.1) as url, aiohttp.ClientSession() as http:
        seen_at_the_end = await _entries_on_disk_when_the_finish_chunk_arrives(http, url, plane)
    assert seen_at_the_end == 1

    result = {"task_index": 3, "rollout_index": 0, "response": {"output": []}}
    built = await finalize_rollout_token_capture(result, source)
    assert (result["_ng_rollout_id"], result["_ng_token_capture"]["n_calls"]) == ("3-0", 1)
    assert result["response"]["output"][-1]["generation_token_ids"]
    assert "mask_sample" not in result
    assert (plane / "3-0.jsonl").exists()
    assert await retire_rollout_token_capture("3-0", source, built)
    assert not (plane / "3-0.jsonl").exists()
    assert KEY not in (tmp_path / "stderr").read_text()
    assert f"sink {SINK}" in (tmp_path / "stderr").read_text()


async def _entries_on_disk_when_the_finish_chunk_arrives(http, url, plane) -> int:
    """How many entries the transport holds at the moment a harness may act on the reply."""
    address = f"{url}/ng-rollout/3-0/training-token-capture{CHAT}"
    async with http.post(address, json={**BODY, "stream": True}) as response:
        async for line in response.content:
            if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0].get("finish_reason"):
                return sum("entry" in json.loads(text) for text in (plane / "3-0.jsonl").read_text().splitlines())
    return 0


async def test_a_write_after_the_freeze_keeps_its_evidence(tmp_path, plane):
    source = FolderSource(plane)
    async with serving(options(tmp_path, **foreign(plane))) as (up, http):
        await ask(http, f"{up.url}/rollout/5-0{CHAT}")
        built = await finalize_rollout_token_capture({"_ng_rollout_id": "5-0", "response": {"output": []}}, source)
        await ask(http, f"{up.url}/rollout/5-0{CHAT}")
    assert not await retire_rollout_token_capture("5-0", source, built)
    assert len((await source.freeze("5-0")).entries) == 2
