"""Entries as rows of tensors and back, every digest derived again. Pure.

A framework's own code can read the row: `prompt_token_ids` and `generation_token_ids` are int32, `log_probs` float32;
`header` (canonical JSON of what else the producer said), `beside` (JSON of what is no part of the payload's digest) and
`experts` are bytes as uint8. The digest is that of the stores that keep tables, so a journal and a queue agree on it.
"""

from typing import Any, TypeAlias

import msgspec
import numpy as np
import torch
from tensordict import TensorDict

from rolltape import tokens
from rolltape.errors import DamagedError
from rolltape.record import TokenEntry
from rolltape.store.tables import codec
from rolltape.tokens import IntArray

Cells: TypeAlias = dict[str, torch.Tensor]

_ARRAYS = ("prompt_token_ids", "generation_token_ids", "log_probs")
_BYTES = ("header", "beside", "experts")
ENTRY_FIELDS = (*_ARRAYS, *_BYTES)
SEQUENCE_FIELDS = ("prompt_token_ids",)


def digest_of(entry: TokenEntry) -> str:
    """What makes two puts the same."""
    arrays = (
        codec.id_bytes(entry.generation_token_ids),
        codec.log_prob_bytes(entry.generation_log_probs),
        codec.expert_bytes(entry.routed_experts),
    )
    prompt = bytes.fromhex(tokens.digest(entry.prompt_token_ids).removeprefix("sha256:"))
    header = codec.encode_header(entry)
    return codec.entry_digest(entry.rollout_id, entry.model_call_id, header, prompt, arrays).hex()


def row_of(entry: TokenEntry, *, texts: bool) -> TensorDict:
    """The entry's row. `texts` False leaves the reply's items out; the request's text never travels."""
    beside = {
        "delivery": str(entry.delivery),
        "parent_call_id": entry.parent_call_id,
        "common_prefix_len": entry.common_prefix_len,
        "output_items": list(entry.output_items) if texts else [],
    }
    return _row(
        prompt_token_ids=entry.prompt_token_ids,
        generation_token_ids=entry.generation_token_ids,
        log_probs=entry.generation_log_probs,
        header=_bytes(codec.encode_header(entry)),
        beside=_bytes(msgspec.json.encode(beside)),
        experts=_bytes(codec.expert_bytes(entry.routed_experts)),
    )


def sequence_row(sequence: IntArray) -> TensorDict:
    return _row(prompt_token_ids=sequence)


def entry_of(rollout_id: str, call_id: str, digest: str, cells: Cells) -> TokenEntry:
    """The entry of a row; where it stands in its rollout is not filled in. Raises `DamagedError`."""
    prompt, generation, log_probs = (cells[name].numpy() for name in _ARRAYS)
    header, beside, experts = (cells[name].numpy().tobytes() for name in _BYTES)
    prompt_digest = bytes.fromhex(tokens.digest(prompt).removeprefix("sha256:"))
    arrays = (codec.id_bytes(generation), codec.log_prob_bytes(log_probs), experts)
    if codec.entry_digest(rollout_id, call_id, header, prompt_digest, arrays).hex() != digest:
        raise DamagedError(f"call {call_id!r} of rollout {rollout_id!r} does not match its digest")
    said = msgspec.json.decode(beside, type=dict[str, Any])
    row = codec.Row(
        seq=0,
        kind=0,
        call_id=call_id,
        base=None,
        base_len=0,
        n_prompt=len(prompt),
        n_generation=len(generation),
        packed=0,
        ids=b"",
        log_probs=b"",
        experts=None,
        header=header,
        delivery=said["delivery"],
        step_index=None,
        parent_call_id=said["parent_call_id"],
        common_prefix_len=said["common_prefix_len"],
        prompt_digest=prompt_digest,
        digest=bytes.fromhex(digest),
    )
    ids = (tokens.token_ids(prompt), tokens.token_ids(generation), tokens.log_probs(log_probs))
    texts = {"output_items": tuple(said["output_items"])}
    return codec.restore(rollout_id, row, msgspec.json.decode(header, type=dict[str, Any]), ids, experts, **texts)


def sequence_of(cells: Cells) -> IntArray:
    """The whole sequence of a row, of whichever kind."""
    parts = [cells[name].numpy() for name in ("prompt_token_ids", "generation_token_ids") if name in cells]
    return tokens.token_ids(np.concatenate(parts))


def _bytes(data: bytes) -> Any:
    return np.frombuffer(data, np.uint8)


def _row(**columns: Any) -> TensorDict:
    return TensorDict(
        {name: torch.from_numpy(np.array(column))[None] for name, column in columns.items()}, batch_size=1
    )
