"""`rolltape explain`: one rollout, a file, all of a store; with the texts of tokens and without."""

import asyncio

import msgspec
import pytest

from rebuild.breaks import edits, kit
from rolltape.rebuild.breaks import Cause
from rolltape.store import TokenCaptureStore


@pytest.fixture
def broken():
    return next(case for _, case in edits.cases(Cause.TOOL_ARGUMENTS_RESERIALISED, count=1))


@pytest.fixture
def file(broken, tmp_path):
    path = tmp_path / "calls.jsonl"
    lines = [one.to_json() | {"request_text": one.request_text.decode()} for one in (*broken.before, broken.last)]
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return path


@pytest.fixture
def directory(broken, tmp_path):
    async def fill() -> None:
        async with TokenCaptureStore(tmp_path / "store") as store:
            for one in (*broken.before, broken.last):
                await store.put(one)
            await store.put(broken.before[0].with_(rollout_id="whole"))

    asyncio.run(fill())
    return tmp_path / "store"


def test_a_break_has_its_tokens_place_cause_and_advice(rolltape, file):
    said = rolltape("explain", "--entries", file, "--tokenizer", kit.TOKENIZER.parent, "--json")

    (found,) = said.json["breaks"]
    assert found["cause"] == "tool_arguments_reserialised"
    assert found["field"] == "tool_calls[0].arguments"
    assert found["was"]["text"] != found["now"]["text"]
    assert found["role"] == "assistant"
    assert "continue" in found["advice"]
    assert said.json["totals"] == [
        {"cause": found["cause"], "breaks": 1, "branches": 0, "tokens_lost": found["tokens_lost"]}
    ]


def test_the_picture_says_the_same_in_words(rolltape, file):
    said = rolltape("explain", "--entries", file)

    assert said.status == 0
    for part in ("cause   tool_arguments_reserialised", "place   message", "tokens  ", "lost    ", "do      "):
        assert part in said.out
    assert "1 breaks and 0 branches" in said.err


def test_a_rollout_of_a_store_is_explained_from_its_recorded_texts(rolltape, directory):
    assert rolltape("explain", "r", "--dir", directory, "--json").json["breaks"][0]["cause"] == (
        "tool_arguments_reserialised"
    )
    assert rolltape("explain", "whole", "--dir", directory, "--json").json["breaks"] == []


def test_all_sums_up_what_was_lost_to_each_cause(rolltape, directory):
    said = rolltape("explain", "--all", "--dir", directory, "--json").json

    (total,) = said["totals"]
    assert (total["cause"], total["breaks"]) == ("tool_arguments_reserialised", 1)
    assert total["tokens_lost"] > 0
    assert [one["rollout_id"] for one in said["rollouts"]] == ["r", "whole"]
    assert "tool_arguments_reserialised" in rolltape("explain", "--all", "--dir", directory).out


@pytest.mark.parametrize("arguments", [(), ("r", "--all"), ("--entries", "x", "--all")])
def test_it_wants_to_know_what_to_explain(rolltape, arguments):
    refused = rolltape("explain", *arguments)

    assert refused.status == 1
    assert "error: nothing to explain" in refused.err


def test_a_tokenizer_that_is_none_is_refused(rolltape, file, tmp_path):
    assert "there is no tokenizer at" in rolltape("explain", "--entries", file, "--tokenizer", tmp_path / "no").err
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "is no tokenizer that can be read" in rolltape("explain", "--entries", file, "--tokenizer", tmp_path).err
