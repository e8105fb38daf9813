"""Entries to columns and back. Pure.

Two digests make an entry tamper-evident. The prompt's covers all its ids (see `tokens.digest`), though only the tail
is stored. The entry's covers ids, log-probs and every field that a producer said, as canonical JSON; what the store
itself fills in (`PLACED`), what changes later (delivery) and the texts, which may be retired on their own, stay out.
"""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from rolltape.record import Delivery, Outcome, TokenEntry
from rolltape.tokens import FloatArray, IntArray

PLACED = ("step_index", "parent_call_id", "common_prefix_len", "prompt_digest")
_ARRAYS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts")
_OUTSIDE = frozenset({"rollout_id", "model_call_id", "delivery", "output_items", "request_text", *PLACED, *_ARRAYS})
_PAYS = 0.9
"""Compressed bytes are kept where they are at most this share of the plain ones."""

IDS, LOG_PROBS, EXPERTS = 1, 2, 4
UNPACK_ERRORS = (zstandard.ZstdError, ValueError, TypeError, MemoryError)
"""What decoding damaged bytes can raise."""


def _defaults() -> dict[str, Any]:
    values = {}
    for f in fields(TokenEntry):
        if f.default is not MISSING:
            values[f.name] = f.default
        elif f.default_factory is not MISSING:
            values[f.name] = f.default_factory()
    return values


_DEFAULTS = _defaults()
_HEADER_FIELDS = tuple(name for name in _DEFAULTS if name not in _OUTSIDE)
_EXPERTS_SHAPE = "routed_experts"


def encode_header(entry: TokenEntry) -> bytes:
    """The canonical JSON of the fields that have no column. Raises `TypeError` for what JSON cannot hold."""
    header = {name: value for name in _HEADER_FIELDS if (value := getattr(entry, name)) != _DEFAULTS[name]}
    if entry.routed_experts is not None:
        header[_EXPERTS_SHAPE] = [entry.routed_experts.dtype.str, list(entry.routed_experts.shape)]
    return msgspec.json.encode(header, order="deterministic")


def entry_digest(
    rollout_id: str, call_id: str, header: bytes, prompt_digest: bytes, arrays: tuple[bytes, bytes, bytes]
) -> bytes:
    """SHA-256 over the parts, each with its length, so that no two entries spell the same bytes."""
    state = hashlib.sha256()
    for part in (rollout_id.encode(), call_id.encode(), header, prompt_digest, *arrays):
        state.update(struct.pack("<q", len(part)))
        state.update(part)
    return state.digest()


def next_chain(chain: bytes, digest: bytes) -> bytes:
    return hashlib.sha256(chain + digest).digest()


def id_bytes(*parts: IntArray) -> bytes:
    return b"".join(np.ascontiguousarray(part, dtype="<i4").tobytes() for part in parts)


def log_prob_bytes(values: FloatArray) -> bytes:
    return np.ascontiguousarray(values, dtype="<f4").tobytes()


def expert_bytes(values: NDArray[Any] | None) -> bytes:
    return b"" if values is None else np.ascontiguousarray(values).tobytes()


def ids_of(data: bytes) -> IntArray:
    return np.frombuffer(data, dtype="<i4")


def joined(*parts: IntArray) -> IntArray:
    return np.concatenate(parts)


class Packer:
    """zstd for one thread. `level` 3 is where more effort stops paying for token ids."""

    def __init__(self) -> None:
        self._compress = zstandard.ZstdCompressor(level=3).compress
        self._decompress = zstandard.ZstdDecompressor().decompress

    def pack(self, data: bytes, flag: int) -> tuple[bytes, int]:
        """`data`, compressed if that pays, and `flag` or 0."""
        packed = self._compress(data) if len(data) > 64 else data
        return (packed, flag) if len(packed) < len(data) * _PAYS else (data, 0)

    def unpack(self, data: bytes, packed: int) -> bytes:
        return self._decompress(data) if packed else data

    def pack_text(self, data: bytes) -> bytes:
        return self._compress(data)

    def unpack_text(self, data: bytes) -> bytes:
        return self._decompress(data)


@dataclass(slots=True)
class Row:
    """One row of `entries`, as read. Names are those of its columns."""

    seq: int
    kind: int
    call_id: str
    base: int | None
    base_len: int
    n_prompt: int
    n_generation: int
    packed: int
    ids: bytes
    log_probs: bytes
    experts: bytes | None
    header: bytes
    delivery: str
    step_index: int | None
    parent_call_id: str | None
    common_prefix_len: int | None
    prompt_digest: bytes
    digest: bytes


COLUMNS = ", ".join(f.name for f in fields(Row))


def restore(
    rollout_id: str,
    row: Row,
    header: Mapping[str, Any],
    arrays: tuple[IntArray, IntArray, FloatArray],
    experts: bytes,
    **texts: Any,
) -> TokenEntry:
    """The entry of a row whose digests hold.

    The constructor's checks are left out on purpose: the entry passed them when it was put, and reading every prompt
    again would make a freeze quadratic in the length of a chain.
    """
    values = dict(_DEFAULTS)
    values.update(header)
    for name in ("log_prob_spans", "policy_spans"):
        values[name] = tuple(tuple(span) for span in values[name])
    for name in ("faults", "media"):
        values[name] = tuple(values[name])
    if _EXPERTS_SHAPE in header:
        dtype, shape = header[_EXPERTS_SHAPE]
        values["routed_experts"] = np.frombuffer(experts, dtype=np.dtype(dtype)).reshape(shape)
    prompt, generation, log_probs = arrays
    values.update(
        rollout_id=rollout_id,
        model_call_id=row.call_id,
        prompt_token_ids=prompt,
        generation_token_ids=generation,
        generation_log_probs=log_probs,
        outcome=Outcome(values["outcome"]),
        delivery=Delivery(row.delivery),
        step_index=row.step_index,
        parent_call_id=row.parent_call_id,
        common_prefix_len=row.common_prefix_len,
        prompt_digest=f"sha256:{row.prompt_digest.hex()}",
        **texts,
    )
    entry = object.__new__(TokenEntry)
    for name, value in values.items():
        object.__setattr__(entry, name, value)
    return entry
