"""The record of one model call, `TokenEntry`, and of one frozen rollout, `TokenCaptureSnapshot`.

An entry is what the engine said, kept even where it is faulty: ids or log-probs that are missing, of unequal length,
not finite or contradictory make a *marked* entry (`faults` names each), never a repaired one. Two questions follow
from the faults, and everything downstream asks only these:

* `ids_exact` - are prompt and generation exactly what was computed? If not, the evidence is damaged, and the rollout
  is incomplete, since nothing can say what belongs to the gap.
* `trainable` - which of the generated tokens have a log-prob that a loss may use?

Values only; stores and files live elsewhere. Arrays are int32 and float32 and read-only.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rolltape import tokens
from rolltape.errors import EntryError
from rolltape.tokens import FloatArray, IntArray

SCHEMA_VERSION = 1
NOT_THE_POLICY = "not_the_policy"
"""In `TokenEntry.extra`: the name of the engine that answered where it was not the policy's."""
CONTINUATION = "continuation"
"""In `TokenEntry.extra`, in the mode `continue`: "continued: CALL by RENDERER", or "observed: " and why."""


class Outcome(StrEnum):
    """How a call ended, seen from the engine."""

    COMPLETED = "completed"
    """The engine ended it by itself (stop, length, tool calls)."""
    REFUSED = "refused"
    """The engine or the gateway would not sample for it; there are no generated ids."""
    FAILED = "failed"
    """The engine broke; the ids that came before are kept as evidence and never trained."""
    CANCELLED = "cancelled"
    """The caller went away first; partial ids are kept as evidence and never trained."""


class Delivery(StrEnum):
    """Whether the harness got the whole reply."""

    DELIVERED = "delivered"
    UNDELIVERED = "undelivered"
    UNKNOWN = "unknown"


class LogProbKind(StrEnum):
    """Of which distribution a log-prob is. Only like kinds may be compared."""

    RAW = "raw"
    """Of the model's own softmax, before temperature and truncation."""
    TEMPERATURE_SCALED = "temperature_scaled"
    """Of softmax(logits / temperature)."""
    GRAMMAR_MASKED = "grammar_masked"
    """Of the distribution that a grammar left over; carries no loss by default."""
    UNKNOWN = "unknown"


class Fault(StrEnum):
    """Why an entry is marked. In `TokenEntry.faults` each is followed by `: detail` where there is something to add."""

    PROMPT_IDS_MISSING = "prompt_ids_missing"
    GENERATION_IDS_MISSING = "generation_ids_missing"
    TOKEN_COUNT_MISMATCH = "token_count_mismatch"
    LOG_PROBS_MISSING = "log_probs_missing"
    LOG_PROBS_LENGTH = "log_probs_length"
    LOG_PROBS_INVALID = "log_probs_invalid"
    ENGINE = "engine"

    @classmethod
    def of(cls, text: str) -> "Fault":
        """The fault that `text` names; an unknown one counts as the engine's."""
        name = text.partition(":")[0]
        return next((fault for fault in cls if fault == name), cls.ENGINE)

    @property
    def damages_ids(self) -> bool:
        """True when the token ids themselves cannot be relied on."""
        return self not in (Fault.LOG_PROBS_MISSING, Fault.LOG_PROBS_LENGTH, Fault.LOG_PROBS_INVALID)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TokenEntry:
    """The record of one model call. Only the first five fields are required; a default means "not known".

    Raises `EntryError` where an id or an array is none at all. Faulty content is kept and named in `faults`.
    """

    rollout_id: str
    model_call_id: str
    """Unique within the rollout."""
    prompt_token_ids: IntArray
    """(P,) the ids the model was given."""
    generation_token_ids: IntArray
    """(G,) the ids it sampled, stop token included where it was sampled."""
    generation_log_probs: FloatArray
    """(G,) one a sampled id; NaN where the engine gave none. Another length is a fault, kept as it came."""

    log_prob_kind: str = LogProbKind.UNKNOWN
    log_prob_spans: tuple[tuple[int, int, str], ...] = ()
    """(start, end, kind) over the generation where the kind differs from `log_prob_kind`."""
    finish_reason: str | None = None
    outcome: Outcome = Outcome.COMPLETED
    delivery: Delivery = Delivery.UNKNOWN
    faults: tuple[str, ...] = ()
    """Named reasons that mark this entry; see `Fault`. Faults that the arrays show are added by the constructor."""
    error: str | None = None
    """What went wrong in words, for outcomes other than completed."""

    created_at: float = 0.0
    """Epoch seconds when the call ended; 0 = unknown."""
    started_at: float | None = None
    first_token_at: float | None = None
    model: str = ""
    """The model that answered."""
    model_asked: str = ""
    engine: str = ""
    protocol: str = ""
    policy_version: str | None = None
    """Serving at admission."""
    policy_version_end: str | None = None
    policy_spans: tuple[tuple[int, int, str], ...] = ()
    sampling_asked: Mapping[str, Any] = field(default_factory=dict)
    sampling_applied: Mapping[str, Any] = field(default_factory=dict)

    response_id: str | None = None
    """Id of the reply as the harness saw it."""
    step_index: int | None = None
    """Order of admission within the rollout, from 0."""
    parent_call_id: str | None = None
    """The call whose whole sequence this prompt extends, as found at capture; exact tokens decide again at rebuild."""
    common_prefix_len: int | None = None
    """How many leading ids of the prompt the store already held."""
    kind: str | None = None
    """agent, subagent, compaction, title, probe, judge or other; None = not classified, treated as agent."""
    kind_evidence: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """The request headers that tell chains apart (never credentials)."""
    request_digest: str | None = None
    prompt_digest: str | None = None
    output_items: tuple[Mapping[str, Any], ...] = ()
    """The reply as Responses items, without arrays. For people and payloads: no row is computed from it."""
    request_text: bytes | None = None
    """The canonical request as JSON; None when texts are off, or when read through a snapshot."""
    media: tuple[Mapping[str, Any], ...] = ()
    """What the prompt's placeholders stand for, in order: `{type, message, part, sha256, mime_type, bytes}` of each
    part that is no text, `bytes` a length; `url` in place of the last three where it was named by an address."""
    routed_experts: NDArray[Any] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a foreign producer that have no place above."""

    def __post_init__(self) -> None:
        for name in ("rollout_id", "model_call_id"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise EntryError(f"{name} must be a non-empty string, not {getattr(self, name)!r}")
        put = object.__setattr__
        put(self, "prompt_token_ids", tokens.token_ids(self.prompt_token_ids, "prompt_token_ids"))
        put(self, "generation_token_ids", tokens.token_ids(self.generation_token_ids, "generation_token_ids"))
        put(self, "generation_log_probs", tokens.log_probs(self.generation_log_probs, "generation_log_probs"))
        put(self, "outcome", Outcome(self.outcome))
        put(self, "delivery", Delivery(self.delivery))
        put(self, "faults", _with_array_faults(self))

    @property
    def other_engine(self) -> str | None:
        """The name of the engine that answered in place of the policy's; None = the policy did, or nobody knows."""
        name = self.extra.get(NOT_THE_POLICY)
        return name if isinstance(name, str) else None

    @property
    def sequence(self) -> IntArray:
        """(P+G,) the whole call: what a following prompt must start with to extend it."""
        return tokens.token_ids(np.concatenate([self.prompt_token_ids, self.generation_token_ids]))

    @property
    def length(self) -> int:
        return len(self.prompt_token_ids) + len(self.generation_token_ids)

    @property
    def ids_exact(self) -> bool:
        """False when the ids themselves are in doubt."""
        return not any(Fault.of(fault).damages_ids for fault in self.faults)

    @property
    def damaged(self) -> bool:
        """True when ids that might have been trained are in doubt: nothing can say what is missing. Of another engine's
        answer nothing is."""
        return not self.ids_exact and self.other_engine is None

    @property
    def trainable(self) -> NDArray[np.bool_]:
        """(G,) which sampled tokens have a log-prob that a loss may use (kinds and policies apart)."""
        wanted = len(self.generation_token_ids)
        if len(self.generation_log_probs) != wanted or not self.ids_exact:
            return np.zeros(wanted, np.bool_)
        usable = _valid_log_probs(self.generation_log_probs)
        if self.log_prob_kind == LogProbKind.GRAMMAR_MASKED:
            usable[:] = False
        for start, end, kind in self.log_prob_spans:
            usable[start:end] = kind != LogProbKind.GRAMMAR_MASKED and _valid_log_probs(
                self.generation_log_probs[start:end]
            )
        return usable

    def with_(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """The entry as strict JSON values: the form of `rolltape rebuild --entries`. Defaults are left out."""
        body: dict[str, Any] = {}
        for name, value, default in _items(self):
            if value != default or name in REQUIRED:
                body[name] = value
        body["prompt_token_ids"] = self.prompt_token_ids.tolist()
        body["generation_token_ids"] = self.generation_token_ids.tolist()
        body["generation_log_probs"] = tokens.json_log_probs(self.generation_log_probs)
        if self.routed_experts is not None:
            body["routed_experts"] = self.routed_experts.tolist()
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """The entry that `body` describes. Unknown keys go to `extra`; absent ones are unknown. Raises `EntryError`."""
        missing = [name for name in REQUIRED if body.get(name) is None]
        if missing:
            raise EntryError(f"token entry lacks {', '.join(missing)}")
        known = {name: value for name, value in body.items() if name in FIELDS and value is not None}
        unknown = {name: value for name, value in body.items() if name not in FIELDS}
        for name in ("log_prob_spans", "policy_spans"):
            if name in known:
                known[name] = tuple(tuple(span) for span in known[name])
                _check_spans(name, known[name], len(known["generation_token_ids"]))
        for name in ("faults", "output_items", "media"):
            if name in known:
                known[name] = tuple(known[name])
        if "routed_experts" in known:
            known["routed_experts"] = np.asarray(known["routed_experts"])
        if isinstance(known.get("request_text"), str):
            known["request_text"] = known["request_text"].encode()
        known["extra"] = {**known.get("extra", {}), **unknown}
        for name in ("outcome", "delivery"):
            allowed = Outcome if name == "outcome" else Delivery
            if name in known and known[name] not in list(allowed):
                raise EntryError(f"{name} must be one of {', '.join(allowed)}, not {known[name]!r}")
        return cls(**known)


REQUIRED = ("rollout_id", "model_call_id", "prompt_token_ids", "generation_token_ids", "generation_log_probs")
FIELDS = frozenset(f.name for f in fields(TokenEntry))


def _check_spans(name: str, spans: Sequence[Sequence[Any]], sampled: int) -> None:
    """A span that lies outside of the generation says nothing about it: which tokens were meant cannot be known."""
    for span in spans:
        if len(span) != 3 or not 0 <= span[0] <= span[1] <= sampled:
            raise EntryError(f"{name} holds {list(span)}, which is no (start, end, value) within {sampled} sampled ids")


def _items(entry: TokenEntry) -> list[tuple[str, Any, Any]]:
    skipped = {"prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts", "request_text"}
    rows = []
    for f in fields(entry):
        if f.name in skipped:
            continue
        value = getattr(entry, f.name)
        default = f.default_factory() if callable(f.default_factory) else f.default
        rows.append((f.name, value, default))
    return rows


def _valid_log_probs(values: FloatArray) -> NDArray[np.bool_]:
    """A log-prob is finite and not above 0; rounding in float32 may leave it a hair above."""
    return np.isfinite(values) & (values <= 1e-4)


def _with_array_faults(entry: TokenEntry) -> tuple[str, ...]:
    """The given faults, and those that the arrays themselves show."""
    sampled, given = len(entry.generation_token_ids), len(entry.generation_log_probs)
    found: list[str] = []
    if not len(entry.prompt_token_ids) and entry.outcome is Outcome.COMPLETED:
        found.append(Fault.PROMPT_IDS_MISSING)
    if sampled and not given:
        found.append(Fault.LOG_PROBS_MISSING)
    elif sampled != given:
        found.append(f"{Fault.LOG_PROBS_LENGTH}: {given} for {sampled} ids")
    invalid = np.flatnonzero(~_valid_log_probs(entry.generation_log_probs))
    if len(invalid):
        shown = ", ".join(map(str, invalid[:20].tolist())) + (", ..." if len(invalid) > 20 else "")
        found.append(f"{Fault.LOG_PROBS_INVALID}: at {shown}")
    named = {Fault.of(fault) for fault in entry.faults}
    return (*entry.faults, *(str(fault) for fault in found if Fault.of(fault) not in named))


@dataclass(frozen=True, slots=True)
class TokenCaptureSnapshot:
    """One atomic, frozen view of a rollout. The order of `entries` carries no meaning.

    `incomplete` is True when a call is known to have been lost: an intent without outcome, a failed put, damaged
    evidence. `snapshot_id` and `version` name exactly this state: `drop` of any other is refused.
    """

    rollout_id: str
    entries: tuple[TokenEntry, ...]
    incomplete: bool
    snapshot_id: str
    version: int
    incomplete_reasons: tuple[str, ...] = ()
    outcome: Mapping[str, Any] = field(default_factory=dict)
    """What the runner said of the rollout: reward, ending, labels."""


@dataclass(frozen=True, slots=True)
class Span:
    """Where one call's sampled tokens lie in a row: positions start..end (end excluded).

    `owned` is True when this row's loss holds them; a call that another row owns, or that no loss may use, is context.
    `weight` is what its loss tokens count beside the row's others; over all loss tokens of a row the mean is 1.
    """

    model_call_id: str
    start: int
    end: int
    owned: bool
    policy_version: str | None = None
    log_prob_kind: str = LogProbKind.UNKNOWN
    weight: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One training sequence. All three arrays have length T.

    `token_ids` are only ever recorded ids; `loss_mask` is 1 where a token was sampled and this row owns it;
    `log_probs` are NaN where the mask is 0 (null in JSON). `weight` is what the row counts beside the rollout's others:
    its loss is `weight` times the mean over its loss tokens of the spans' own weights times the tokens' losses.
    `advantage` is None until a trainer's baseline has been taken from the reward.
    """

    row_id: str
    rollout_id: str
    token_ids: IntArray
    loss_mask: NDArray[np.int8]
    log_probs: FloatArray
    spans: tuple[Span, ...]
    kind: str = "agent"
    reward: float | None = None
    weight: float = 1.0
    media: tuple[Mapping[str, Any], ...] = field(default=(), kw_only=True)
    """What stands behind the placeholders in `token_ids`, in order; see `TokenEntry.media`."""
    advantage: float | None = None

    @property
    def model_call_ids(self) -> tuple[str, ...]:
        return tuple(span.model_call_id for span in self.spans)

    @property
    def loss_tokens(self) -> int:
        return int(self.loss_mask.sum())

    @property
    def token_weights(self) -> FloatArray:
        """(T,) what each token counts in the rollout's loss; together they are `weight`."""
        weights = self.loss_mask.astype(np.float32)
        for span in self.spans:
            if span.owned and span.weight != 1.0:
                weights[span.start : span.end] *= span.weight
        return weights * np.float32(self.weight / max(1, self.loss_tokens))

    def to_json(self) -> dict[str, Any]:
        return {
            "row_id": self.row_id,
            "rollout_id": self.rollout_id,
            "model_call_ids": list(self.model_call_ids),
            "kind": self.kind,
            "reward": self.reward if self.reward is None or math.isfinite(self.reward) else None,
            "weight": self.weight,
            **({"media": list(self.media)} if self.media else {}),
            "advantage": self.advantage,
            "token_ids": self.token_ids.tolist(),
            "loss_mask": self.loss_mask.tolist(),
            "log_probs": tokens.json_log_probs(self.log_probs),
            "spans": [
                {
                    "model_call_id": s.model_call_id,
                    "start": s.start,
                    "end": s.end,
                    "owned": s.owned,
                    "policy_version": s.policy_version,
                    "log_prob_kind": s.log_prob_kind,
                    "weight": s.weight,
                }
                for s in self.spans
            ],
        }


def is_rollout_id(text: str) -> bool:
    """`^[A-Za-z0-9][A-Za-z0-9._-]*$`, at most 200 characters: safe as a path segment on every system."""
    ends_well = len(text) <= 200 and text.isascii() and text[:1].isalnum()
    return ends_well and all(c.isalnum() or c in "._-" for c in text)
