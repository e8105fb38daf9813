"""Faulty, lost and doubled evidence, and the scenarios that other rebuilders are tested with."""

import math

import pytest

from rolltape.rebuild import rebuild
from rolltape.record import Fault, LogProbKind, Outcome

from .calls import call, snapshot

C1 = call("c1", [1, 2, 3], [10, 11])
C2 = call("c2", [1, 2, 3, 10, 11, 4, 5], [12])
C3 = call("c3", [1, 2, 3, 10, 11, 4, 5, 12, 6], [13, 14])


def test_three_linked_calls_are_one_row() -> None:
    result = rebuild(snapshot(C3, C1, C2))
    (row,) = result.rows
    assert row.token_ids.tolist() == [1, 2, 3, 10, 11, 4, 5, 12, 6, 13, 14]
    assert row.loss_mask.tolist() == [0, 0, 0, 1, 1, 0, 0, 1, 0, 1, 1]
    assert [(s.start, s.end) for s in row.spans] == [(3, 5), (7, 8), (9, 11)]
    assert result.metrics["delivered_fraction"] == 1.0


def test_eleven_hundred_turns_are_one_chain() -> None:
    entries, ids = [], [1, 2]
    for turn in range(1_100):
        entries.append(call(f"t{turn}", ids, [100 + turn]))
        ids = [*ids, 100 + turn, 7]
    result = rebuild(snapshot(entries))
    assert (result.metrics["chains"], result.metrics["roots"], len(result.rows)) == (1, 1, 1)
    assert result.metrics["delivered_fraction"] == 1.0


def test_an_attempt_of_one_prompt_may_be_the_start_of_another() -> None:
    short, long = call("s", [1, 2], [3]), call("l", [1, 2], [3, 4])
    after = call("n", [1, 2, 3, 4, 5], [6])
    result = rebuild(snapshot(short, long, after))
    assert {node.model_call_id: node.parent for node in result.tree} == {"s": None, "l": None, "n": "l"}
    assert [row.model_call_ids for row in result.rows] == [("l", "n")]


def test_a_prompt_that_equals_a_whole_call_continues_it() -> None:
    result = rebuild(snapshot(C1, call("n", [1, 2, 3, 10, 11], [12])))
    assert [row.model_call_ids for row in result.rows] == [("c1", "n")]


def test_a_thousand_empty_attempts_change_nothing_but_a_count() -> None:
    empties = [call(f"e{i}", C2.prompt_token_ids, []) for i in range(1_000)]
    result = rebuild(snapshot(C1, C2, C3, empties))
    assert len(result.rows) == 1
    assert result.metrics["empty_generation_calls"] == 1_000
    assert not result.mask_sample


@pytest.mark.parametrize("entries", [(), (call("e", [1], []),), (call("t", [1], [2], kind="title"),)])
def test_nothing_to_train_on_is_an_error_and_masks(entries: tuple[object, ...]) -> None:
    result = rebuild(snapshot(entries))  # type: ignore[arg-type]
    wanted = "capture produced no trainable generated tokens" if entries else "capture contains no token records"
    assert (result.error, result.mask_reasons, result.rows) == (wanted, (wanted,), ())
    assert result.metrics["delivered_fraction"] == 0.0


def test_a_lost_call_masks_and_says_so() -> None:
    result = rebuild(snapshot(C1, incomplete=True, incomplete_reasons=("intent without outcome: c9",)))
    assert result.mask_reasons == ("incomplete: intent without outcome: c9",)
    assert result.metrics["capture_incomplete"] is True
    assert rebuild(snapshot(C1, incomplete=True)).mask_sample


def test_failed_refused_and_cancelled_calls_mask_nothing_and_train_nothing() -> None:
    broken = [
        call("x1", C2.prompt_token_ids, [12, 13], outcome=Outcome.FAILED),
        call("x2", C2.prompt_token_ids, [], outcome=Outcome.REFUSED),
        call("x3", [], [5], outcome=Outcome.CANCELLED, faults=(Fault.PROMPT_IDS_MISSING,)),
    ]
    result = rebuild(snapshot(C1, C2, C3, broken))
    assert not result.mask_sample
    assert result.metrics["outcomes"] == {"cancelled": 1, "completed": 3, "failed": 1, "refused": 1}
    assert result.metrics["failed_calls"] == 2
    assert result.metrics["delivered_fraction"] == 1.0
    assert {one.reason for one in result.ledger if one.model_call_id == "x1"} == {"outcome: failed"}


def test_ids_in_doubt_make_the_rollout_incomplete() -> None:
    doubtful = C3.with_(faults=("token_count_mismatch: 3 said, 2 sent",))
    result = rebuild(snapshot(C1, C2, doubtful))
    assert result.mask_reasons == ("damaged_entry: c3: token_count_mismatch: 3 said, 2 sent",)
    assert [row.model_call_ids for row in result.rows] == [("c1", "c2")]
    assert {one.reason for one in result.ledger if one.model_call_id == "c3"} == {
        "damaged: token_count_mismatch: 3 said, 2 sent"
    }


def test_a_log_prob_that_is_none_costs_its_token_and_no_more() -> None:
    first = call("c1", [1], [60, 61, 62, 2], generation_log_probs=[-0.1, None, -math.inf, -0.3])
    second = call("c2", [*first.sequence, 5], [60, 2], generation_log_probs=[math.nan, -0.1])
    result = rebuild(snapshot(first, second))
    (row,) = result.rows
    assert row.loss_mask.tolist() == [0, 1, 0, 0, 1, 0, 0, 1]
    assert result.metrics["invalid_logprobs"] == 3
    assert not result.mask_sample
    invalid = [(o.model_call_id, o.start, o.end) for o in result.ledger if o.reason == "log_prob_invalid"]
    assert invalid == [("c1", 1, 3), ("c2", 0, 1)]


def test_log_probs_of_another_length_leave_a_call_as_context() -> None:
    first = call("c1", [1], [60, 61, 62, 63, 2], generation_log_probs=[-0.5, -0.4, -0.3])
    result = rebuild(snapshot(first, call("c2", [*first.sequence, 5], [60, 2])))
    (row,) = result.rows
    assert row.model_call_ids == ("c1", "c2")
    assert row.loss_tokens == 2
    assert {o.reason for o in result.ledger if o.model_call_id == "c1"} == {"log_probs_length: 3 for 5 ids"}


def test_grammar_masked_spans_carry_no_loss() -> None:
    entry = call("c1", [1], [60, 61, 2], log_prob_spans=((1, 2, LogProbKind.GRAMMAR_MASKED),))
    result = rebuild(snapshot(entry))
    assert result.rows[0].loss_mask.tolist() == [0, 1, 0, 1]
    assert result.metrics["invalid_logprobs"] == 0
    assert [o.reason for o in result.ledger] == [None, "grammar_masked", None]


def test_a_chain_takes_a_call_whole_or_not_at_all() -> None:
    holed = call("c1", [1], [60, 61], generation_log_probs=[-0.1, None])
    result = rebuild(snapshot(holed, call("c2", [1, 60, 61, 5], [62, 2])), delivery="chain")
    assert result.rows[0].loss_mask.tolist() == [0, 0, 0, 0, 1, 1]
    assert result.ledger[0].reason == "partly_unusable_log_probs"


def test_a_doubled_entry_is_one_call() -> None:
    result = rebuild(snapshot(C1, C1, C2))
    assert result.metrics["n_calls"] == 2
    assert not result.mask_sample


def test_one_id_with_two_contents_masks_whichever_came_first() -> None:
    other = call("c1", [1, 2, 3], [99, 98])
    for entries in ((C1, other, C2), (other, C1, C2)):
        result = rebuild(snapshot(entries))
        assert result.mask_reasons == ("duplicate_call_id_conflict: c1",)
    assert rebuild(snapshot(C1, other)).to_json() == rebuild(snapshot(other, C1)).to_json()


def test_a_claimed_parent_is_verified_and_counted_where_the_tokens_differ() -> None:
    entries = [
        C1.with_(parent_call_id="gone"),
        C2.with_(parent_call_id="c1"),
        C3.with_(parent_call_id="also gone"),
        call("x", [9, 9], [8], parent_call_id="c1"),
    ]
    metrics = rebuild(snapshot(entries)).metrics
    assert metrics["parent_link_failures"] == {
        "parent_call_id_missing": 1,
        "parent_call_id_missing_recovered": 1,
        "parent_tokens_mismatch": 1,
    }
    assert metrics["unresolved_parent_calls"] == 2


def test_a_true_claim_on_a_call_that_failed_or_sampled_nothing_is_no_failure() -> None:
    cancelled = call("gone", C2.prompt_token_ids, [], outcome="cancelled")
    cut = call("cut", [9, 9], [8], outcome="failed")
    entries = [C1, cancelled, cut, C2.with_(parent_call_id="gone"), call("x", [9, 9, 8, 7], [6], parent_call_id="cut")]
    metrics = rebuild(snapshot(entries)).metrics
    assert (metrics["parent_link_failures"], metrics["unresolved_parent_calls"]) == ({}, 0)


def test_a_turn_whose_thinking_was_dropped_inside_a_chain_is_a_break_too() -> None:
    thinking = call("c2", [*C1.sequence, 4], [50, 51, 53, 60, 2])
    after = call("c3", [*C1.sequence, 4, 60, 2, 5], [61, 2])
    result = rebuild(snapshot(C1, thinking, after))
    assert [(b.call, b.nearest, b.first_divergence) for b in result.prefix_breaks] == [("c3", "c2", 6)]
    assert result.metrics["chains"] == 2
    assert result.metrics["delivered_fraction"] == 1.0
    assert not result.mask_sample


def test_a_root_that_shares_nothing_says_so() -> None:
    result = rebuild(snapshot(C1, call("x", [9, 9, 9, 9], [8])))
    assert [(b.nearest, b.first_divergence) for b in result.prefix_breaks] == [(None, 0)]


def test_one_row_per_call_owns_each_call_once() -> None:
    result = rebuild(snapshot(C1, C2, C3), delivery="calls")
    assert [row.model_call_ids for row in result.rows] == [("c1",), ("c2",), ("c3",)]
    assert [row.loss_tokens for row in result.rows] == [2, 1, 2]
    assert sum(row.weight for row in result.rows) == pytest.approx(1.0)


@pytest.mark.parametrize("reward", [None, math.nan, math.inf, True, "1"])
def test_a_reward_that_is_no_number_is_null(reward: object) -> None:
    assert rebuild(snapshot(C1, outcome={"reward": reward})).rows[0].reward is None
