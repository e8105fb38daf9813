"""Hypothesis strategies: rollouts as harnesses make them, with everything that breaks a chain. Needs `hypothesis`.

Ids are few, so that calls collide where they can.
"""

from typing import Any

from hypothesis import strategies as st

from rolltape.record import Delivery, Outcome, TokenEntry
from rolltape.tokens import token_ids

_IDS = st.lists(st.integers(0, 5), min_size=1, max_size=5)
_MOVES = ("extend", "extend", "extend", "edit", "drop", "merge", "retry", "subagent", "compaction", "failure", "empty")


@st.composite
def call_forests(draw: st.DrawFn, max_calls: int = 12) -> list[TokenEntry]:
    """The calls of one rollout `r`: each extends an earlier one, or edits its history, drops or merges turns of it,
    repeats it, starts a sub-agent, compacts it, fails or samples nothing."""
    entries = [_call(draw, 0, draw(_IDS))]
    for index in range(1, draw(st.integers(1, max_calls))):
        before = draw(st.sampled_from(entries))
        entries.append(_moved(draw, index, before, draw(st.sampled_from(_MOVES))))
    return entries


def _moved(draw: st.DrawFn, index: int, before: TokenEntry, move: str) -> TokenEntry:
    whole, said = before.sequence.tolist(), before.generation_token_ids.tolist()
    cut = draw(st.integers(0, max(0, len(whole) - 1)))
    match move:
        case "edit":
            return _call(draw, index, [*whole[:cut], 6, *whole[cut + 1 :], *draw(_IDS)])
        case "drop":
            return _call(draw, index, [*whole[:cut], *whole[cut + 2 :], *draw(_IDS)])
        case "merge":
            return _call(draw, index, [*whole, *said, *draw(_IDS)])
        case "retry":
            return _call(draw, index, before.prompt_token_ids.tolist())
        case "subagent":
            return _call(draw, index, [7, *said, *draw(_IDS)], kind="subagent")
        case "compaction":
            return _call(draw, index, [*whole, 8], kind="compaction")
        case "failure":
            return _call(
                draw, index, [*whole, *draw(_IDS)], outcome=draw(st.sampled_from([Outcome.FAILED, "cancelled"]))
            )
        case "empty":
            return _call(draw, index, [*whole, *draw(_IDS)], generation_token_ids=[])
    return _call(draw, index, [*whole, *draw(_IDS)])


def _call(draw: st.DrawFn, index: int, prompt: list[int], **more: Any) -> TokenEntry:
    generation = more.pop("generation_token_ids", None)
    sampled = draw(_IDS) if generation is None else generation
    value = st.sampled_from([-0.1, -0.25, -1.5, -0.1, None])
    fields: dict[str, Any] = {
        "generation_log_probs": draw(st.lists(value, min_size=len(sampled), max_size=len(sampled))),
        "delivery": draw(st.sampled_from(Delivery)),
        "created_at": float(index),
    }
    return TokenEntry(
        rollout_id="r",
        model_call_id=f"m{index}",
        prompt_token_ids=token_ids(prompt or [0]),
        generation_token_ids=token_ids(sampled),
        **(fields | more),
    )
