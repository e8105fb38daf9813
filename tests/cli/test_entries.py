"""Reading token entries from lines of JSON."""

import json
import math

import pytest

from rolltape.cli.entries import parse
from rolltape.errors import EntryError

ENTRY = {
    "rollout_id": "r",
    "model_call_id": "c1",
    "prompt_token_ids": [1, 2],
    "generation_token_ids": [3],
    "generation_log_probs": [-0.5],
}


def line(**changes) -> bytes:
    return json.dumps(ENTRY | changes).encode() + b"\n"


def test_five_fields_are_enough_and_blank_lines_are_none():
    held = parse([line(), b"\n", line(model_call_id="c2")])

    assert [entry.model_call_id for entry in held.entries] == ["c1", "c2"]
    assert held.rollout_ids() == ("r",)
    assert not held.snapshot("r").incomplete


def test_a_bad_line_is_named_by_its_number():
    with pytest.raises(EntryError, match=r"line 2: not JSON"):
        parse([line(), b"{nonsense\n"])
    with pytest.raises(EntryError, match=r"line 3: not a JSON object"):
        parse([line(), b"\n", b"[1]\n"])


def test_missing_fields_are_named():
    body = {name: value for name, value in ENTRY.items() if not name.startswith("generation")}

    with pytest.raises(EntryError, match=r"line 1: .*generation_token_ids, generation_log_probs"):
        parse([json.dumps(body).encode()])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("created_at", "yesterday"),
        ("headers", ["a"]),
        ("log_prob_spans", [[0]]),
        ("outcome", "splendid"),
        ("delivery", 3),
        ("prompt_token_ids", [1.5]),
        ("prompt_token_ids", [[1]]),
        ("prompt_token_ids", "12"),
        ("prompt_token_ids", [-1]),
        ("generation_token_ids", [2**40]),
        ("generation_log_probs", ["high"]),
        ("generation_log_probs", 1),
        ("rollout_id", ""),
        ("model_call_id", 7),
    ],
)
def test_a_field_of_the_wrong_kind_is_an_error_of_its_line(field, value):
    with pytest.raises(EntryError, match="line 1: "):
        parse([line(**{field: value})])


def test_unknown_keys_are_counted_and_ignored():
    held = parse([line(colour="red"), line(model_call_id="c2", colour="blue", size=3)])

    assert held.unknown_keys == {"colour": 2, "size": 1}


def test_a_log_prob_that_is_no_number_marks_the_entry_and_is_no_bad_line():
    (entry,) = parse([line(generation_log_probs=[math.nan])]).entries

    assert entry.faults
    assert not entry.trainable.any()


def test_the_same_line_twice_is_one_entry_and_another_payload_is_an_error():
    assert len(parse([line(), line()]).entries) == 1
    with pytest.raises(EntryError, match="line 2: model call 'c1' differs from line 1"):
        parse([line(), line(generation_token_ids=[4])])


def test_a_deeply_nested_line_is_an_error_and_no_crash():
    with pytest.raises(EntryError, match="line 1"):
        parse([b"[" * 100_000])


@pytest.mark.parametrize("field", ["prompt_token_ids", "generation_token_ids"])
@pytest.mark.parametrize("value", [5, "12", {"1": 2}, [[1], [2, 3]], [10**400], [1.0], [True], ["1"], None])
def test_ids_that_are_no_flat_list_of_whole_numbers_are_named_by_their_field(field, value):
    with pytest.raises(EntryError, match=rf"line 1: .*{field}"):
        parse([line(**{field: value})])


@pytest.mark.parametrize("value", [[True], [False], ["-0.5"], "1", {"1": 2}, 5, [10**400], [[-0.5]], None])
def test_what_is_no_number_is_never_read_as_a_log_prob(value):
    with pytest.raises(EntryError, match=r"line 1: .*generation_log_probs"):
        parse([line(generation_log_probs=value)])


def test_a_log_prob_too_large_for_its_type_marks_the_entry():
    (entry,) = parse([line(generation_log_probs=[-1e300])]).entries
    assert entry.faults == ("log_probs_invalid: at 0",)


@pytest.mark.parametrize("field", ["rollout_id", "model_call_id", "model"])
def test_half_a_surrogate_pair_is_a_bad_line(field):
    with pytest.raises(EntryError, match="line 1: it holds half a surrogate pair"):
        parse([line(**{field: "\ud800"})])


@pytest.mark.parametrize("span", [[-1, 1, "raw"], [0, 2, "raw"], [1, 0, "raw"], [0, 2**80, "raw"]])
def test_spans_outside_of_the_generation_are_a_bad_line(span):
    with pytest.raises(EntryError, match="line 1: log_prob_spans"):
        parse([line(log_prob_spans=[span])])
