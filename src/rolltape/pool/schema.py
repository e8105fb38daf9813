"""The tables of a pool as Arrow schemas, and how they are written.

Columns are declared here once; files, views and empty tables are made from them. A later version may add columns: a
part that lacks one reads as null.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import pyarrow as pa

FORMAT = 1
Table: TypeAlias = Literal["rollouts", "rows", "labels", "tombstones", "sets"]

_TEXTS = pa.list_(pa.string())
_SPAN = pa.struct(
    [
        ("model_call_id", pa.string()),
        ("start", pa.int32()),
        ("end", pa.int32()),
        ("owned", pa.bool_()),
        ("policy_version", pa.string()),
        ("log_prob_kind", pa.string()),
        ("weight", pa.float64()),
    ]
)

ROLLOUTS = pa.schema(
    [
        ("uid", pa.string()),
        ("part", pa.string()),
        ("run", pa.string()),
        ("rollout_id", pa.string()),
        ("task_id", pa.string()),
        ("group_id", pa.string()),
        ("rollout_index", pa.int32()),
        ("attempt", pa.int32()),
        ("harness", pa.string()),
        ("harness_version", pa.string()),
        ("engine", pa.string()),
        ("model", pa.string()),
        ("policy_versions", _TEXTS),
        ("sampling", pa.string()),
        ("finish_reason", pa.string()),
        ("reward", pa.float64()),
        ("reward_source", pa.string()),
        ("ending", pa.string()),
        ("excluded", pa.bool_()),
        ("excluded_reason", pa.string()),
        ("agreement", pa.float64()),
        ("finished_at", pa.float64()),
        ("seconds", pa.float64()),
        ("run_labels", pa.string()),
        ("delivery", pa.string()),
        ("snapshot_id", pa.string()),
        ("snapshot_version", pa.int64()),
        ("verdict", pa.string()),
        ("verdict_reasons", _TEXTS),
        ("certificate_digest", pa.string()),
        ("masked", pa.bool_()),
        ("mask_reasons", _TEXTS),
        ("incomplete", pa.bool_()),
        ("calls", pa.int32()),
        ("rows", pa.int32()),
        ("tokens", pa.int64()),
        ("loss_tokens", pa.int64()),
        ("tokens_digest", pa.string()),
        ("metrics", pa.string()),
        ("added_at", pa.float64()),
    ]
)
"""`sampling`, `run_labels` and `metrics` are JSON. `tokens_digest` is of the rows' ids and masks."""

ROWS = pa.schema(
    [
        ("uid", pa.string()),
        ("part", pa.string()),
        ("row_index", pa.int32()),
        ("row_id", pa.string()),
        ("kind", pa.string()),
        ("row_reward", pa.float64()),
        ("weight", pa.float64()),
        ("advantage", pa.float64()),
        ("row_tokens", pa.int32()),
        ("row_loss_tokens", pa.int32()),
        ("token_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.int8())),
        ("log_probs", pa.list_(pa.float32())),
        ("spans", pa.list_(_SPAN)),
        ("media", pa.string()),
    ]
)
"""`log_probs` is null where it is NaN: context. `media` is JSON, null where there is none."""

LABELS = pa.schema(
    [
        ("id", pa.string()),
        ("uid", pa.string()),
        ("kind", pa.string()),
        ("name", pa.string()),
        ("value", pa.string()),
        ("number", pa.float64()),
        ("reason", pa.string()),
        ("said_by", pa.string()),
        ("said_at", pa.float64()),
        ("lineage", pa.string()),
    ]
)
"""`kind`: filter (value fail or pass), weight, reward (number) or label. The latest of a kind and name stands."""

TOMBSTONES = pa.schema([("uid", pa.string()), ("reason", pa.string()), ("gone_at", pa.float64())])
SETS = pa.schema([("set_id", pa.string()), ("uid", pa.string()), ("position", pa.int64())])

SCHEMAS: Mapping[Table, pa.Schema] = {
    "rollouts": ROLLOUTS,
    "rows": ROWS,
    "labels": LABELS,
    "tombstones": TOMBSTONES,
    "sets": SETS,
}

ROWS_IN_A_GROUP = 128
"""Few, since a row is thousands of tokens: a reader holds one group at a time."""


def writer_options(table: Table) -> dict[str, Any]:
    """zstd, a dictionary for ids and words, log-probs split by byte: measured the smallest that is still fast."""
    options: dict[str, Any] = {"compression": "zstd", "compression_level": 3}
    if table == "rows":
        floats = {"log_probs.list.element", "row_reward", "weight", "advantage"}
        options["use_dictionary"] = [name for name in _leaves(ROWS) if name not in floats]
        options["use_byte_stream_split"] = ["log_probs.list.element"]
    return options


def _leaves(schema: pa.Schema) -> list[str]:
    found = []
    for field in schema:
        kind, path = field.type, field.name
        if pa.types.is_list(kind):
            kind, path = kind.value_type, f"{path}.list.element"
        found += [f"{path}.{one.name}" for one in kind] if pa.types.is_struct(kind) else [path]
    return found
