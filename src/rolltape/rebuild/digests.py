"""Digests of calls and rows, each continued from what it extends: linear in the tokens that are new. Pure.

A prompt's digest is SHA-256 over its ids alone (`tokens.digest`), so it is the same whatever was hashed before it, and
the same as a store's. A call's covers the prompt's, what was sampled with the bytes of its log-probs, and every field
that a rebuild reads. Texts are no part of it: they may be redacted or retired.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

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


def prompts(tree: CallTree) -> Iterator[tuple[str, str]]:
    """(call, digest of its prompt), shorter prompts first."""
    states: dict[str, Any] = {}
    for call, entry in sorted(tree.entries.items(), key=lambda item: len(item[1].prompt_token_ids)):
        parent = tree.parents.get(call)
        if parent in states:
            state, at = states[parent].copy(), tree.entries[parent].length
        else:
            state, at = hashlib.sha256(), 0
        state.update(_bytes(entry.prompt_token_ids[at:]))
        yield call, f"sha256:{state.hexdigest()}"
        if call in tree.followed:
            state.update(_bytes(entry.generation_token_ids))
            states[call] = state


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
