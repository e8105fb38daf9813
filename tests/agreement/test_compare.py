"""Like is compared with like, on sampled tokens only, and what is undefined never passes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltape.agreement import Agreement, Distribution, compare, compare_entries, parts
from rolltape.record import LogProbKind, TokenEntry
from rolltape.tokens import FloatArray, IntArray

CASES = {case["id"]: case for case in map(json.loads, Path(__file__).with_name("cases.jsonl").read_text().splitlines())}
RAW = Distribution(LogProbKind.RAW)
STRICT = {"pearson": 0.9999, "max_abs_diff": 1e-3}


class Logits:
    """Recomputes log-probs from the same logits at every position, and remembers what it was asked."""

    def __init__(self, logits: list[float]) -> None:
        self.logits = np.array(logits)
        self.asked: list[tuple[list[tuple[int, int]], float]] = []

    def log_probs(
        self, sequence: IntArray, spans: Sequence[tuple[int, int]], *, temperature: float = 1.0
    ) -> list[FloatArray]:
        self.asked.append((list(spans), temperature))
        scaled = self.logits / temperature
        known = (scaled - np.logaddexp.reduce(scaled)).astype(np.float32)
        return [known[sequence[start:end]] for start, end in spans]


def entry(ids: list[int], log_probs: list[float | None], kind: str = "raw", **fields: Any) -> TokenEntry:
    arrays = {"prompt_token_ids": [0], "generation_token_ids": ids, "generation_log_probs": log_probs}
    return TokenEntry(rollout_id="r", model_call_id="c", log_prob_kind=kind, **arrays | fields)


def scaled(**sampling: float) -> Distribution:
    return Distribution.of("temperature_scaled", sampling)


def test_log_probs_before_and_after_temperature_are_each_compared_with_their_own() -> None:
    scenario, expected = CASES["LP-01"]["scenario"], CASES["LP-01"]["expected"]
    logits, index, heat = scenario["logits"], scenario["sampled_index"], scenario["temperature"]
    source = Logits(logits)

    for kind, value in (("raw", expected["raw"]), ("temperature_scaled", expected["processed"])):
        (of, found), *none = compare_entries(
            [entry([index], [value], kind, sampling_applied={"temperature": heat})], source
        ).items()
        assert not none
        assert of == Distribution(LogProbKind(kind), None if kind == "raw" else heat)
        assert found.max_abs_diff == pytest.approx(0, abs=1e-4)
    assert [temperature for _, temperature in source.asked] == [1.0, heat]


def test_unlike_kinds_are_refused_with_a_reason() -> None:
    expected = CASES["LP-01"]["expected"]

    found = compare([expected["raw"]] * 2, [expected["processed"]] * 2, of=RAW, against=scaled(temperature=0.5))

    assert found == Agreement(2, "raw is not temperature_scaled")
    assert not found.holds(pearson=-1, max_abs_diff=np.inf)
    assert scaled(temperature=0.5).unlike(scaled(temperature=1)) == "temperature 0.5 is not 1.0"
    assert scaled().unlike(scaled()) == "temperature unknown"


def test_a_log_prob_divided_by_the_temperature_is_not_that_of_the_scaled_distribution() -> None:
    expected, heat = CASES["LP-01"]["expected"], CASES["LP-01"]["scenario"]["temperature"]
    wrong = [expected["raw"] / heat]
    assert wrong == pytest.approx([expected["wrong_raw_div_T"]])

    found = compare(wrong, [expected["processed"]], of=scaled(temperature=heat), against=scaled(temperature=heat))

    assert found.max_abs_diff == pytest.approx(abs(expected["wrong_raw_div_T"] - expected["processed"]))


def test_what_top_p_cut_and_normalised_again_is_not_comparable() -> None:
    scenario, expected = CASES["LP-02"]["scenario"], CASES["LP-02"]["expected"]
    sampling = {"temperature": scenario["temperature"], "top_p": scenario["top_p"]}
    source = Logits(scenario["logits"])
    (full,) = source.log_probs(np.array([scenario["sampled_index"]], np.int32), [(0, 1)])
    assert full == pytest.approx([expected["full_vocab"]], abs=1e-4)
    assert expected["processed"] - float(full[0]) == pytest.approx(expected["gap"], abs=1e-4)

    cut = entry([scenario["sampled_index"]], [expected["processed"]], "temperature_scaled", sampling_applied=sampling)
    ((of, found),) = compare_entries([cut], source).items()

    assert found == Agreement(1, "top_p 0.8: not comparable")
    assert of.cut == "top_p 0.8"
    assert scaled(**sampling | {"top_p": 1, "top_k": 0, "min_p": 0.0}).cut == ""


def test_raw_log_probs_do_not_care_what_top_p_cut() -> None:
    scenario, expected = CASES["LP-02"]["scenario"], CASES["LP-02"]["expected"]
    sampling = {"temperature": 0.5, "top_p": 0.8}

    found = compare_entries(
        [entry([scenario["sampled_index"]], [expected["full_vocab"]], sampling_applied=sampling)],
        Logits(scenario["logits"]),
    )

    assert found[RAW].max_abs_diff == pytest.approx(0, abs=1e-4)


def test_log_probs_that_are_all_zero_are_degenerate_and_never_agree() -> None:
    trainer = np.random.default_rng(0).uniform(-6, -0.01, 200)

    found = compare([0.0] * 200, trainer)

    assert found.zero_share == 1.0
    assert found.degenerate
    assert found.pearson is CASES["LP-07"]["expected"]["correlation"] is None
    assert not found.holds(pearson=-1, max_abs_diff=np.inf)
    assert not compare([0.0] * 9, [0.0] * 9).holds(**STRICT)


def test_only_sampled_tokens_are_compared() -> None:
    scenario, expected = CASES["LP-09"]["scenario"], CASES["LP-09"]["expected"]

    found = compare(scenario["rollout"], scenario["trainer"], mask=scenario["loss_mask"])

    assert found.n_tokens == expected["n_tokens"]
    assert found.mean_abs_prob_diff == pytest.approx(expected["mean_abs_prob_diff"], abs=5e-5)
    assert found.pearson == pytest.approx(expected["prob_correlation"], abs=5e-5)
    everything = compare(scenario["rollout"], scenario["trainer"])
    assert everything.mean_abs_prob_diff == pytest.approx(expected["wrong_value_if_unmasked"], abs=5e-5)


def test_grammar_masked_stretches_are_told_apart_and_not_compared() -> None:
    source = Logits([2.0, 1.0, 0.0])
    (right,) = source.log_probs(np.arange(3, dtype=np.int32), [(0, 3)])
    mixed = entry(
        [0, 1, 2, 0, 1],
        [right[0], 0.0, 0.0, right[0], right[1]],
        log_prob_spans=((1, 3, "grammar_masked"),),
    )
    source.asked.clear()

    found = compare_entries([mixed], source)

    masked = Distribution(LogProbKind.GRAMMAR_MASKED)
    assert [part[:2] for part in parts(mixed)] == [(0, 1), (1, 3), (3, 5)]
    assert source.asked == [([(1, 2), (4, 6)], 1.0)]
    assert found[masked] == Agreement(2, "grammar_masked: not comparable")
    assert found[RAW].n_tokens == 3
    assert found[RAW].holds(pearson=0.9999, max_abs_diff=1e-6)


def test_entries_in_doubt_are_left_out_and_unknown_kinds_are_not_compared() -> None:
    source = Logits([2.0, 1.0])
    broken = [entry([0, 1], [-0.3]), entry([0, 1], [-0.3, -1.3], faults=("token_count_mismatch",))]
    broken += [entry([0], [-0.3], media=({"kind": "image"},)), entry([0], [-0.3], prompt_token_ids=[])]
    broken += [entry([0], [-0.3], extra={"not_the_policy": "helper"})]

    assert compare_entries(broken, source) == {}
    found = compare_entries([entry([0, 1], [-0.3, -1.3], "unknown")], source)
    assert [agreement.reason for agreement in found.values()] == ["unknown: not comparable"]
    assert source.asked == []


def test_unknown_log_probs_are_counted_and_in_no_other_number() -> None:
    found = compare([-1.0, None, -2.0], [-1.0, -5.0, -2.0])

    assert (found.n_tokens, found.n_unknown, found.max_abs_diff) == (2, 1, 0.0)
    assert found.holds(**STRICT)
    assert compare([None], [-1.0]) == Agreement(0, n_unknown=1)


@pytest.mark.parametrize(
    ("recorded", "recomputed"),
    [([], []), ([-1.0], [-1.0]), ([-1.0, -1.0], [-1.0, -2.0]), ([-1.0, -2.0], [-1.0, np.nan])],
)
def test_what_is_undefined_does_not_hold(recorded: list[float], recomputed: list[float]) -> None:
    found = compare(recorded, recomputed)

    assert found.pearson is None
    assert not found.holds(pearson=-1, max_abs_diff=np.inf)


def test_a_token_that_the_trainer_holds_impossible_is_infinitely_far_apart() -> None:
    found = compare([-1.0, -2.0, -3.0], [-1.0, -2.0, -np.inf])

    assert found.max_abs_diff == np.inf
    assert not found.holds(pearson=0, max_abs_diff=1e3)


def test_series_of_unequal_length_are_an_error() -> None:
    with pytest.raises(ValueError, match="2 recorded and 1 recomputed"):
        compare([-1.0, -2.0], [-1.0])


@given(st.lists(st.tuples(st.floats(-20, 0), st.floats(-20, 0)), min_size=2, max_size=50))
def test_numbers_stay_in_their_bounds_and_a_series_agrees_with_itself(pairs: list[tuple[float, float]]) -> None:
    ours, theirs = (list(series) for series in zip(*pairs, strict=True))

    found, same = compare(ours, theirs), compare(ours, ours)

    assert found.k3 is not None
    assert found.k3 >= 0
    assert found.pearson is None or -1.000001 <= found.pearson <= 1.000001
    assert same.max_abs_diff == same.k3 == 0
    assert same.pearson is None or same.pearson == pytest.approx(1)
