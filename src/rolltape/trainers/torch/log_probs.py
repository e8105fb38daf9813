"""Log-probs of recorded tokens under a model that is being trained: differentiable, from rows or from a packed tree.

Logits are only computed where a token is owned by some loss: with 150,000 tokens in a vocabulary they are what fills
the memory. Both forms give the same numbers in the same places.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from rolltape.rebuild.packed import PackedRows
from rolltape.record import Row
from rolltape.trainers.torch.attention import attending_over_trees


def row_log_probs(model: PreTrainedModel, row: Row, *, temperature: float = 1.0) -> Tensor:
    """(T,) log-probs in nats of the ids that the row's loss holds, NaN at all others. Carries a gradient."""
    wanted = np.flatnonzero(row.loss_mask)
    ids = _indices(row.token_ids, model)
    logits = model(input_ids=ids[None], use_cache=False, logits_to_keep=_indices(wanted - 1, model)).logits[0]
    return _placed(logits, ids, wanted, temperature)


def packed_log_probs(model: PreTrainedModel, packed: PackedRows, *, temperature: float = 1.0) -> Tensor:
    """(N,) as `row_log_probs`, over the packed sequence: `[packed.gather[r]]` are the log-probs of row `r`."""
    wanted = np.flatnonzero(packed.loss_mask)
    ids = _indices(packed.token_ids, model)
    with attending_over_trees(model):
        logits = model(
            input_ids=ids[None],
            position_ids=_indices(packed.position_ids, model)[None],
            use_cache=False,
            logits_to_keep=_indices(packed.predecessors[wanted], model),
            packed=packed,
        ).logits[0]
    return _placed(logits, ids, wanted, temperature)


def gathered(packed: PackedRows, values: Tensor) -> list[Tensor]:
    """Each row's view of `values` (N,); what a row does not own is NaN."""
    owners = torch.from_numpy(packed.owners.copy()).to(values.device)
    nothing = torch.full((), float("nan"), device=values.device)
    return [
        torch.where(owners[places] == index, values[places], nothing)
        for index, places in enumerate(
            torch.from_numpy(one.astype(np.int64)).to(values.device) for one in packed.gather
        )
    ]


def _placed(logits: Tensor, ids: Tensor, wanted: NDArray[np.integer[Any]], temperature: float) -> Tensor:
    places = torch.from_numpy(wanted.astype(np.int64)).to(ids.device)
    scaled = logits.float() / temperature
    found = scaled.gather(-1, ids[places, None])[:, 0] - scaled.logsumexp(-1)
    return torch.full(ids.shape, float("nan"), device=ids.device).index_put((places,), found)


def _indices(values: NDArray[np.integer[Any]], model: PreTrainedModel) -> Tensor:
    return torch.from_numpy(values.astype(np.int64)).to(model.device)
