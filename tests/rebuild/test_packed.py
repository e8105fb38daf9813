"""Packed rows: each shared prefix once, and every row found again to the bit."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltape.rebuild import rebuild
from rolltape.rebuild.packed import NOBODY, START, ModelShape, pack, saving
from rolltape.record import Row, TokenCaptureSnapshot, TokenEntry


def row(ids: list[int], mask: list[int] | None = None, name: str = "r") -> Row:
    loss = np.array(mask or [0] * len(ids), np.int8)
    said = np.where(loss == 1, -np.arange(1, len(ids) + 1, dtype=np.float32) / 8, np.nan).astype(np.float32)
    return Row(name, "rollout", np.array(ids, np.int32), loss, said, ())


def entry(name: str, prompt: list[int], generation: list[int]) -> TokenEntry:
    said = [-0.5] * len(generation)
    return TokenEntry(
        rollout_id="R",
        model_call_id=name,
        prompt_token_ids=prompt,
        generation_token_ids=generation,
        generation_log_probs=said,
    )


def test_a_shared_prefix_is_written_once():
    packed = pack([row([1, 2, 3, 4]), row([1, 2, 5])])
    assert packed.token_ids.tolist() == [1, 2, 3, 4, 5]
    assert packed.position_ids.tolist() == [0, 1, 2, 3, 2]
    assert packed.predecessors.tolist() == [START, 0, 1, 2, 1]
    assert [places.tolist() for places in packed.gather] == [[0, 1, 2, 3], [0, 1, 4]]


def test_a_later_row_that_forks_early_comes_after_the_whole_subtree_before_it():
    packed = pack([row([1, 2, 3, 4]), row([1, 2, 3, 5]), row([1, 7])])
    assert packed.token_ids.tolist() == [1, 2, 3, 4, 5, 7]
    assert packed.subtree_end.tolist() == [6, 5, 5, 4, 5, 6]


def test_a_row_that_is_the_beginning_of_another_needs_no_place_of_its_own():
    packed = pack([row([1, 2, 3]), row([1, 2])])
    assert len(packed) == 3
    assert packed.gather[1].tolist() == [0, 1]


def test_two_rows_that_sampled_the_same_id_each_own_theirs():
    packed = pack([row([1, 2, 3, 4], [0, 0, 1, 1]), row([1, 2, 3, 5], [0, 0, 1, 1])])
    assert packed.token_ids.tolist() == [1, 2, 3, 4, 3, 5]
    assert packed.owners.tolist() == [NOBODY, NOBODY, 0, 0, 1, 1]


def test_what_one_row_owns_is_context_of_another():
    packed = pack([row([1, 2, 3, 4], [0, 1, 0, 1]), row([1, 2, 5, 6], [0, 0, 0, 1])])
    assert packed.token_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert packed.owners.tolist() == [NOBODY, 0, NOBODY, 0, NOBODY, 1]


def test_an_owner_that_comes_second_is_kept_in_a_shared_stretch():
    packed = pack([row([1, 2, 3]), row([1, 2, 3, 4], [0, 1, 0, 1])])
    assert packed.token_ids.tolist() == [1, 2, 3, 4]
    assert packed.owners.tolist() == [NOBODY, 1, NOBODY, 1]
    assert packed.log_probs[1] == pytest.approx(-2 / 8)


def test_rows_that_were_shown_different_images_share_nothing():
    one, other = (replace(row([1, 2, 3]), media=({"sha256": name},)) for name in "ab")
    assert pack([one, other, one]).token_ids.tolist() == [1, 2, 3, 1, 2, 3]


def test_a_rollout_is_delivered_packed():
    calls = [entry("a", [1, 2], [3]), entry("b", [1, 2, 3, 4], [5]), entry("c", [1, 2, 9], [6])]
    snapshot = TokenCaptureSnapshot("R", tuple(calls), False, "s", 1)
    forest, packed = rebuild(snapshot), rebuild(snapshot, delivery="packed")
    (told,) = packed.to_json()["rows"]
    assert sorted(told["token_ids"]) == [1, 2, 3, 4, 5, 6, 9]
    assert sum(told["loss_mask"]) == forest.metrics["generated_tokens_delivered"] == 3
    for single, again in zip(forest.to_json()["rows"], told["packed_rows"], strict=True):
        assert [told["token_ids"][place] for place in again["gather"]] == single["token_ids"]
        assert again["spans"] == single["spans"]
    assert [p is None for p in told["log_probs"]] == [m == 0 for m in told["loss_mask"]]


def test_no_rows_are_an_empty_sequence():
    packed = pack([])
    assert len(packed) == 0
    assert packed.to_json()["token_ids"] == []


@st.composite
def forests(draw: st.DrawFn) -> list[Row]:
    """Rows over few ids, so that they share much; about half of the ids are sampled."""
    many = draw(st.lists(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=12), max_size=7))
    return [row([i for i, _ in pairs], [int(own) for _, own in pairs], f"r{n}") for n, pairs in enumerate(many)]


@given(forests())
def test_every_row_is_found_again(rows: list[Row]):
    packed = pack(rows)
    for index, (one, places) in enumerate(zip(rows, packed.gather, strict=True)):
        assert packed.token_ids[places].tolist() == one.token_ids.tolist()
        assert packed.position_ids[places].tolist() == list(range(len(one.token_ids)))
        assert (packed.owners[places] == index).tolist() == (one.loss_mask == 1).tolist()
        np.testing.assert_array_equal(packed.log_probs[places][one.loss_mask == 1], one.log_probs[one.loss_mask == 1])


@given(forests())
def test_each_id_looks_at_its_row_so_far_and_at_nothing_else(rows: list[Row]):
    packed = pack(rows)
    seen = packed.attention_mask()
    for places in packed.gather:
        for at, place in enumerate(places):
            assert np.flatnonzero(seen[place]).tolist() == places[: at + 1].tolist()
            assert packed.predecessors[place] == (places[at - 1] if at else START)


@given(forests())
def test_each_sampled_id_has_one_place(rows: list[Row]):
    packed = pack(rows)
    assert int(packed.loss_mask.sum()) == sum(one.loss_tokens for one in rows)


@given(forests())
def test_segments_cover_the_sequence_and_lead_back_to_their_ancestors(rows: list[Row]):
    packed = pack(rows)
    assert [n for one in packed.segments for n in range(one.start, one.end)] == list(range(len(packed)))
    for index, one in enumerate(packed.segments):
        assert sum(len(above) for above in packed.ancestry(index)) == one.position + len(one)


SMALL = ModelShape(parameters=1_000_000, layers=4, width=256)


def test_a_group_that_shares_a_long_prompt_is_worth_packing():
    prompt = list(range(100, 1100))
    group = [row([*prompt, *([n] * 50)], [0] * 1000 + [1] * 50, f"r{n}") for n in range(8)]
    estimate = saving(pack(group), SMALL)
    assert estimate.pays
    assert (estimate.row_tokens, estimate.packed_tokens) == (8 * 1050, 1000 + 8 * 50)


def test_rows_that_share_nothing_are_not_worth_packing():
    estimate = saving(pack([row([n] * 200) for n in range(4)]), SMALL)
    assert not estimate.pays
    assert estimate.to_json()["work_ratio"] == 1.0
