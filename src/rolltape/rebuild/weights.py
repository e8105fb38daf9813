"""What each row counts: a rollout's reward and weight, dealt out over its rows and their kinds. Pure.

The loss of a row is `weight` times the mean, over its loss tokens, of a span's `weight` times the token's own loss.
Whatever the sharing, a kind never gets more of the rollout than its cap: with a cap of 0.5 a summary never outweighs
the rollout that it summarises.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rolltape.rebuild.policy import KindPolicy, Sharing
from rolltape.record import Row

_HAIR = 1 + 1e-9  # rounding is no excess
Mass = dict[tuple[int, int], float]
"""(row, span of the row) -> what all of the span's loss tokens together count."""


def weigh(rows: Sequence[Row], kinds: Mapping[str, str], owned: Mapping[str, int], policy: KindPolicy) -> list[Row]:
    """`rows` with their weights; the first is the terminal call's, where that is in any.

    `kinds` and `owned` are of calls: their kind, and how many of their tokens carry loss in the row that owns them.
    """
    mass = _shared(rows, kinds, owned, policy)
    _cap(mass, {at: kinds[rows[at[0]].spans[at[1]].model_call_id] for at in mass}, policy.caps)
    whole = 1.0 if policy.sharing is Sharing.UNSCALED else sum(mass.values())
    by_row: dict[int, Mass] = defaultdict(dict)
    for at, value in mass.items():
        by_row[at[0]][at] = value / whole if whole else 0.0
    return [_weighed(row, by_row[i], owned) for i, row in enumerate(rows)]


def _shared(rows: Sequence[Row], kinds: Mapping[str, str], owned: Mapping[str, int], policy: KindPolicy) -> Mass:
    mass: Mass = {}
    for i, row in enumerate(rows):
        spans = [(j, span) for j, span in enumerate(row.spans) if span.owned]
        size = sum(owned[span.model_call_id] for _, span in spans)
        a_token = _a_token(policy.sharing, i, size)
        for j, span in spans:
            call = span.model_call_id
            mass[i, j] = owned[call] * a_token * policy.weights.get(kinds[call], 1.0)
    return mass


def _a_token(sharing: Sharing, row: int, size: int) -> float:
    match sharing:
        case Sharing.PER_TOKEN:
            return 1.0
        case Sharing.PER_ROW | Sharing.UNSCALED:
            return 1 / size
        case Sharing.LAST_ROW:
            return 0.0 if row else 1 / size


def _cap(mass: Mass, kinds: Mapping[tuple[int, int], str], caps: Mapping[str, float]) -> None:
    """Scale down, in place, each kind that has more than its share; nothing is left of one that is all there is."""
    totals: dict[str, float] = defaultdict(float)
    for at, value in mass.items():
        totals[kinds[at]] += value
    bound: set[str] = set()
    while True:
        free = sum(total for kind, total in totals.items() if kind not in bound)
        left = 1 - sum(caps[kind] for kind in bound)
        whole = free / left if left > 0 else 0.0
        over = {
            kind for kind in totals if kind in caps and kind not in bound and totals[kind] > caps[kind] * whole * _HAIR
        }
        if not over:
            break
        bound |= over
    scales = {kind: caps[kind] * whole / totals[kind] for kind in bound if totals[kind]}
    for at in mass:
        mass[at] *= scales.get(kinds[at], 1.0)


def _weighed(row: Row, mass: Mass, owned: Mapping[str, int]) -> Row:
    weight = sum(mass.values())
    sizes = {at: owned[row.spans[at[1]].model_call_id] for at in mass}
    mean = weight / sum(sizes.values()) if sizes else 0.0
    if not mean or all(abs(value - mean * sizes[at]) <= 1e-12 * value for at, value in mass.items()):
        return replace(row, weight=weight)
    spans = list(row.spans)
    for at, value in mass.items():
        spans[at[1]] = replace(spans[at[1]], weight=value / sizes[at] / mean)
    return replace(row, weight=weight, spans=tuple(spans))
