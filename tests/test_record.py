"""A token entry keeps what the engine said, and names what is wrong with it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltape.errors import EntryError
from rolltape.record import Fault, LogProbKind, Outcome, TokenEntry, is_rollout_id


def entry(prompt=(1, 10), generation=(60, 2), probs=(-0.1, -0.2), **more) -> TokenEntry:
    return TokenEntry(
        rollout_id="R",
        model_call_id="c1",
        prompt_token_ids=list(prompt),
        generation_token_ids=list(generation),
        generation_log_probs=list(probs),
        **more,
    )


def test_a_clean_entry_is_trainable_throughout():
    clean = entry()
    assert clean.faults == ()
    assert clean.ids_exact
    assert clean.trainable.tolist() == [True, True]
    assert clean.sequence.tolist() == [1, 10, 60, 2]


def test_fewer_log_probs_than_ids_mark_the_entry_and_are_never_padded():
    short = entry(generation=(60, 61, 62, 63, 2), probs=(-0.5, -0.4, -0.3))
    assert short.faults == ("log_probs_length: 3 for 5 ids",)
    assert short.ids_exact
    assert len(short.generation_log_probs) == 3
    assert not short.trainable.any()


def test_a_log_prob_that_is_none_nan_or_infinite_costs_its_own_token_only():
    holed = entry(generation=(60, 61, 62, 2), probs=(-0.1, None, float("-inf"), -0.3))
    assert holed.faults == ("log_probs_invalid: at 1, 2",)
    assert holed.trainable.tolist() == [True, False, False, True]


def test_a_positive_log_prob_is_no_log_prob():
    assert entry(probs=(0.5, -0.1)).trainable.tolist() == [False, True]


def test_a_certain_token_has_log_prob_zero():
    assert entry(probs=(0.0, -0.1)).trainable.tolist() == [True, True]


def test_a_completed_call_without_prompt_ids_has_damaged_evidence():
    assert not entry(prompt=()).ids_exact
    assert entry(prompt=(), generation=(), probs=(), outcome="refused").ids_exact


def test_a_fault_that_nobody_here_knows_puts_the_ids_in_doubt():
    assert not entry(faults=("cosmic_ray",)).ids_exact
    assert entry(faults=(Fault.LOG_PROBS_MISSING,)).ids_exact


def test_grammar_masked_spans_carry_no_loss():
    spans = entry(
        generation=(5, 6, 7), probs=(-1, -1, -1), log_prob_kind="raw", log_prob_spans=((1, 2, "grammar_masked"),)
    )
    assert spans.trainable.tolist() == [True, False, True]
    assert not entry(log_prob_kind=LogProbKind.GRAMMAR_MASKED).trainable.any()


def test_an_entry_is_built_from_the_five_required_fields_alone():
    body = {
        "rollout_id": "R",
        "model_call_id": "c",
        "prompt_token_ids": [1],
        "generation_token_ids": [2],
        "generation_log_probs": [-1.5],
    }
    read = TokenEntry.from_json(body)
    assert read.outcome is Outcome.COMPLETED
    assert read.to_json() == body
    for name in body:
        with pytest.raises(EntryError, match=name):
            TokenEntry.from_json({k: v for k, v in body.items() if k != name})


def test_unknown_keys_are_kept_aside():
    read = TokenEntry.from_json(entry().to_json() | {"favourite_colour": "blue"})
    assert read.extra == {"favourite_colour": "blue"}


@pytest.mark.parametrize(
    "change",
    [
        {"rollout_id": ""},
        {"model_call_id": 7},
        {"outcome": "ok"},
        {"delivery": "maybe"},
        {"prompt_token_ids": [1.5]},
        {"generation_token_ids": "abc"},
        {"generation_log_probs": ["x", "y"]},
        {"generation_log_probs": 3},
    ],
)
def test_what_is_no_entry_is_refused(change):
    with pytest.raises(EntryError):
        TokenEntry.from_json(entry().to_json() | change)


@given(
    st.lists(st.integers(0, 2**31 - 1)),
    st.lists(st.integers(0, 2**31 - 1)),
    st.lists(st.none() | st.floats(width=32)),
)
def test_any_entry_survives_strict_json(prompt, generation, probs):
    before = entry(prompt, generation, probs)
    after = TokenEntry.from_json(json.loads(json.dumps(before.to_json(), allow_nan=False)))
    assert after.to_json() == before.to_json()
    assert after.faults == before.faults
    assert after.trainable.tolist() == before.trainable.tolist()


@pytest.mark.parametrize("text", ["a", "Task.1-0_b", "0", "x" * 200])
def test_rollout_ids(text):
    assert is_rollout_id(text)


@pytest.mark.parametrize("text", ["", ".a", "-a", "_a", "a/b", "a b", "é", "²", "x" * 201, "a\n"])
def test_what_is_no_rollout_id(text):
    assert not is_rollout_id(text)
