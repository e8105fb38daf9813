"""Training rows <-> Arrow, to the bit: arrays go over as whole buffers, a log-prob of NaN as null."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rolltape import tokens
from rolltape.pool.schema import ROWS
from rolltape.record import Row, Span


@dataclass(frozen=True, slots=True, eq=False)
class PoolRow:
    """A row with the rollout that it is of (`uid`), and what the pool says it counts (1 unless it was re-weighted)."""

    uid: str
    row: Row
    pool_weight: float = 1.0


def rows_table(items: Sequence[tuple[str, Sequence[Row]]], part: str) -> pa.Table:
    """The rows of rollouts, given by uid, in the order of `items`."""
    flat = [(uid, index, row) for uid, rows in items for index, row in enumerate(rows)]
    rows = [row for _, _, row in flat]
    columns: dict[str, Any] = {
        "uid": [uid for uid, _, _ in flat],
        "part": [part] * len(flat),
        "row_index": [index for _, index, _ in flat],
        "row_id": [row.row_id for row in rows],
        "kind": [row.kind for row in rows],
        "row_reward": [row.reward for row in rows],
        "weight": [row.weight for row in rows],
        "advantage": [row.advantage for row in rows],
        "row_tokens": [len(row.token_ids) for row in rows],
        "row_loss_tokens": [row.loss_tokens for row in rows],
        "token_ids": _lists([row.token_ids for row in rows], np.int32),
        "loss_mask": _lists([row.loss_mask for row in rows], np.int8),
        "log_probs": _lists([row.log_probs for row in rows], np.float32),
        "spans": [[asdict(span) for span in row.spans] for row in rows],
        "media": [msgspec.json.encode(row.media).decode() if row.media else None for row in rows],
    }
    return pa.table(columns, schema=ROWS)


def _lists(arrays: Sequence[NDArray[Any]], kind: Any) -> pa.ListArray:
    offsets = np.zeros(len(arrays) + 1, np.int32)
    np.cumsum([len(one) for one in arrays], out=offsets[1:])
    values = np.concatenate(arrays) if arrays else np.empty(0, kind)
    unknown = np.isnan(values) if kind is np.float32 else None
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, mask=unknown, type=pa.from_numpy_dtype(kind)))


READ = (
    "uid", "row_id", "rollout_id", "kind", "reward", "weight", "advantage", "token_ids", "loss_mask", "log_probs",
    "spans", "media", "pool_weight",
)  # fmt: skip
"""The columns of the view `rows` that a `PoolRow` is made of."""


def rows_of(batch: pa.RecordBatch) -> Iterator[PoolRow]:
    """The rows in a batch that has the columns `READ`."""
    plain = {name: batch.column(name).to_pylist() for name in READ if not pa.types.is_list(batch.column(name).type)}
    spans = batch.column("spans").to_pylist()
    arrays = [_slices(batch.column(name)) for name in ("token_ids", "loss_mask", "log_probs")]
    for at, (ids, mask, log_probs) in enumerate(zip(*arrays, strict=True)):
        one = {name: values[at] for name, values in plain.items()}
        media = one.pop("media")
        uid, pool_weight = one.pop("uid"), one.pop("pool_weight")
        row = Row(
            token_ids=tokens.token_ids(ids),
            loss_mask=mask,
            log_probs=tokens.log_probs(log_probs),
            spans=tuple(Span(**span) for span in spans[at]),
            media=tuple(msgspec.json.decode(media)) if media else (),
            **one,
        )
        yield PoolRow(uid, row, pool_weight)


def _slices(column: pa.ListArray) -> Iterator[NDArray[Any]]:
    """Each list of the column as a view of one array; nulls are NaN."""
    offsets = column.offsets.to_numpy()
    values = column.values.to_numpy(zero_copy_only=False)
    if values.dtype == np.float64:  # pyarrow may widen a float that has nulls
        values = values.astype(np.float32)
    for start, end in pairwise(offsets):
        yield values[start:end]
