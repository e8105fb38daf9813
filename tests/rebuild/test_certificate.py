"""What a certificate says of a rollout, and that it finds every change of what it was made of."""

import random

import pytest

from rolltape.rebuild import KindPolicy, Sharing, differences, meets, rebuild
from rolltape.record import Delivery, TokenEntry
from rolltape.tokens import digest

from .calls import call, snapshot


def sure(name: str, prompt: list[int], generation: list[int], **more: object) -> TokenEntry:
    """A call of which everything is known that a certificate asks for."""
    made = call(name, prompt, generation)
    known = {
        "log_prob_kind": "raw",
        "sampling_applied": {"temperature": 1.0, "top_p": 1.0},
        "policy_version": "7",
        "policy_version_end": "7",
        "prompt_digest": digest(made.prompt_token_ids),
        "delivery": Delivery.DELIVERED,
    }
    return made.with_(**(known | more))


ONE = sure("c1", [1, 2, 3], [10, 11])
TWO = sure("c2", [1, 2, 3, 10, 11, 4], [12])


def failing(*entries: TokenEntry, **more: object) -> dict[str, str]:
    checks = rebuild(snapshot(*entries, **more)).certificate.checks
    return {check.name: check.verdict for check in checks if check.verdict != "pass" and check.counts}


def test_a_rollout_of_which_all_is_known_is_exact() -> None:
    result = rebuild(snapshot(ONE, TWO))
    assert (result.certificate.verdict, result.certificate.reasons) == ("exact", ())
    assert result.metrics["certificate"] == "exact"


@pytest.mark.parametrize(
    ("change", "name", "verdict"),
    [
        ({"log_prob_kind": "unknown"}, "log_prob_kind", "unknown"),
        ({"log_prob_kind": "temperature_scaled"}, "log_prob_kind", "fail"),
        ({"sampling_applied": {}}, "sampling_pin", "unknown"),
        ({"sampling_applied": {"temperature": 1.0}}, "sampling_pin", "fail"),
        ({"policy_version": None, "policy_version_end": None}, "policy_versions", "unknown"),
        ({"policy_version_end": "8"}, "policy_versions", "fail"),
        ({"prompt_digest": None}, "digests", "unknown"),
    ],
)
def test_what_is_unknown_or_differs_makes_it_usable(change: dict[str, object], name: str, verdict: str) -> None:
    changed = TWO.with_(**change)
    assert failing(ONE, changed) == {name: verdict}
    assert rebuild(snapshot(ONE, changed)).certificate.verdict == "usable"


def test_raw_log_probs_of_another_temperature_are_no_log_probs_of_what_was_sampled() -> None:
    heated = [entry.with_(sampling_applied={"temperature": 0.7}) for entry in (ONE, TWO)]
    assert failing(*heated) == {"log_prob_kind": "fail"}


def test_a_token_without_log_prob_costs_the_verdict_and_not_the_row() -> None:
    partly = TWO.with_(generation_token_ids=[12, 13], generation_log_probs=[-0.5, None])
    result = rebuild(snapshot(ONE, partly))
    assert (result.certificate.verdict, len(result.rows)) == ("usable", 1)
    assert failing(ONE, partly) == {"log_probs": "fail"}


def test_a_broken_chain_is_usable() -> None:
    assert failing(ONE, sure("c2", [1, 2, 3, 99, 4], [12])) == {"template_stability": "fail"}


def test_a_subagent_and_a_compaction_break_nothing() -> None:
    sub = sure("s1", [9, 9, 9], [20], kind="subagent")
    summary = sure("k", [*TWO.sequence.tolist(), 7], [30, 31], kind="compaction")
    renewed = sure("c3", [1, 2, 30, 31], [40])
    assert failing(ONE, TWO, sub, summary, renewed) == {}


@pytest.mark.parametrize(
    "masking",
    [
        {"incomplete": True},
        {"entry": ONE.with_(faults=("generation_ids_missing",))},
        {"entry": ONE.with_(prompt_digest=TWO.prompt_digest)},
    ],
)
def test_what_masks_the_rollout_masks_the_certificate(masking: dict[str, object]) -> None:
    entry = masking.pop("entry", ONE)
    result = rebuild(snapshot(entry, TWO, **masking))  # type: ignore[arg-type]
    assert result.mask_sample
    assert result.certificate.verdict == "masked"
    assert result.certificate.reasons == result.mask_reasons


def test_the_order_of_entries_leaves_every_digest_as_it_is() -> None:
    entries = [ONE, TWO, sure("s1", [9, 9, 9], [20]), sure("c3", [*TWO.sequence.tolist(), 5], [13])]
    told = rebuild(snapshot(entries)).certificate.to_json()
    for seed in range(10):
        random.Random(seed).shuffle(entries)
        assert rebuild(snapshot(entries)).certificate.to_json() == told


def test_a_policy_changes_rows_and_leaves_the_evidence() -> None:
    by_row = KindPolicy(sharing=Sharing.UNSCALED, structure=False)
    first, second = (rebuild(snapshot(ONE, sure("x", [8], [9])), policy=p).certificate for p in (None, by_row))
    assert (first.evidence, first.calls) == (second.evidence, second.calls)
    assert first.rows != second.rows


@pytest.mark.parametrize(
    "change",
    [
        {"generation_log_probs": [-0.25]},
        {"generation_token_ids": [13]},
        {"policy_version": "8"},
        {"kind": "title"},
        {"finish_reason": "length"},
        {"created_at": 5.0},
    ],
)
def test_every_changed_call_is_found_by_name(change: dict[str, object]) -> None:
    then = rebuild(snapshot(ONE, TWO)).certificate.to_json()
    now = rebuild(snapshot(ONE, TWO.with_(**change))).certificate.to_json()
    assert "call c2 has changed" in list(differences(now, then))


def test_another_outcome_is_another_evidence() -> None:
    then, now = (rebuild(snapshot(ONE, outcome={"reward": r})).certificate.to_json() for r in (0.0, 1.0))
    assert list(differences(now, then)) == [
        "row r:c1 has changed",
        "the outcome, or what is known to be lost, has changed",
    ]


def test_a_certificate_that_was_edited_gives_itself_away() -> None:
    told = rebuild(snapshot(ONE, TWO.with_(log_prob_kind="unknown"))).certificate.to_json()
    assert list(differences(told, told)) == []
    found = list(differences(told, told | {"verdict": "exact"}))
    assert found[0] == "the certificate does not match its own digest: it was changed"


def test_a_requirement_lets_pass_what_is_as_good_or_better() -> None:
    passed = {(verdict, required) for verdict in ("exact", "usable", "masked") for required in ("exact", "usable")
              if meets(verdict, required)}  # fmt: skip
    assert passed == {("exact", "exact"), ("exact", "usable"), ("usable", "usable")}
    assert meets(None, None)
    assert not meets(None, "usable")
