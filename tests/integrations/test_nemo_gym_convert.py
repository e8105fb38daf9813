"""Gym's records as our entries: the same record comes back through a real store, or it is refused."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.integrations.recorded import records

from rolltape.errors import ConflictError, DamagedError, EntryError
from rolltape.integrations.nemo_gym import convert
from rolltape.record import Outcome, TokenEntry
from rolltape.store import TokenCaptureStore

ids = st.lists(st.integers(0, 200_000), max_size=6)
numbers = st.floats(max_value=0, allow_nan=False)
scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))


@st.composite
def gym_records(draw: st.DrawFn) -> dict[str, Any]:
    generated = draw(ids)
    fields = draw(st.dictionaries(st.text("xyz", min_size=1, max_size=4), values, max_size=3))
    return fields | {
        "schema_version": 1,
        "rollout_id": "r",
        "model_call_id": "c",
        "model": draw(st.text(max_size=4)),
        "prompt_token_ids": draw(ids),
        "generation_token_ids": generated,
        "generation_log_probs": [draw(numbers) for _ in generated],
        "routed_experts": draw(st.none() | st.lists(st.lists(st.integers(0, 300), min_size=2, max_size=2)) | values),
        "output_items": draw(st.lists(st.dictionaries(st.text(max_size=3), values, max_size=3), max_size=2)),
        "response_id": draw(st.none() | st.text(max_size=4)),
        "created_at": draw(st.floats(0, 2e9)),
        "parent_call_id": draw(st.none() | st.just("p")),
        "digest": draw(st.none() | st.text(max_size=4)),
        "prompt_is_delta": False,
    }


@given(gym_records())
def test_any_record_comes_back_as_it_was(record: dict[str, Any]) -> None:
    assert convert.body_of(convert.entry_of(record)) == record


@pytest.mark.parametrize("rollout_id", ["whole", "deltas", "lost"])
async def test_recorded_calls_come_back_from_a_store_as_they_were(store: TokenCaptureStore, rollout_id: str) -> None:
    wanted = records(rollout_id)
    sequences = {}
    for body in wanted:
        entry = convert.entry_of(body, sequences.get(convert.parent_of(body)))
        sequences[entry.model_call_id] = entry.sequence
        await store.put(entry)
    assert convert.bodies_of((await store.freeze(rollout_id)).entries) == wanted


def test_the_entry_of_a_delta_holds_the_whole_prompt() -> None:
    sequences = {}
    for body in records("deltas"):
        entry = convert.entry_of(body, sequences.get(convert.parent_of(body)))
        sequences[entry.model_call_id] = entry.sequence
    assert [body["prompt_token_ids"] for body in records("deltas")] == [[1, 2, 3], [4, 5], [6]]
    assert sequences["c2"].tolist() == [1, 2, 3, 10, 11, 4, 5, 12, 6, 13, 14]


def test_a_delta_without_its_parent_is_refused() -> None:
    with pytest.raises(EntryError, match="'c1' continues 'c0', which is not recorded"):
        convert.entry_of(records("deltas")[1])


def test_a_delta_of_another_parent_is_refused_by_its_digest() -> None:
    with pytest.raises(EntryError, match="the digest of the whole differs"):
        convert.entry_of(records("deltas")[1], np.array([1, 2, 4, 10, 11], np.int32))


@pytest.mark.parametrize(
    "log_probs",
    [[-0.1, -2.7], [float(np.float32(-0.1)), -0.5], [-0.123456789012345, float(np.float32(-0.1))], [-0.0, -1e300]],
    ids=["shortest decimals", "widened from float32", "neither", "outside of float32"],
)
def test_log_probs_come_back_to_the_last_bit(log_probs: list[float]) -> None:
    body = records("whole")[0] | {"generation_log_probs": log_probs}
    back = convert.body_of(convert.entry_of(body))["generation_log_probs"]
    assert list(map(float.hex, back)) == list(map(float.hex, log_probs))


def test_routed_experts_are_kept_as_an_array_where_that_says_all_of_it() -> None:
    experts = [[[0, 3], [7, 1]], [[2, 255], [4, 4]]]
    entry = convert.entry_of(records("whole")[0] | {"routed_experts": experts})
    assert entry.routed_experts is not None
    assert entry.routed_experts.dtype == np.uint8
    assert convert.body_of(entry)["routed_experts"] == experts


@pytest.mark.parametrize("experts", ["H4sIAAAA", [[1], [2, 3]], [[0.5]], [True, 1], [-1], [], {"layer": [1]}])
def test_routed_experts_of_any_other_form_are_kept_as_they_came(experts: Any) -> None:
    entry = convert.entry_of(records("whole")[0] | {"routed_experts": experts})
    assert entry.routed_experts is None
    back = convert.body_of(entry)["routed_experts"]
    assert json.dumps(back) == json.dumps(experts)


async def test_the_same_tokens_with_another_text_are_a_conflict(store: TokenCaptureStore) -> None:
    body = records("whole")[0]
    await store.put(convert.entry_of(body))
    await store.put(convert.entry_of(body))
    with pytest.raises(ConflictError):
        await store.put(convert.entry_of(body | {"output_items": [{"type": "message", "content": "other"}]}))


def test_a_record_whose_texts_are_gone_is_not_given_out() -> None:
    entry = convert.entry_of(records("whole")[0]).with_(output_items=())
    with pytest.raises(DamagedError, match="output items of call 'c0'"):
        convert.body_of(entry)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema_version": 2}, "version 2"),
        ({"generation_log_probs": None}, "generation_log_probs"),
        ({"prompt_token_ids": ["1"]}, "prompt_token_ids"),
        ({"prompt_token_ids": [2**31]}, "outside"),
        ({"output_items": "text"}, "output_items"),
        ({"rollout_id": ""}, "rollout_id"),
    ],
)
def test_what_is_no_record_of_a_known_version_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(EntryError, match=words):
        convert.entry_of(records("whole")[0] | change)


def test_digests_are_those_of_gym() -> None:
    assert convert.gym_digest(np.array([1, 2, 3], np.int32)) == (
        "bf99633051449f0f3248b4995a7c8468b9561d7732447341916085f12ff9ff54"
    )
    assert convert.gym_digest(np.array([], np.int32)) == (
        "2e222d36d0c6ae1db1ec18b3f96d9a46df5db61b40137bbfbac4cdf0acde9763"
    )
    for body in records("whole"):
        sequence = np.array(body["prompt_token_ids"] + body["generation_token_ids"], np.int32)
        assert convert.gym_digest(sequence) == body["digest"]


def native(call_id: str, parent: str | None = None, **more: Any) -> TokenEntry:
    fields = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5]} | more
    return TokenEntry(rollout_id="r", model_call_id=call_id, parent_call_id=parent, **fields)


def test_calls_of_a_gateway_name_their_parent_where_gym_gets_to_see_it() -> None:
    entries = [native("a"), native("b", "a"), native("c", "gone"), native("gone", outcome=Outcome.CANCELLED)]
    told = [
        (b["model_call_id"], b.get("parent_resolution"), b.get("parent_call_id")) for b in convert.bodies_of(entries)
    ]
    assert told == [("a", "root", None), ("b", "resolved", "a"), ("c", None, None)]


def test_calls_that_another_engine_answered_are_not_given_to_gym() -> None:
    entries = [native("a"), native("b", "a", extra={"not_the_policy": "helper"}, generation_log_probs=[np.nan])]
    assert [body["model_call_id"] for body in convert.bodies_of(entries)] == ["a"]
    assert convert.whole_loss(entries)


def test_a_call_with_a_token_that_no_loss_may_use_leaves_the_rollout_incomplete_for_gym() -> None:
    assert convert.whole_loss([native("a"), native("gone", outcome=Outcome.FAILED, generation_log_probs=[np.nan])])
    assert not convert.whole_loss([native("a"), native("b", generation_log_probs=[np.nan])])
