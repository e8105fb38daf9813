"""Attention over a packed tree, one segment at a time.

A segment's queries look at the keys of its ancestors and, causally, at its own. Keys and values of the ancestors are
neighbouring stretches of the sequence, so that they are joined by slices, whose gradient is cheap. Where a segment has
no ancestor, this is the plain causal attention of a row of its own.

`flex_attention` would take the tree as a block mask, but has no backward pass on a CPU.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from rolltape.errors import ConfigError
from rolltape.rebuild.packed import PackedRows, Segment

NAME = "rolltape_tree"


def segment_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    *,
    packed: PackedRows,
    **_: Any,
) -> tuple[Tensor, None]:
    """(1, heads, N, size) queries over (1, key heads, N, size) keys and values -> (1, N, heads, size)."""
    parts = []
    for index, one in enumerate(packed.segments):
        stretches = list(_stretches(packed.ancestry(index)))
        keys, values = (_joined(tensor, stretches) for tensor in (key, value))
        parts.append(
            scaled_dot_product_attention(
                query[:, :, one.start : one.end],
                keys,
                values,
                attn_mask=_mask(one, query.device) if one.position else None,
                is_causal=not one.position,
                scale=scaling,
                enable_gqa=query.shape[1] != key.shape[1],
            )
        )
    return torch.cat(parts, dim=2).transpose(1, 2), None


def _stretches(ancestry: Sequence[Segment]) -> Iterator[tuple[int, int]]:
    """Neighbouring segments as one."""
    start, end = ancestry[0].start, ancestry[0].end
    for one in ancestry[1:]:
        if one.start != end:
            yield start, end
            start = one.start
        end = one.end
    yield start, end


def _joined(tensor: Tensor, stretches: Sequence[tuple[int, int]]) -> Tensor:
    parts = [tensor[:, :, start:end] for start, end in stretches]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _mask(one: Segment, device: torch.device) -> Tensor:
    """(segment, position + segment) causal, aligned to the end."""
    full = torch.ones(len(one), one.position + len(one), dtype=torch.bool, device=device)
    return full.tril(one.position)


@contextmanager
def attending_over_trees(model: PreTrainedModel) -> Iterator[None]:
    """Within, `model(..., packed=tree)` attends over the tree.

    Raises `ConfigError` for a model that does more than full attention: a sliding window, or a state that runs along
    the sequence, would see neighbours that are no ancestors.
    """
    config = model.config.get_text_config()
    window = "sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"
    kinds = set(getattr(config, "layer_types", None) or [window])
    if kinds != {"full_attention"}:
        raise ConfigError(
            f"rows cannot be packed for {config.model_type}: it has layers of {', '.join(sorted(kinds))}",
            hint="train on the rows as they are",
        )
    AttentionInterface.register(NAME, segment_attention)
    AttentionMaskInterface.register(NAME, lambda **_: None)
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
