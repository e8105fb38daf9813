"""Gym's record of a call, as the dict that its own files hold, to an entry and back: the same dict comes out. Pure.

What both records know has its place in the entry; the rest of Gym's fields, those that Gym itself does not know among
them, are kept under one key of `extra`. Three things would be lost by that alone, so each is told beside them:

* log-probs are float32 here and whatever the engine said there: `log_probs` tells how to get the same numbers back;
* output items are texts, which no store holds against an entry: their digest makes a put with others a conflict;
* a delta prompt is only the end of one: the entry holds the whole, and `prompt_start` tells where the end began.
"""

import base64
import hashlib
import struct
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rolltape import tokens
from rolltape.errors import DamagedError, EntryError
from rolltape.record import Outcome, TokenEntry
from rolltape.tokens import FloatArray, IntArray

KEY = "nemo_gym"
SCHEMA_VERSION = 1
"""The only version of Gym's record there is so far."""

_DECIMALS = "shortest decimals"


class _Known(msgspec.Struct):
    """The fields of Gym's record that are looked at here."""

    rollout_id: str
    model_call_id: str
    prompt_token_ids: list[int]
    generation_token_ids: list[int]
    generation_log_probs: list[float | None]
    schema_version: int = SCHEMA_VERSION
    model: str = ""
    output_items: list[dict[str, Any]] = []
    response_id: str | None = None
    created_at: float = 0.0
    routed_experts: Any = None
    parent_call_id: str | None = None
    digest: str | None = None
    prompt_is_delta: bool = False


_PLACED = frozenset(_Known.__struct_fields__[:5]) | {"model", "output_items", "response_id", "created_at"}


def entry_of(body: Mapping[str, Any], parent: IntArray | None = None) -> TokenEntry:
    """The entry that one of Gym's records describes.

    `parent` is the whole sequence of the call that a delta prompt continues. Raises `EntryError` where it is no record
    of a known version, or the parent is not the one that the record was cut from.
    """
    known = _known(body)
    log_probs = tokens.log_probs(known.generation_log_probs, "generation_log_probs")
    experts = expert_array(known.routed_experts)
    placed = _PLACED if experts is None else _PLACED | {"routed_experts"}
    told: dict[str, Any] = {
        "fields": {name: value for name, value in body.items() if name not in placed},
        "output_items": _text_digest(known.output_items),
    }
    if (form := _form(np.array(known.generation_log_probs, np.float64), log_probs)) is not None:
        told["log_probs"] = form
    prompt = tokens.token_ids(known.prompt_token_ids, "prompt_token_ids")
    if known.prompt_is_delta:
        prompt, told["prompt_start"] = _whole_prompt(known, prompt, parent)
    return TokenEntry(
        rollout_id=known.rollout_id,
        model_call_id=known.model_call_id,
        prompt_token_ids=prompt,
        generation_token_ids=tokens.token_ids(known.generation_token_ids, "generation_token_ids"),
        generation_log_probs=log_probs,
        model=known.model,
        response_id=known.response_id,
        created_at=known.created_at,
        output_items=tuple(known.output_items),
        routed_experts=experts,
        extra={KEY: told},
    )


def body_of(entry: TokenEntry) -> dict[str, Any]:
    """Gym's record of an entry that `entry_of` made. Raises `DamagedError` where its output items are gone."""
    told = entry.extra[KEY]
    if _text_digest(entry.output_items) != told["output_items"]:
        raise DamagedError(
            f"the output items of call {entry.model_call_id!r} are not those that Gym wrote",
            hint="texts may have been removed from the store; the token ids are still there",
        )
    body = dict(told["fields"]) | _placed(entry)
    body["prompt_token_ids"] = entry.prompt_token_ids[told.get("prompt_start", 0) :].tolist()
    body["generation_log_probs"] = _reformed(told.get("log_probs"), entry.generation_log_probs)
    if entry.routed_experts is not None:
        body["routed_experts"] = entry.routed_experts.tolist()
    return body


def native_body(entry: TokenEntry, given: Collection[str]) -> dict[str, Any]:
    """Gym's record of an entry that a gateway of ours captured; `given` are the calls that Gym gets to see.

    A call without a parent is a root. Where the parent is not among those given, nothing is claimed, and Gym looks for
    one by its tokens.
    """
    body = _placed(entry) | {"cum_len": entry.length, "digest": gym_digest(entry.sequence)}
    body["generation_log_probs"] = entry.generation_log_probs.astype(np.float64).tolist()
    if entry.parent_call_id is None:
        body["parent_resolution"] = "root"
    elif entry.parent_call_id in given:
        body |= {"parent_resolution": "resolved", "parent_call_id": entry.parent_call_id}
    if entry.routed_experts is not None:
        body["routed_experts"] = entry.routed_experts.tolist()
    return body


def bodies_of(entries: Sequence[TokenEntry]) -> list[dict[str, Any]]:
    """Gym's records of a rollout. Gym knows neither outcomes nor engines beside the policy's, so calls that ended
    otherwise than completed, or that another engine answered, are left out."""
    completed = [entry for entry in entries if _is_given(entry)]
    given = {entry.model_call_id for entry in completed}
    return [body_of(entry) if KEY in entry.extra else native_body(entry, given) for entry in completed]


def whole_loss(entries: Sequence[TokenEntry]) -> bool:
    """Whether each sampled token of the records has a log-prob that a loss may use: Gym cannot leave one out."""
    return all(entry.trainable.all() for entry in entries if _is_given(entry))


def _is_given(entry: TokenEntry) -> bool:
    return entry.outcome is Outcome.COMPLETED and entry.other_engine is None


def fields_of(entry: TokenEntry) -> Mapping[str, Any] | None:
    """What only Gym knows of a call: lineage, fingerprints. None = the entry does not come from Gym."""
    told: Mapping[str, Any] | None = entry.extra.get(KEY)
    return None if told is None else told["fields"]


def parent_of(body: Mapping[str, Any]) -> str | None:
    """The call without whose sequence this record's prompt is not whole; None = it is whole."""
    return body.get("parent_call_id") if body.get("prompt_is_delta") else None


def gym_digest(ids: IntArray) -> str:
    """Gym's digest of a whole sequence: SHA-256 over a domain, a version, the length and big-endian 64-bit ids."""
    state = hashlib.sha256(b"nemo-gym-tokens")
    if len(ids):
        state.update(struct.pack(">BQ", 1, len(ids)))
        state.update(ids.astype(">u8").tobytes())
    return state.hexdigest()


def expert_array(given: Any) -> NDArray[Any] | None:
    """`given` as an array of the smallest unsigned type if that says all of it; else None."""
    if not isinstance(given, list):
        return None
    try:
        array = np.asarray(given)
    except (ValueError, OverflowError):
        return None
    if array.dtype.kind not in "iu" or not array.size or int(array.min()) < 0:
        return None
    if msgspec.json.encode(array.tolist()) != msgspec.json.encode(given):
        return None
    return array.astype(np.min_scalar_type(int(array.max())))


def _placed(entry: TokenEntry) -> dict[str, Any]:
    return {
        "rollout_id": entry.rollout_id,
        "model_call_id": entry.model_call_id,
        "model": entry.model,
        "prompt_token_ids": entry.prompt_token_ids.tolist(),
        "generation_token_ids": entry.generation_token_ids.tolist(),
        "output_items": [dict(item) for item in entry.output_items],
        "response_id": entry.response_id,
        "created_at": entry.created_at,
    }


def _known(body: Mapping[str, Any]) -> _Known:
    try:
        known = msgspec.convert(body, _Known)
    except msgspec.ValidationError as error:
        raise EntryError(f"not a record of Gym's: {error}") from error
    if known.schema_version != SCHEMA_VERSION:
        raise EntryError(f"Gym's record has version {known.schema_version}; the one known is {SCHEMA_VERSION}")
    return known


def _whole_prompt(known: _Known, end: IntArray, parent: IntArray | None) -> tuple[IntArray, int]:
    named = f"call {known.model_call_id!r} continues {known.parent_call_id!r}"
    if parent is None:
        raise EntryError(f"{named}, which is not recorded: its prompt is unknown")
    prompt = tokens.token_ids(np.concatenate([parent, end]))
    generated = tokens.token_ids(known.generation_token_ids, "generation_token_ids")
    if known.digest not in (None, gym_digest(np.concatenate([prompt, generated]))):
        raise EntryError(f"{named}, but not the one recorded: the digest of the whole differs")
    return prompt, len(parent)


def _form(given: NDArray[np.float64], kept: FloatArray) -> str | None:
    """How `given` is had back from `kept`: None = by widening each float32."""
    if np.array_equal(kept.astype(np.float64), given, equal_nan=True):
        return None
    if tokens.json_log_probs(kept) == given.tolist():
        return _DECIMALS
    return base64.b64encode(given.astype("<f8").tobytes()).decode()


def _reformed(form: str | None, kept: FloatArray) -> list[Any]:
    if form is None:
        return list(kept.astype(np.float64).tolist())
    if form == _DECIMALS:
        return list(tokens.json_log_probs(kept))
    return list(np.frombuffer(base64.b64decode(form), "<f8").tolist())


def _text_digest(items: Sequence[Mapping[str, Any]]) -> str:
    return hashlib.sha256(msgspec.json.encode(list(items), order="deterministic")).hexdigest()
