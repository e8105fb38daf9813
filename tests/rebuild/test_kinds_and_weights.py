"""Kinds that structure tells and those that it must not, policies by kind, and what each row counts."""

import numpy as np
import pytest

from rolltape.errors import ConfigError
from rolltape.rebuild import KindPolicy, Rebuilt, Sharing, Use, read_policy, rebuild
from rolltape.rebuild.diff import compare
from rolltape.record import TokenEntry

from .calls import call, snapshot

IDS = np.random.default_rng(3).integers(1000, 90_000, 4000).tolist()
SYSTEM, USER, ASK = IDS[:200], IDS[200:240], IDS[240:300]
SUB_SYSTEM, TASK = IDS[300:450], IDS[450:490]
SUMMARY, HEADER = IDS[500:600], IDS[600:603]

FIRST = call("m1", [*SYSTEM, *USER, *HEADER], [*IDS[700:720], *TASK, *IDS[720:730]])
SECOND = call("m2", [*FIRST.sequence.tolist(), *IDS[730:800], *HEADER], IDS[800:900])
SUB = call("s1", [*SUB_SYSTEM, *TASK, *HEADER], IDS[900:930])
SUB_NEXT = call("s2", [*SUB.sequence.tolist(), *IDS[930:950]], IDS[950:980])
FOLDED = call("k", [*SECOND.sequence.tolist(), *ASK, *HEADER], SUMMARY)
RENEWED = call("m3", [*SYSTEM, *IDS[1000:1010], *SUMMARY, *HEADER], IDS[1010:1050])


def kinds(result: Rebuilt) -> dict[str, str]:
    return {node.model_call_id: node.kind for node in result.tree}


def test_a_conversation_around_words_that_a_call_sampled_is_a_subagents() -> None:
    result = rebuild(snapshot(FIRST, SECOND, SUB, SUB_NEXT))
    assert kinds(result) == {"m1": "agent", "m2": "agent", "s1": "subagent", "s2": "subagent"}
    evidence = {node.model_call_id: node.kind_evidence for node in result.tree}
    assert evidence["s1"] == "structure: it begins otherwise, around 40 ids that m1 sampled, which goes on"
    assert result.metrics["delivered_fraction"] == 1.0
    assert result.terminal.call_id == "m2"


def test_a_reply_that_opens_a_shorter_history_is_a_compaction() -> None:
    result = rebuild(snapshot(FIRST, SECOND, FOLDED, RENEWED))
    assert kinds(result) == {"m1": "agent", "m2": "agent", "k": "compaction", "m3": "agent"}
    assert {one.reason for one in result.ledger if one.model_call_id == "k"} == {"kind: compaction"}
    assert [row.model_call_ids for row in result.rows] == [("m3",), ("m1", "m2")]


def test_a_broken_chain_is_no_compaction_and_no_subagent() -> None:
    """The next prompt holds the reply and what was asked before it; only earlier turns were shortened or rewritten."""
    cut = [*SYSTEM, *USER, *IDS[730:800], *HEADER, *SECOND.generation_token_ids.tolist(), *IDS[1100:1110]]
    nonce = [5, *SECOND.sequence.tolist(), *IDS[1100:1110]]
    for prompt in (cut, nonce):
        result = rebuild(snapshot(FIRST, SECOND, call("m4", prompt, IDS[1200:1240])))
        assert set(kinds(result).values()) == {"agent"}
        assert result.metrics["delivered_fraction"] == 1.0


def test_structure_never_overrules_a_mark() -> None:
    marked = [entry.with_(kind="agent") for entry in (FIRST, SECOND, SUB, FOLDED, RENEWED)]
    assert set(kinds(rebuild(snapshot(marked))).values()) == {"agent"}
    off = KindPolicy(structure=False)
    assert set(kinds(rebuild(snapshot(FIRST, SECOND, SUB, FOLDED, RENEWED), policy=off)).values()) == {"agent"}


def test_one_token_that_was_asked_for_is_a_probe() -> None:
    probe = call("p", [7, 8], [9], sampling_asked={"max_tokens": 1})
    assert kinds(rebuild(snapshot(FIRST, probe)))["p"] == "probe"
    cut = call("p", [7, 8], [9], finish_reason="length")
    assert kinds(rebuild(snapshot(FIRST, cut)))["p"] == "probe"
    assert kinds(rebuild(snapshot(probe, probe.with_(model_call_id="q", prompt_token_ids=[7]))))["p"] == "agent"
    assert kinds(rebuild(snapshot(FIRST, call("p", [7, 8], [9]))))["p"] == "agent"


def test_an_attempt_beside_the_one_that_stands_is_a_retry() -> None:
    again = call("m1b", FIRST.prompt_token_ids.tolist(), [1, 2, 3], delivery="delivered")
    result = rebuild(snapshot(FIRST, again, SECOND))
    assert kinds(result)["m1b"] == "retry"
    assert result.metrics["delivered_fraction"] == 1.0
    without = rebuild(snapshot(FIRST, again, SECOND), policy=KindPolicy(kinds={"retry": Use.CONTEXT}))
    assert {one.reason for one in without.ledger if one.model_call_id == "m1b"} == {"kind: retry"}


PARTS = (call("a", [1], [2, 3, 4]), call("b", [5], [6]), call("a2", [1, 2, 3, 4, 9], [7, 8]))


@pytest.mark.parametrize(
    ("sharing", "weights"),
    [
        (Sharing.PER_TOKEN, [5 / 6, 1 / 6]),
        (Sharing.PER_ROW, [1 / 2, 1 / 2]),
        (Sharing.LAST_ROW, [1.0, 0.0]),
        (Sharing.UNSCALED, [1.0, 1.0]),
    ],
)
def test_rows_share_by_name(sharing: Sharing, weights: list[float]) -> None:
    late = [entry.with_(created_at=float(i)) for i, entry in enumerate(PARTS)]
    rows = rebuild(snapshot(late), policy=KindPolicy(sharing=sharing)).rows
    assert [row.weight for row in rows] == pytest.approx(weights)
    assert [float(row.token_weights.sum()) for row in rows] == pytest.approx(weights)


def test_a_break_changes_what_no_token_counts() -> None:
    whole = [call("c1", [1], [2, 3]), call("c2", [1, 2, 3, 4], [5])]
    broken = [whole[0], call("c2", [1, 9, 3, 4], [5])]
    for entries in (whole, broken):
        rows = rebuild(snapshot(entries)).rows
        counted = np.concatenate([row.token_weights for row in rows])
        assert counted[counted > 0].tolist() == pytest.approx([1 / 3] * 3)


def test_a_summary_never_outweighs_its_rollout() -> None:
    entries = [entry.with_(kind="compaction") if entry is FOLDED else entry for entry in (FIRST, SECOND, FOLDED)]
    short = [entries[0].with_(model_call_id="x", generation_token_ids=[1], generation_log_probs=[-0.1]), entries[2]]
    result = rebuild(snapshot(short), policy=KindPolicy(kinds={}))
    shares = {row.kind: row.weight for row in result.rows}
    assert shares == pytest.approx({"agent": 0.5, "compaction": 0.5})
    one = rebuild(snapshot(entries), policy=KindPolicy(kinds={}, caps={"compaction": 0.1})).rows[0]
    at = next(span for span in one.spans if span.model_call_id == "k")
    assert float(one.token_weights[at.start : at.end].sum()) == pytest.approx(0.1, rel=1e-4)
    assert float(one.token_weights.sum()) == pytest.approx(1.0, rel=1e-4)


def test_a_policy_file_is_read_strictly() -> None:
    policy = read_policy({"kinds": {"title": "drop", "compaction": {"use": "train", "cap": 0.2}}, "sharing": "per_row"})
    assert policy.use_of("title") is Use.DROP
    assert policy.use_of("probe") is Use.CONTEXT
    assert (policy.caps["compaction"], policy.sharing) == (0.2, Sharing.PER_ROW)
    assert read_policy(policy.to_json()).to_json() == policy.to_json()
    wrongs: list[object] = [
        {"kinds": {"compation": "drop"}},
        {"kind": {}},
        {"kinds": {"title": {"cap": 2.0}}},
        [1],
    ]
    for wrong in wrongs:
        with pytest.raises(ConfigError):
            read_policy(wrong)


def test_a_difference_names_tokens_gained_lost_and_moved() -> None:
    def of(*entries: TokenEntry, policy: KindPolicy | None = None) -> list[dict[str, object]]:
        return [row.to_json() for row in rebuild(snapshot(entries), policy=policy).rows]

    folded = FOLDED.with_(kind="compaction")
    found = compare(of(FIRST, SECOND, folded), of(FIRST, SECOND, folded, policy=KindPolicy(kinds={})))
    assert (found.tokens_gained, found.tokens_lost, found.tokens_moved) == (100, 0, 170)
    assert (len(found.rows_gained), len(found.rows_lost)) == (1, 1)
    assert compare(of(*PARTS), of(*PARTS[::-1])).same
