"""Engines beside the policy's: which one a model name reaches, and that what they say is kept and never trained."""

import json

import msgspec
import pytest

from rolltape.cli.entries import parse
from rolltape.config import read_config
from rolltape.errors import ConfigError
from rolltape.rebuild import rebuild
from rolltape.record import TokenEntry
from rolltape.testing.scripted import Fault, ScriptedEngine, Step, encode

ALIASES = {"claude-haiku-*": "helper", "gpt-mini": "helper", "*": "policy"}
USER = {"role": "user", "content": "hi"}


@pytest.fixture
def helper_script(tmp_path):
    """A script file of an engine that says what none other does."""

    def write(**step) -> str:
        path = tmp_path / "helper.jsonl"
        path.write_text(json.dumps({"text": "helper here", **step}) + "\n")
        return str(path)

    return write


def helper(script: str, **options):
    return {"helper": {"kind": "scripted", "model": "tiny", "url": script, "options": options}}


async def test_a_name_reaches_the_engine_that_its_alias_names(gateway, helper_script):
    async with gateway(
        engines=helper(helper_script()), model_aliases=ALIASES, script=[Step(text="policy here")] * 9
    ) as lab:
        said = {}
        for name in ("scripted", "tiny", "claude-haiku-4-5", "gpt-mini", "claude-opus-4", "anything"):
            status, reply = await lab.ask(model=name)
            assert (status, reply["model"]) == (200, name)
            said[name] = reply["choices"][0]["message"]["content"].split()[0]
        entries = {entry.model_asked: entry for entry in await lab.entries()}
    assert said == {
        "scripted": "policy", "tiny": "helper", "claude-haiku-4-5": "helper", "gpt-mini": "helper",
        "claude-opus-4": "policy", "anything": "policy",
    }  # fmt: skip
    assert {name for name, entry in entries.items() if entry.other_engine} == {"tiny", "claude-haiku-4-5", "gpt-mini"}
    assert (entries["gpt-mini"].other_engine, entries["gpt-mini"].model) == ("helper", "tiny")
    assert entries["anything"].other_engine is None


async def test_what_another_engine_said_is_kept_and_never_trained(gateway, helper_script):
    async with gateway(engines=helper(helper_script()), model_aliases=ALIASES, script=[Step(text="mine")] * 2) as lab:
        _, first = await lab.ask()
        _, second = await lab.ask(model="claude-haiku-4-5", messages=[USER, USER])
        turns = [USER, first["choices"][0]["message"], USER, second["choices"][0]["message"], USER]
        await lab.ask(messages=[{key: turn[key] for key in ("role", "content")} for turn in turns])
        frozen = await lab.store.freeze("R1")
        told = await lab.store.read("R1", texts=True)
    for snapshot in (frozen, told):
        built = rebuild(snapshot)
        assert not built.mask_sample
        assert built.metrics["delivered_trainable_fraction"] == 1.0
        sampled = sorted(len(entry.generation_token_ids) for entry in snapshot.entries if not entry.other_engine)
        assert sum(row.loss_tokens for row in built.rows) == sum(sampled)
    (other,) = [entry for entry in told.entries if entry.other_engine]
    assert other.generation_token_ids.tolist()[:-1] == encode("helper here")
    assert "helper here" in str(other.output_items)
    assert {one.reason for one in built.ledger if one.model_call_id == other.model_call_id} == {"engine: helper"}


async def test_the_mark_of_another_engine_survives_export_and_any_rebuild(gateway, helper_script):
    async with gateway(engines=helper(helper_script()), model_aliases=ALIASES) as lab:
        await lab.ask(model="gpt-mini")
        (entry,) = (await lab.store.freeze("R1")).entries
    line = msgspec.json.encode(entry.to_json())
    held = parse([line])
    assert held.entries[0].other_engine == "helper"
    assert rebuild(held.snapshot("R1")).rows == ()
    assert TokenEntry.from_json(msgspec.json.decode(line)).other_engine == "helper"


async def test_another_engine_that_tells_no_ids_masks_nothing_and_leaves_the_gateway_ready(gateway, helper_script):
    engines = helper(helper_script(fault=Fault.IDS_MISSING))
    async with gateway(engines=engines, model_aliases=ALIASES) as lab:
        await lab.ask()
        await lab.ask(model="gpt-mini", messages=[USER, USER])
        async with lab.http.get(f"{lab.url}/readyz") as response:
            assert response.status == 200
        frozen = await lab.store.freeze("R1")
    assert [bool(entry.faults) for entry in frozen.entries if entry.other_engine] == [True]
    assert not rebuild(frozen).mask_sample


async def test_pins_and_the_policy_s_version_are_the_policy_s(gateway, helper_script):
    flags = {"engines": helper(helper_script()), "model_aliases": ALIASES, "sampling_overrides": {"temperature": 1.0}}
    async with gateway(**flags) as lab, lab.control() as control:
        await control.set_policy(version="7")
        await lab.ask(temperature=0.2)
        await lab.ask(model="gpt-mini", temperature=0.2)
        mine, other = await lab.entries()
    assert (mine.sampling_applied["temperature"], mine.policy_version, mine.policy_version_end) == (1.0, "7", "7")
    assert (other.sampling_applied["temperature"], other.policy_version, other.policy_version_end) == (0.2, None, None)


async def test_tokens_of_another_engine_count_against_the_budget(gateway, helper_script):
    async with (
        gateway(engines=helper(helper_script()), model_aliases=ALIASES) as lab,
        lab.control() as control,
    ):
        await control.create("R1", {}, {"tokens": 5})
        assert (await lab.ask(model="gpt-mini"))[0] == 200
        assert (await lab.ask())[0] == 403


async def test_models_and_plain_aliases_are_listed_with_who_answers(gateway, helper_script):
    engines = helper(helper_script(), context_length=64)
    async with gateway(engines=engines, model_aliases=ALIASES) as lab:
        async with lab.http.get(f"{lab.url}/v1/models") as response:
            cards = (await response.json())["data"]
        async with lab.http.get(f"{lab.url}/v1/models/claude-haiku-4-5") as response:
            one = await response.json()
    assert [(card["id"], card["owned_by"], card["max_model_len"]) for card in cards] == [
        ("scripted", "scripted", 131072), ("tiny", "helper (scripted)", 64), ("gpt-mini", "helper (scripted)", 64),
    ]  # fmt: skip
    assert (one["id"], one["max_model_len"]) == ("claude-haiku-4-5", 64)


async def test_each_engine_counts_with_its_own_tokenizer(gateway, helper_script):
    seen = ScriptedEngine()
    async with gateway(engine=seen, engines=helper(helper_script(), context_length=10), model_aliases=ALIASES) as lab:
        status, _ = await lab.ask(model="gpt-mini", messages=[{"role": "user", "content": "x" * 60}])
        assert status == 400
        assert seen.started == 0


def test_the_policy_may_stand_among_the_engines(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        "engines: {policy: {kind: scripted, model: big}, helper: {kind: vllm, url: 'http://h'}}\n"
        "model_aliases: {'claude-haiku-*': helper, '*': policy}\n"
    )
    config = read_config(path, engine_model="bigger")
    assert (config.engine.kind, config.engine.model) == ("scripted", "bigger")
    assert {name: chosen.kind for name, chosen in config.engines.items()} == {"helper": "vllm"}
    assert config.aliases == {"claude-haiku-*": "helper", "*": "policy"}


def test_names_on_the_command_line_may_name_their_engine():
    config = read_config(None, engines={"helper": {"kind": "scripted"}}, model_aliases=("a", "b-*=helper"))
    assert config.aliases == {"a": "policy", "b-*": "helper"}


@pytest.mark.parametrize(("flags", "words"), [
    ({"model_aliases": {"a": "helpr"}, "engines": {"helper": {}}}, "no engine has that name.*did you mean 'helper'"),
    ({"engines": {"policy": {"kind": "vllm"}}, "engine": {"kind": "scripted"}}, "given twice"),
    ({"engines": {"helper": {"knd": "vllm"}}}, "unknown option engines.helper.knd"),
    ({"engines": ["helper"]}, "engines must be a mapping"),
])  # fmt: skip
def test_a_configuration_that_means_nothing_is_refused(flags, words):
    with pytest.raises(ConfigError, match=f"(?s){words}"):
        read_config(None, **flags)
