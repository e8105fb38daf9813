"""Log-probs of many rows: packed where that pays, one by one where it does not, and what was saved."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from rolltape.errors import ConfigError
from rolltape.rebuild.packed import ModelShape, PackedRows, Saving, pack, saving
from rolltape.record import Row
from rolltape.trainers.torch.log_probs import gathered, packed_log_probs, row_log_probs


def batch_log_probs(
    model: PreTrainedModel, rows: Sequence[Row], *, temperature: float = 1.0
) -> tuple[list[Tensor], Saving]:
    """For each row (T,) as `row_log_probs` gives them, and the estimate by which packing was chosen or not.

    All rows together are one forward pass where they are packed: give as many as the memory takes.
    """
    packed = pack(rows)
    estimate = saving(packed, shape_of(model))
    together = _together(model, packed, temperature) if estimate.pays else None
    if together is None:
        together = [row_log_probs(model, row, temperature=temperature) for row in rows]
    return together, estimate


def _together(model: PreTrainedModel, packed: PackedRows, temperature: float) -> list[Tensor] | None:
    """None for a model whose attention cannot be told which tokens are ancestors."""
    try:
        return gathered(packed, packed_log_probs(model, packed, temperature=temperature))
    except ConfigError:
        return None


def shape_of(model: PreTrainedModel) -> ModelShape:
    """What a token costs in `model`: all but its embeddings, which are looked up, or used where there is loss."""
    config = model.config.get_text_config()
    embedding = model.get_input_embeddings().weight
    output: Any = getattr(model, "get_output_embeddings")()  # noqa: B009 - untyped where transformers is there
    outside = {id(embedding)} | ({id(output.weight)} if output is not None else set())
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    inside = sum(p.numel() for p in model.parameters() if id(p) not in outside)
    return ModelShape(parameters=inside, layers=config.num_hidden_layers, width=heads * size)
