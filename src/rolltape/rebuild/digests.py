"""Digests of calls and rows, each continued from what it extends or leaves: linear in the tokens that are new. Pure.

A prompt's digest is SHA-256 over its ids alone (`tokens.digest`), so it is the same whatever was hashed before it, and
the same as a store's. A call's covers the prompt's, what was sampled with the bytes of its log-probs, and every field
that a rebuild reads. Texts are no part of it: they may be redacted or retired.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from rolltape.rebuild.strands import Point
from rolltape.rebuild.tree import CallTree
from rolltape.record import Row, TokenEntry
from rolltape.tokens import IntArray

_encoder = msgspec.json.Encoder(order="sorted", enc_hook=repr)
_FACTS = (
    "rollout_id", "model_call_id", "outcome", "delivery", "finish_reason", "log_prob_kind", "log_prob_spans", "faults",
    "kind", "engine", "model", "policy_version", "policy_version_end", "policy_spans", "sampling_asked",
    "sampling_applied", "created_at", "started_at", "response_id", "parent_call_id", "extra",
)  # fmt: skip


def encode(value: Any) -> bytes:
    """`value` as JSON whose bytes depend on nothing but its content."""
    return _encoder.encode(value)


def of(value: Any) -> str:
    return f"sha256:{hashlib.sha256(encode(value)).hexdigest()}"


@dataclass(frozen=True, slots=True)
class _Hashed:
    """What was hashed of one prompt: the state after all `length` ids, and those at each whole `mark` before."""

    length: int
    state: Any
    marks: tuple[Any, ...]

    def over(self, prompt: IntArray, agreed: int, mark: int) -> "_Hashed":
        """The same of `prompt`, whose first `agreed` ids are those of this one's sequence."""
        at, state, marks = self.length, self.state.copy(), self.marks
        if agreed < at:
            marks = marks[: agreed // mark]
            at, state = len(marks) * mark, marks[-1].copy() if marks else hashlib.sha256()
        passed = []
        while at < len(prompt):
            end = min(at - at % mark + mark, len(prompt))
            state.update(_bytes(prompt[at:end]))
            at = end
            if at % mark == 0:
                passed.append(state.copy())
        return _Hashed(at, state, (*marks, *passed) if passed else marks)


_NOTHING = _Hashed(0, hashlib.sha256(), ())


def prompts(tree: CallTree, mark: int = 4096) -> Iterator[tuple[str, str]]:
    """(call, digest of its prompt), shorter prompts first. Up to `mark` ids are hashed again where a prompt leaves
    another inside that one's prompt."""
    hashed: dict[str, _Hashed] = {}
    known: dict[Point, _Hashed] = {}
    agreed = _agreed(tree)
    for call, entry in sorted(tree.entries.items(), key=lambda item: len(item[1].prompt_token_ids)):
        point = tree.prompts.get(call)
        found = None if point is None else known.get(point)
        if found is None:
            other, shared = agreed.get(call, ("", 0))
            found = hashed.get(other, _NOTHING).over(entry.prompt_token_ids, shared, mark)
        if point is not None:
            known[point] = hashed[call] = found
        yield call, f"sha256:{found.state.hexdigest()}"


def _agreed(tree: CallTree) -> dict[str, tuple[str, int]]:
    """Another call with whose ids a call's prompt begins, and how many: its parent, or one that it leaves later."""
    found = {call: (parent, tree.entries[parent].length) for call, parent in tree.parents.items() if parent is not None}
    for one in (*tree.breaks, *tree.branches):
        if one.nearest is not None and one.first_divergence > found.get(one.call, ("", 0))[1]:
            found[one.call] = one.nearest, one.first_divergence
    return found


def calls(tree: CallTree) -> dict[str, str]:
    """Every call of the tree."""
    return {call: _call(prompt, tree.entries[call]) for call, prompt in prompts(tree)}


def row(row: Row, calls: Mapping[str, str]) -> str:
    """Its ids are those of its last call, its log-probs those of the calls that it owns."""
    spans = [[calls[s.model_call_id], s.start, s.end, s.owned, s.weight] for s in row.spans]
    return of(["rolltape-row-1", row.row_id, row.kind, row.reward, row.weight, row.loss_tokens, spans])


def _call(prompt: str, entry: TokenEntry) -> str:
    sizes = [len(entry.prompt_token_ids), len(entry.generation_token_ids), len(entry.generation_log_probs)]
    state = hashlib.sha256(encode(["rolltape-call-1", prompt, sizes, [getattr(entry, name) for name in _FACTS]]))
    state.update(_bytes(entry.generation_token_ids))
    state.update(np.ascontiguousarray(entry.generation_log_probs, dtype="<f4").data)
    return f"sha256:{state.hexdigest()}"


def _bytes(ids: IntArray) -> Any:
    return np.ascontiguousarray(ids, dtype="<i4").data
