"""Every reported rebuild case, in each order of its calls, with the values of its file (`tests/cases`)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rolltape.rebuild import KindPolicy, Rebuilt, Status, rebuild
from rolltape.record import Outcome, TokenCaptureSnapshot, TokenEntry

CASES = {
    case["id"]: case
    for case in map(json.loads, (Path(__file__).parents[1] / "cases" / "rebuild.jsonl").read_text().splitlines())
}
OUTCOMES = {"ok": "completed", "upstream_error": "failed", "truncated_stream": "failed", "abort": "cancelled"}
NUMBERS = (
    "chains",
    "roots",
    "delivered_fraction",
    "quarantined_fraction",
    "quarantined_token_fraction",
    "empty_generation_calls",
    "n_calls",
    "unresolved_retries",
    "failed_calls",
    "undelivered_calls",
    "duplicate_generations",
)


def entry(call: dict[str, Any], index: int, delivery: dict[str, str]) -> TokenEntry:
    outcome = call.get("status", "abort" if call.get("finish_reason") == "abort" else "ok")
    told = {name: call[name] for name in ("kind", "model", "finish_reason") if name in call}
    if "delivered" in call:
        told["delivery"] = "delivered" if call["delivered"] in (True, "yes") else "undelivered"
    elif call["call"] in delivery:
        told["delivery"] = delivery[call["call"]]
    return TokenEntry(
        rollout_id="case",
        model_call_id=call["call"],
        prompt_token_ids=call["prompt_ids"],
        generation_token_ids=call["gen_ids"],
        generation_log_probs=call["logprobs"],
        outcome=Outcome(OUTCOMES.get(outcome, outcome)),
        created_at=float(index),
        **told,
    )


def built(calls: list[dict[str, Any]], scenario: dict[str, Any], **options: Any) -> Rebuilt:
    delivery = scenario.get("delivery_status", {})
    entries = tuple(entry(call, i, delivery) for i, call in enumerate(calls))
    outcome = {"reward": scenario["reward"]} if "reward" in scenario else {}
    return rebuild(TokenCaptureSnapshot("case", entries, False, "s", 1, outcome=outcome), **options)


def orders(calls: list[dict[str, Any]], scenario: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    yield calls
    yield calls[::-1]
    by_name = {call["call"]: call for call in calls}
    for order in scenario.get("also_run_with_order", []) + scenario.get("arrival_variants", []):
        yield [by_name[name] for name in order]


def named(case_id: str, variant: str | None = None) -> Iterator[tuple[Rebuilt, dict[str, Any]]]:
    scenario, expected = CASES[case_id]["scenario"], CASES[case_id]["expected"]
    calls = scenario["variants"][variant] if variant else scenario["calls"]
    wanted = expected[variant] if variant else expected.get("default_policy", expected)
    for order in orders(calls, scenario):
        yield built(order, scenario), wanted


def variants() -> Iterator[tuple[str, str | None]]:
    for case_id, case in CASES.items():
        for variant in case["scenario"].get("variants") or (None,):
            yield case_id, variant


def canonical(row: dict[str, Any]) -> tuple[Any, ...]:
    ids, mask = row.get("token_ids", row.get("input_ids")), row["loss_mask"]
    given = row.get("log_probs", row.get("logprobs"))
    values = tuple(None if p is None else round(p, 5) for p in given)
    return tuple(row.get("from_calls", row.get("model_call_ids"))), tuple(ids), tuple(mask), values


def rows(result: Rebuilt) -> list[tuple[Any, ...]]:
    return sorted(canonical(row) for row in result.to_json()["rows"])


def first_break(result: Rebuilt) -> tuple[str, str | None, int]:
    (only,) = result.prefix_breaks
    return only.call, only.nearest, only.first_divergence


@pytest.mark.parametrize(("case_id", "variant"), [*variants()])
def test_rows_and_numbers_are_those_of_the_case_in_every_order(case_id: str, variant: str | None) -> None:
    for result, wanted in named(case_id, variant):
        listed = wanted.get("rows", wanted.get("rows_any_order"))
        if listed is not None:
            assert rows(result) == sorted(map(canonical, listed))
        if "main_row" in wanted:
            assert canonical(wanted["main_row"]) in rows(result)
        assert {n: result.metrics[n] for n in NUMBERS if n in wanted} == {n: wanted[n] for n in NUMBERS if n in wanted}
        for name in ("loss_tokens", "total_loss_tokens"):
            assert sum(row.loss_tokens for row in result.rows) == wanted.get(name, result_loss(result))
        assert result.mask_sample is wanted.get("mask_sample", False)


def result_loss(result: Rebuilt) -> int:
    return int(result.metrics["generated_tokens_delivered"])


@pytest.mark.parametrize(
    ("case_id", "variant", "where"),
    [
        ("RT-01", None, 4),
        ("RT-02", None, 3),
        ("RT-03", None, 3),
        ("RT-06", None, 5),
        ("RT-08", None, 3),
        ("RT-16", "forward_unchanged", 1),
    ],
)
def test_a_broken_link_names_the_call_it_left_and_where(case_id: str, variant: str | None, where: int) -> None:
    for result, wanted in named(case_id, variant):
        assert first_break(result) == ("c2", "c1", where)
        assert wanted.get("first_divergence", where) == where
        assert result.metrics["prefix_breaks"] == {"unknown": 1}


def test_rt_01_never_trains_the_merged_piece_that_nobody_sampled() -> None:
    for result, _ in named("RT-01"):
        trained = [t for row in result.rows for t, m in zip(row.token_ids, row.loss_mask, strict=True) if m]
        assert 31373 not in trained


def test_rt_04_and_05_tell_a_sampled_end_from_one_that_the_template_wrote() -> None:
    for result, _ in named("RT-04"):
        assert result.rows[0].loss_mask[6] == 0
    for result, _ in named("RT-05"):
        assert (result.rows[0].loss_mask[6], result.rows[0].loss_mask[-1]) == (0, 1)


def test_rt_08_a_parent_claimed_by_text_is_only_a_hint() -> None:
    scenario = CASES["RT-08"]["scenario"]
    entries = [entry(call, i, {}) for i, call in enumerate(scenario["calls"])]
    hinted = tuple(e.with_(parent_call_id=scenario["lineage_hint"].get(e.model_call_id)) for e in entries)
    result = rebuild(TokenCaptureSnapshot("case", hinted, False, "s", 1))
    assert result.metrics["chains"] == 2
    assert result.metrics["parent_link_failures"] == {"parent_tokens_mismatch": 1}
    assert result.metrics["unresolved_parent_calls"] == 1
    assert not result.mask_sample


def test_rt_11_the_longest_match_is_the_parent_and_an_empty_attempt_masks_nothing() -> None:
    for result, wanted in named("RT-11"):
        parents = {node.model_call_id: node.parent for node in result.tree}
        assert {name: parents[name] for name in wanted["parent"]} == wanted["parent"]
        assert not result.mask_sample


def test_rt_13_a_shared_ancestor_is_owned_by_exactly_one_branch() -> None:
    for result, wanted in named("RT-13"):
        owned = {node.model_call_id: node.owned_tokens for node in result.tree}
        assert owned == wanted["per_call_loss_tokens"]
        assert all(row.model_call_ids[0] == "c1" for row in result.rows)
        assert sum(bool(row.loss_mask[3:5].all()) for row in result.rows) == 1
        assert sum(not row.loss_mask[3:5].any() for row in result.rows) == 1


def test_re_01_two_last_attempts_mask_the_rollout_and_stay_as_evidence() -> None:
    for result, wanted in named("RE-01"):
        assert result.unresolved == (tuple(wanted["evidence_kept"]),)
        status = {node.model_call_id: node.status for node in result.tree}
        assert status == {"c1": Status.TRAINED, "f1": Status.UNRESOLVED, "f2": Status.UNRESOLVED}
        assert result.mask_reasons == ("unresolved_retries: f1, f2",)


def test_re_02_the_lost_attempt_is_counted_and_not_trained() -> None:
    for result, wanted in named("RE-02"):
        abandoned = [node.model_call_id for node in result.tree if node.status is Status.ABANDONED]
        assert abandoned == wanted["abandoned_calls"]
        assert result.metrics["abandoned_calls"] == 1


@pytest.mark.parametrize("case_id", ["SC-01", "SC-02"])
def test_side_calls_are_quarantined_by_kind_and_mask_nothing(case_id: str) -> None:
    for result, _ in named(case_id):
        quarantined = [node.model_call_id for node in result.tree if node.status is Status.QUARANTINED]
        wanted = CASES[case_id]["expected"]
        assert quarantined == wanted.get("default_policy", wanted)["quarantined"]
        assert not result.mask_sample


def test_sc_02_a_policy_may_train_compaction_as_an_extension_of_the_main_chain() -> None:
    scenario = CASES["SC-02"]["scenario"]
    for order in orders(scenario["calls"], scenario):
        result = built(order, scenario | {"reward": 1.0}, policy=KindPolicy(kinds={}))
        assert sorted(row.model_call_ids for row in result.rows) == [("k1", "k2", "kc"), ("k3",)]
        assert {row.reward for row in result.rows} == {1.0}
        assert result.metrics["delivered_fraction"] == 1.0
        assert not rows(result)[1][2][3:10].count(1), "the summary's text is context in the segment that starts from it"


def test_sc_05_the_rollouts_reward_goes_to_main_and_sub_agent_rows_alike() -> None:
    for result, wanted in named("SC-05"):
        assert [row.reward for row in result.rows] == [1.0, 1.0]
        assert sum(row.weight for row in result.rows) == 1.0
        parents = {node.model_call_id: node.parent for node in result.tree}
        assert parents["p2"] == wanted["main_parent_of_p2"]
    scenario = CASES["SC-05"]["scenario"]
    main_only = built(scenario["calls"], scenario, delivery="chain")
    assert main_only.rows[0].model_call_ids == ("p1", "p2")
    assert main_only.metrics["delivered_fraction"] == CASES["SC-05"]["expected"]["delivered_fraction_main_only"]
