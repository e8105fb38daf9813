"""The numbers of one rebuilt rollout, under the names that trainers already know."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rolltape.rebuild.attempts import Attempts, Standing
from rolltape.rebuild.policy import RETRY, KindPolicy, kind_of
from rolltape.rebuild.rows import Dealt, Status, grammar_masked
from rolltape.rebuild.terminal import Attribution
from rolltape.rebuild.tree import CallTree
from rolltape.record import Delivery, Outcome, TokenEntry

QUARANTINED = (Status.QUARANTINED, Status.ABANDONED, Status.UNRESOLVED)


def measure(
    tree: CallTree, attempts: Attempts, dealt: Dealt, attribution: Attribution, policy: KindPolicy
) -> dict[str, Any]:
    """Fractions are rounded to four places and 0.0 where there is nothing to divide by."""
    entries = tree.entries
    completed = [entry for entry in entries.values() if entry.outcome is Outcome.COMPLETED]
    quarantined = [call for call, status in dealt.status.items() if status in QUARANTINED]
    captured, delivered = _sampled(completed), sum(row.loss_tokens for row in dealt.rows)
    trainable = _sampled(entry for entry in completed if policy.trains(entry))
    return {
        "n_calls": len(entries),
        "n_rows": len(dealt.rows),
        **_shape(tree, attempts),
        "quarantined_calls": len(quarantined),
        "quarantined_fraction": _fraction(len(quarantined), len(entries)),
        "quarantined_token_fraction": _fraction(
            _sampled(entries[call] for call in quarantined), _sampled(entries.values())
        ),
        "delivered_fraction": _fraction(delivered, captured),
        "delivered_trainable_fraction": _fraction(delivered, trainable),
        "generated_tokens_captured": captured,
        "generated_tokens_delivered": delivered,
        "parent_link_failures": dict(sorted(Counter(tree.unconfirmed.values()).items())),
        "unresolved_parent_calls": sum(tree.parents[call] is None for call in tree.unconfirmed),
        "empty_generation_calls": sum(not len(entry.generation_token_ids) for entry in entries.values()),
        "unresolved_retries": len(attempts.unresolved),
        "abandoned_calls": _standing(attempts, Standing.ABANDONED),
        "rejected_calls": _standing(attempts, Standing.REJECTED),
        "duplicate_generations": len(tree.duplicates),
        "failed_calls": sum(entry.outcome in (Outcome.FAILED, Outcome.REFUSED) for entry in entries.values()),
        "undelivered_calls": sum(entry.delivery is Delivery.UNDELIVERED for entry in entries.values()),
        "invalid_logprobs": sum(map(_invalid_log_probs, completed)),
        "prefix_breaks": dict(sorted(Counter(one.cause for one in tree.breaks).items())),
        "calls_by_kind": dict(sorted(_kinds(tree, attempts).items())),
        "outcomes": dict(sorted(Counter(entry.outcome.value for entry in entries.values()).items())),
        "terminal_attribution": attribution.to_json(),
    }


def _shape(tree: CallTree, attempts: Attempts) -> Mapping[str, int]:
    """Leaf paths and roots of the tree without its abandoned calls, which are leaves themselves."""
    kept = [call for call in tree.nodes if attempts.standing[call] is not Standing.ABANDONED]
    extended = {tree.parents[call] for call in kept}
    return {
        "chains": sum(call not in extended for call in kept),
        "roots": sum(tree.parents[call] is None for call in kept),
    }


def _kinds(tree: CallTree, attempts: Attempts) -> Counter[str]:
    return Counter(RETRY if call in attempts.retries else kind_of(entry) for call, entry in tree.entries.items())


def _standing(attempts: Attempts, wanted: Standing) -> int:
    return sum(standing is wanted for standing in attempts.standing.values())


def _sampled(entries: Iterable[TokenEntry]) -> int:
    return sum(len(entry.generation_token_ids) for entry in entries)


def _invalid_log_probs(entry: TokenEntry) -> int:
    """Values that came but are none; missing ones, and arrays of the wrong length, are other faults."""
    if len(entry.generation_log_probs) != len(entry.generation_token_ids) or not entry.faults:
        return 0
    return int(np.count_nonzero(~entry.trainable & ~grammar_masked(entry)))


def _fraction(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0
