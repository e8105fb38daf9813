"""The bodies of the control API, both ways. Their JSON Schema is what the OpenAPI document shows.

A bound that a handler checks itself, for a better message, stands here as schema alone.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from rolltape.gateway.admission import Budget
from rolltape.rebuild import DeliveryForm

RolloutId = Annotated[
    str,
    msgspec.Meta(
        description="Letters, digits, dots, dashes and underscores, the first a letter or digit.",
        examples=["task-0"],
        extra_json_schema={"pattern": "^[A-Za-z0-9][A-Za-z0-9._-]*$", "maxLength": 200},
    ),
]
Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Labels = dict[str, Any]
_NEW_LABELS = msgspec.Meta(extra_json_schema={"propertyNames": {"not": {"const": "budget"}}})


class ErrorDetail(msgspec.Struct, frozen=True):
    """`code` is for programs, `message` and `hint` are for people; `hint` may be empty."""

    code: str
    message: str
    hint: str = ""


class ErrorBody(msgspec.Struct, frozen=True):
    """Every error of the control API."""

    error: ErrorDetail


class Health(msgspec.Struct, frozen=True):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Readiness(msgspec.Struct, frozen=True):
    """Ready = the engine takes calls, the last one brought its exact ids, and no mark waits for the store."""

    ready: bool
    engine: bool
    ids_arrive: bool
    unwritten_marks: int


class NewRollout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rollout to announce. Without an id, one is made."""

    rollout_id: RolloutId | None = None
    labels: Annotated[Labels, _NEW_LABELS] = {}
    budget: Budget = Budget()


class Announced(msgspec.Struct, frozen=True):
    """What a harness is started with. `captured` false: its calls are served and not recorded."""

    rollout_id: str
    api_key: str
    base_urls: dict[str, str]
    """By protocol family: openai, anthropic, gemini."""
    captured: bool
    rebuild: bool
    """False: this gateway stops after the write; whoever owns the rollouts finalizes them."""


class Listing(msgspec.Struct, frozen=True):
    """Every rollout that the store knows, as `GET /control/rollouts/{rollout_id}` tells of one."""

    rollouts: list["RolloutStatus"]


class RolloutStatus(msgspec.Struct, frozen=True, omit_defaults=False):
    """One rollout. Times are epoch seconds; `retired_at` null = not retired; `reward` null = none is known."""

    rollout_id: str
    created_at: float
    updated_at: float
    n_entries: int
    n_open_calls: int
    generated_tokens: int
    frozen: bool
    incomplete: bool
    version: int
    snapshot_id: str | None
    retired_at: float | None
    reward: float | None
    ending: str | None
    labels: Mapping[str, Any]


class Frozen(msgspec.Struct, frozen=True):
    """`snapshot_id` and `version` name exactly this state."""

    snapshot_id: str
    version: int
    incomplete: bool
    n_entries: int


class Entries(msgspec.Struct, frozen=True):
    """What the store holds of a rollout. Entries are as in `rolltape rebuild --entries`: nothing unknown is in one."""

    rollout_id: str
    snapshot_id: str
    version: int
    incomplete: bool
    incomplete_reasons: tuple[str, ...]
    outcome: Mapping[str, Any]
    entries: list[dict[str, Any]]


class Rows(msgspec.Struct, frozen=True):
    """A rebuilt rollout, as `rolltape rebuild --json` prints it."""

    rollout_id: str
    snapshot_id: str
    version: int
    delivery: DeliveryForm
    rows: list[dict[str, Any]]
    mask_sample: bool
    mask_reasons: list[str]
    metrics: dict[str, Any]
    prefix_breaks: list[dict[str, Any]]
    terminal: dict[str, Any]
    unresolved: list[list[str]]
    ledger: list[dict[str, Any]]
    tree: list[dict[str, Any]]
    certificate: dict[str, Any] = {}


class Retire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state that the consumer holds durably."""

    snapshot_id: str
    version: Integer


class Retired(msgspec.Struct, frozen=True):
    """`retired` false: the rollout is not, or no longer, in that state, and nothing was dropped."""

    retired: bool


class Outcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the rollout ended. `reward` null = none is known (a crash is not a low reward)."""

    reward: float | None = None
    ending: str | None = None
    labels: Labels = {}


class Policy(msgspec.Struct, frozen=True):
    """Which policy the engines serve. Paused: calls wait."""

    version: str | None
    state: str


class PolicyChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is left out, or null, stays as it is."""

    version: str | Integer | None = None
    state: Literal["serving", "paused"] | None = None
