"""What holds for generated call forests, under every policy and sharing."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolltape.rebuild import KindPolicy, Rebuilt, Sharing, Use, rebuild
from rolltape.record import TokenEntry
from rolltape.testing.strategies import call_forests

from .calls import snapshot

KINDS = st.dictionaries(st.sampled_from(["agent", "subagent", "compaction", "retry"]), st.sampled_from(Use))
POLICIES = st.builds(
    KindPolicy,
    kinds=KINDS,
    sharing=st.sampled_from(Sharing),
    weights=st.dictionaries(st.sampled_from(["subagent", "compaction"]), st.sampled_from([0.0, 0.5, 2.0])),
    caps=st.dictionaries(st.sampled_from(["subagent", "compaction"]), st.sampled_from([0.0, 0.25, 0.5, 1.0])),
)
often = settings(max_examples=60, deadline=None)


@often
@given(call_forests(), POLICIES)
def test_owned_and_named_tokens_are_all_that_was_sampled(entries: list[TokenEntry], policy: KindPolicy) -> None:
    result = rebuild(snapshot(entries), policy=policy)
    counted = Counter(one.model_call_id for one in result.ledger for _ in range(one.start, one.end))
    assert counted == Counter({e.model_call_id: n for e in entries if (n := len(e.generation_token_ids))})
    owned = sum(one.end - one.start for one in result.ledger if one.row_id)
    assert owned == sum(row.loss_tokens for row in result.rows)
    verdicts = {check.name: check.verdict for check in result.certificate.checks}
    assert verdicts["ownership"] == "pass"


@often
@given(call_forests(), POLICIES)
def test_every_row_is_a_recorded_sequence(entries: list[TokenEntry], policy: KindPolicy) -> None:
    recorded = {tuple(entry.sequence.tolist()) for entry in entries}
    assert {tuple(row.token_ids.tolist()) for row in rebuild(snapshot(entries), policy=policy).rows} <= recorded


@often
@given(call_forests(), POLICIES, st.randoms(use_true_random=False))
def test_any_order_gives_the_same_rows_and_certificate(
    entries: list[TokenEntry], policy: KindPolicy, random: object
) -> None:
    shuffled = [*entries]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = (rebuild(snapshot(order), policy=policy).to_json() for order in (entries, shuffled))
    assert one == other


@often
@given(call_forests(), POLICIES)
def test_adding_a_call_changes_the_tokens_of_no_row(entries: list[TokenEntry], policy: KindPolicy) -> None:
    before, after = (rebuild(snapshot(some), policy=policy) for some in (entries[:-1], entries))
    was = {row.row_id: row.token_ids.tolist() for row in before.rows}
    now = {row.row_id: row.token_ids.tolist() for row in after.rows}
    assert all(now[row] == was[row] for row in was.keys() & now.keys())


@often
@given(call_forests(), POLICIES)
def test_a_rollout_counts_once_and_no_kind_more_than_its_cap(entries: list[TokenEntry], policy: KindPolicy) -> None:
    result = rebuild(snapshot(entries), policy=policy)
    shares = by_kind(result)
    whole = sum(row.weight for row in result.rows)
    if policy.sharing is not Sharing.UNSCALED:
        assert whole == pytest.approx(1.0) or whole == 0.0
    for kind, cap in policy.caps.items():
        assert shares[kind] <= cap * whole + 1e-5


def by_kind(result: Rebuilt) -> Counter[str]:
    kinds = {node.model_call_id: node.kind for node in result.tree}
    kinds = {call: "agent" if kind == "retry" else kind for call, kind in kinds.items()}
    shares: Counter[str] = Counter()
    for row in result.rows:
        for span in row.spans:
            shares[kinds[span.model_call_id]] += float(row.token_weights[span.start : span.end].sum())  # type: ignore[assignment]
    return shares
