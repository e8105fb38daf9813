"""Retries, delivery and the terminal call: evidence decides, and time never does."""

import itertools

import pytest

from rolltape.rebuild import KindPolicy, Rebuilt, Status, Use, Witnesses, rebuild
from rolltape.record import Delivery, Outcome, TokenEntry

from .calls import call, snapshot

FIRST = call("c1", [1, 10, 11], [60, 2], created_at=1)
F1 = call("f1", [1, 10, 11, 60, 2, 20, 11], [61, 2], created_at=2, response_id="reply-1")
F2 = call("f2", [1, 10, 11, 60, 2, 20, 11], [62, 63, 2], created_at=3, response_id="reply-2")


def statuses(result: Rebuilt) -> dict[str, str]:
    return {node.model_call_id: node.status.value for node in result.tree}


def delivered(entry: TokenEntry, delivery: Delivery = Delivery.DELIVERED) -> TokenEntry:
    return entry.with_(delivery=delivery)


def test_an_undelivered_last_attempt_leaves_the_other_standing() -> None:
    result = rebuild(snapshot(FIRST, F1, delivered(F2, Delivery.UNDELIVERED)))
    assert statuses(result) == {"c1": "trained", "f1": "trained", "f2": "abandoned"}
    assert not result.mask_sample
    assert result.metrics["undelivered_calls"] == 1
    assert result.metrics["quarantined_fraction"] == 0.3333


def test_a_lone_call_that_never_arrived_and_was_never_extended_is_abandoned() -> None:
    result = rebuild(snapshot(FIRST, delivered(F1, Delivery.UNDELIVERED)))
    assert statuses(result) == {"c1": "trained", "f1": "abandoned"}
    assert not result.mask_sample


def test_a_delivered_reply_that_its_harness_refused_is_trained_in_a_row_of_its_own() -> None:
    after = call("c3", [*F2.sequence, 30, 11], [64, 2])
    result = rebuild(snapshot(FIRST, delivered(F1), F2, after))
    assert statuses(result)["f1"] == "rejected"
    assert sorted(row.model_call_ids for row in result.rows) == [("c1", "f1"), ("c1", "f2", "c3")]
    assert result.metrics["rejected_calls"] == 1
    assert result.metrics["delivered_fraction"] == 1.0


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (Delivery.DELIVERED, Delivery.DELIVERED, ("trained", "trained")),
        (Delivery.UNKNOWN, Delivery.DELIVERED, ("abandoned", "trained")),
        (Delivery.UNDELIVERED, Delivery.DELIVERED, ("abandoned", "trained")),
        (Delivery.UNKNOWN, Delivery.UNKNOWN, ("unresolved", "unresolved")),
    ],
)
def test_attempts_that_the_harness_went_on_from_in_other_tokens_are_trained_where_they_arrived(
    first: Delivery, second: Delivery, expected: tuple[str, str]
) -> None:
    after = call("c3", [*F1.prompt_token_ids, 60, 70, 2, 30, 11], [64, 2])
    result = rebuild(snapshot(FIRST, delivered(F1, first), delivered(F2, second), after))
    assert (statuses(result)["f1"], statuses(result)["f2"]) == expected
    assert result.mask_sample == ("unresolved" in expected)


def test_two_last_replies_stay_open_though_both_arrived() -> None:
    elsewhere = call("c3", [*FIRST.sequence, 40, 11], [64, 2])
    assert rebuild(snapshot(FIRST, delivered(F1), delivered(F2), elsewhere)).unresolved == (("f1", "f2"),)


def test_an_attempt_that_only_a_failed_call_extends_is_the_one_the_harness_used() -> None:
    refused = call("c3", [*F2.sequence, 30, 11], [], outcome=Outcome.REFUSED)
    result = rebuild(snapshot(FIRST, F1, F2, refused))
    assert statuses(result) == {"c1": "trained", "f1": "abandoned", "f2": "trained", "c3": "refused"}
    assert not result.mask_sample
    assert (result.metrics["failed_calls"], result.metrics["empty_generation_calls"]) == (1, 1)


def test_several_attempts_with_successors_are_branches() -> None:
    ends = [call("g1", [*F1.sequence, 30], [64, 2]), call("g2", [*F2.sequence, 31], [65, 2])]
    result = rebuild(snapshot(FIRST, F1, F2, ends))
    assert result.metrics["chains"] == 2
    assert result.metrics["delivered_fraction"] == 1.0
    assert not result.mask_sample


@pytest.mark.parametrize("witness", [{"call_id": "f1"}, {"response_id": "reply-1"}, {"reply_ids": ("reply-1",)}])
def test_a_witness_settles_what_time_may_not(witness: dict[str, str]) -> None:
    result = rebuild(snapshot(FIRST, F1, F2), terminal=Witnesses(**witness))  # type: ignore[arg-type]
    assert statuses(result) == {"c1": "trained", "f1": "trained", "f2": "abandoned"}
    assert result.metrics["terminal_attribution"]["call_id"] == "f1"
    assert not result.mask_sample


def test_token_equal_attempts_are_one_and_the_delivered_one_stands_for_them() -> None:
    again = call("a0", F1.prompt_token_ids, F1.generation_token_ids)
    after = call("c3", [*F1.sequence, 30, 11], [64, 2])
    result = rebuild(snapshot(FIRST, delivered(F1), again, after))
    assert statuses(result) == {"c1": "trained", "f1": "trained", "a0": "duplicate", "c3": "trained"}
    assert result.metrics["duplicate_generations"] == 1
    assert [row.model_call_ids for row in result.rows] == [("c1", "f1", "c3")]
    assert result.metrics["delivered_fraction"] == 0.75


def test_untrained_attempts_never_mask() -> None:
    titles = [call(name, [1, 95], [70 + i, 2], kind="title") for i, name in enumerate(("t1", "t2"))]
    result = rebuild(snapshot(FIRST, titles))
    assert not result.mask_sample
    assert result.metrics["unresolved_retries"] == 0


def test_the_last_agent_call_is_the_terminal_one_where_nobody_says_so() -> None:
    title = call("t1", [1, 95], [70, 2], kind="title", created_at=99)
    last = call("c2", [*FIRST.sequence, 20], [61, 2], created_at=5)
    attribution = rebuild(snapshot(FIRST, last, title)).metrics["terminal_attribution"]
    assert attribution == {
        "method": "last_agent_call",
        "call_id": "c2",
        "reason": "no_witness",
        "chain": "delivered",
    }


def test_witnesses_that_disagree_mask() -> None:
    result = rebuild(snapshot(FIRST, F1), terminal=Witnesses(call_id="c1", response_id="reply-1"))
    assert result.mask_reasons == ("witness_disagreement",)


def test_a_named_call_that_was_not_captured_masks_the_chain_and_no_forest() -> None:
    ghost = Witnesses(call_id="ghost")
    assert rebuild(snapshot(FIRST, F1), terminal=ghost).mask_sample is False
    result = rebuild(snapshot(FIRST, F1), terminal=ghost, delivery="chain")
    assert "explicit_terminal_not_captured" in result.mask_reasons
    assert result.terminal.chain == "not_captured"


def test_an_ambiguous_response_id_is_no_witness() -> None:
    twice = F2.with_(response_id="reply-1")
    result = rebuild(snapshot(FIRST, F1, twice), terminal=Witnesses(response_id="reply-1"), delivery="chain")
    assert "declared_ambiguous" in result.mask_reasons


def test_a_named_call_that_failed_stands_for_the_sampling_that_it_ended() -> None:
    doomed = call("c3", [*F1.sequence, 30, 11], [], outcome=Outcome.REFUSED)
    result = rebuild(snapshot(FIRST, F1, doomed), terminal=Witnesses(call_id="c3"), delivery="chain")
    assert result.rows[0].model_call_ids == ("c1", "f1")
    assert result.terminal.reason == "named_call_refused"
    assert not result.mask_sample


def test_a_chain_is_cut_after_its_terminal_call() -> None:
    after = call("c3", [*F1.sequence, 30, 11], [64, 2])
    result = rebuild(snapshot(FIRST, F1, after), terminal=Witnesses(call_id="f1"), delivery="chain")
    assert [row.model_call_ids for row in result.rows] == [("c1", "f1")]
    assert {one.reason for one in result.ledger if one.model_call_id == "c3"} == {"off_chain"}


def test_the_terminal_calls_row_owns_the_shared_ancestor() -> None:
    short, long = call("s", [*FIRST.sequence, 20], [61, 2]), call("l", [*FIRST.sequence, 21, 22], [62, 63, 2])
    for name in ("s", "l"):
        result = rebuild(snapshot(FIRST, short, long), terminal=Witnesses(call_id=name))
        assert result.rows[0].model_call_ids == ("c1", name)
        assert result.rows[0].spans[0].owned
        assert not result.rows[1].spans[0].owned


def test_time_never_decides() -> None:
    for times in itertools.permutations((1.0, 2.0, 3.0)):
        timed = [e.with_(created_at=t) for e, t in zip((FIRST, F1, F2), times, strict=True)]
        assert rebuild(snapshot(timed)).unresolved == (("f1", "f2"),)


def test_another_engines_calls_are_context_and_never_trained() -> None:
    own, foreign = FIRST.with_(engine="vllm"), F1.with_(engine="elsewhere")
    after = call("c3", [*F1.sequence, 30, 11], [64, 2], engine="vllm")
    result = rebuild(snapshot(own, foreign, after), policy=KindPolicy(engines=frozenset({"vllm"})))
    (row,) = result.rows
    assert [span.owned for span in row.spans] == [True, False, True]
    assert result.metrics["quarantined_calls"] == 1
    assert {one.reason for one in result.ledger if one.model_call_id == "f1"} == {"engine: elsewhere"}


def test_a_dropped_kind_is_no_part_of_the_tree() -> None:
    compaction = call("kc", [*FIRST.sequence, 77], [80, 2], kind="compaction")
    after = call("c3", [*compaction.sequence, 30], [64, 2])
    policy = KindPolicy(kinds={"compaction": Use.DROP})
    result = rebuild(snapshot(FIRST, compaction, after), policy=policy)
    assert [row.model_call_ids for row in result.rows] == [("c1", "c3")]
    assert statuses(result)["kc"] == Status.QUARANTINED
