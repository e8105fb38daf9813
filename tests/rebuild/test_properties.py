"""What holds for every rollout: nothing invented, nothing trained twice, nothing lost without a name."""

import json
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rolltape.rebuild import DeliveryForm, Rebuilt, rebuild
from rolltape.record import Delivery, Outcome, TokenEntry

from .calls import call, snapshot

SMALL = st.lists(st.integers(0, 2), max_size=4)
KINDS = st.sampled_from([None, None, "agent", "subagent", "title", "compaction"])
VALUES = st.sampled_from([-0.1, -0.25, -1.5, None])
OUTCOMES = st.sampled_from([Outcome.COMPLETED] * 5 + [Outcome.FAILED, Outcome.CANCELLED])


@st.composite
def rollouts(draw: st.DrawFn) -> list[TokenEntry]:
    """Calls that extend, cut, repeat and ignore one another, over an alphabet so small that everything collides."""
    entries: list[TokenEntry] = []
    for index in range(draw(st.integers(0, 9))):
        base: list[int] = []
        if entries and draw(st.booleans()):
            before = draw(st.sampled_from(entries))
            keep = draw(st.sampled_from([before.length, len(before.prompt_token_ids), before.length - 1]))
            base = before.sequence.tolist()[: max(keep, 0)]
        generation = draw(SMALL)
        size = len(generation) if draw(st.integers(0, 9)) else len(generation) + 1
        entries.append(
            call(
                f"m{index}",
                [*base, *draw(SMALL)] or [0],
                generation,
                generation_log_probs=draw(st.lists(VALUES, min_size=size, max_size=size)),
                kind=draw(KINDS),
                outcome=draw(OUTCOMES),
                delivery=draw(st.sampled_from(Delivery)),
                created_at=draw(st.sampled_from([0.0, 1.0, 2.0])),
            )
        )
    return entries


FORMS = st.sampled_from(["forest", "chain", "calls"])
by_default = settings(max_examples=80, deadline=None)


@by_default
@given(rollouts(), FORMS)
def test_a_row_holds_only_what_was_recorded_at_that_place(entries: list[TokenEntry], form: DeliveryForm) -> None:
    by_id = {entry.model_call_id: entry for entry in entries}
    for row in rebuild(snapshot(entries), delivery=form).rows:
        last = by_id[row.spans[-1].model_call_id]
        assert row.token_ids.tolist() == last.sequence.tolist()
        for span in row.spans:
            entry = by_id[span.model_call_id]
            assert row.token_ids[: span.end].tolist() == entry.sequence.tolist()
            assert span.start == len(entry.prompt_token_ids)


@by_default
@given(rollouts(), FORMS)
def test_loss_lies_on_owned_spans_with_the_recorded_log_probs(entries: list[TokenEntry], form: DeliveryForm) -> None:
    by_id = {entry.model_call_id: entry for entry in entries}
    for row in rebuild(snapshot(entries), delivery=form).rows:
        assert row.loss_tokens
        expected = np.full(len(row.token_ids), np.nan, np.float32)
        for span in row.spans:
            if span.owned:
                entry = by_id[span.model_call_id]
                use = entry.trainable
                expected[span.start : span.end][use] = entry.generation_log_probs[use]
        assert np.array_equal(row.log_probs, expected, equal_nan=True)
        assert np.array_equal(np.isfinite(row.log_probs), row.loss_mask == 1)


@by_default
@given(rollouts(), FORMS)
def test_every_sampled_token_is_owned_once_or_has_a_reason(entries: list[TokenEntry], form: DeliveryForm) -> None:
    result = rebuild(snapshot(entries), delivery=form)
    trained = Counter(
        (span.model_call_id, at - span.start)
        for row in result.rows
        for span in row.spans
        for at in range(span.start, span.end)
        if row.loss_mask[at]
    )
    assert set(trained.values()) <= {1}
    entered = Counter((o.model_call_id, at) for o in result.ledger for at in range(o.start, o.end))
    sampled = {(e.model_call_id, at) for e in entries for at in range(len(e.generation_token_ids))}
    assert set(entered) == sampled
    assert set(entered.values()) <= {1}
    owned = {(o.model_call_id, at) for o in result.ledger if o.row_id for at in range(o.start, o.end)}
    assert owned == set(trained)
    assert all(bool(o.reason) is (o.row_id is None) for o in result.ledger)
    assert result.metrics["generated_tokens_delivered"] == len(trained)


@by_default
@given(rollouts(), FORMS, st.randoms(use_true_random=False))
def test_the_order_of_entries_changes_nothing(entries: list[TokenEntry], form: DeliveryForm, random: object) -> None:
    shuffled = [*entries]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    there, back = (as_text(rebuild(snapshot(order), delivery=form)) for order in (entries, shuffled))
    assert there == back


def as_text(result: Rebuilt) -> str:
    return json.dumps(result.to_json(), allow_nan=False, sort_keys=True)


@by_default
@given(rollouts())
def test_a_parent_is_the_longest_whole_call_that_the_prompt_starts_with(entries: list[TokenEntry]) -> None:
    able = [e for e in entries if e.outcome is Outcome.COMPLETED and len(e.generation_token_ids)]
    for node in rebuild(snapshot(entries)).tree:
        prompt = next(e for e in entries if e.model_call_id == node.model_call_id).prompt_token_ids.tolist()
        fits = [e.length for e in able if prompt[: e.length] == e.sequence.tolist()]
        found = next((e.length for e in entries if e.model_call_id == node.parent), 0)
        assert found == max(fits, default=0)


@by_default
@given(rollouts())
def test_a_break_is_where_the_prompt_and_the_nearest_call_part(entries: list[TokenEntry]) -> None:
    by_id = {entry.model_call_id: entry for entry in entries}
    for one in rebuild(snapshot(entries)).prefix_breaks:
        prompt = by_id[one.call].prompt_token_ids.tolist()
        other = by_id[one.nearest].sequence.tolist() if one.nearest else []
        shared = next((i for i, (a, b) in enumerate(zip(prompt, other, strict=False)) if a != b), None)
        assert one.first_divergence == (min(len(prompt), len(other)) if shared is None else shared)
