"""Canonical sampling to llama.cpp's fields. Pure.

The server's defaults (top_k 40, top_p 0.95, min_p 0.05, temperature 0.8) are not the model's distribution: every field
is sent, neutral unless asked for. What llama.cpp cannot do is refused by name, since leaving it out would sample from
another distribution than the one asked for.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rolltape.chat import SAMPLING_FIELDS, ChatRequest, Json
from rolltape.errors import EngineRefused

NEUTRAL: Mapping[str, float | int] = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "top_n_sigma": -1.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "mirostat": 0,
    "xtc_probability": 0.0,
    "dynatemp_range": 0.0,
    "dry_multiplier": 0.0,
}
"""Values that leave the model's own distribution alone."""

OPTIONAL = frozenset(
    {
        "logit_bias", "ignore_eos", "mirostat_tau", "mirostat_eta", "xtc_threshold",
        "dynatemp_exponent", "dry_base", "dry_allowed_length", "samplers",
    }
)  # fmt: skip
"""Sent only when asked for."""

SERVER_NAMES = {"repetition_penalty": "repeat_penalty"}


@dataclass(frozen=True, slots=True)
class Sampling:
    """What steers one generation. `applied` in canonical names, for the record; `fields` as the server takes them."""

    applied: Json
    fields: Json
    stops: tuple[str, ...]
    max_tokens: int
    """At most the context that is left."""


def plan(asked: Mapping[str, Any], *, room: int, seed: int) -> Sampling:
    """The sampling to apply. `room` is the context left in tokens, `seed` the one to use when none is asked for."""
    given = {name: value for name, value in asked.items() if value is not None}
    if "repeat_penalty" in given:
        given.setdefault("repetition_penalty", given.pop("repeat_penalty"))
    _refuse_unknown(given)
    values = {name: _number(given, name, neutral) for name, neutral in NEUTRAL.items()}
    values["top_k"] = max(int(values["top_k"]), 0)  # vLLM's "off" is -1
    extra = {name: given[name] for name in sorted(OPTIONAL & given.keys())}
    steering = {**values, **extra, "seed": int(_number(given, "seed", seed))}
    stops = _stops(given.get("stop"))
    max_tokens = _max_tokens(given, room)
    applied = {**steering, "max_tokens": max_tokens, **({"stop": list(stops)} if stops else {})}
    return Sampling(applied, {SERVER_NAMES.get(k, k): _field(k, v) for k, v in steering.items()}, stops, max_tokens)


def _refuse_unknown(given: Mapping[str, Any]) -> None:
    known = NEUTRAL.keys() | OPTIONAL | {"max_tokens", "stop", "seed"}
    off: Mapping[str, Any] = {"min_tokens": 0, "length_penalty": 1.0, "use_beam_search": False}
    for name in sorted((given.keys() & SAMPLING_FIELDS) - known):
        if given[name] and given[name] != off.get(name):
            raise EngineRefused(400, "unsupported_parameter", f"llama.cpp cannot honour {name!r}.", param=name)


def _number(given: Mapping[str, Any], name: str, default: float) -> float | int:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise EngineRefused(400, "invalid_value", f"{name!r} must be a number, not {value!r}.", param=name)
    return value


def _max_tokens(given: Mapping[str, Any], room: int) -> int:
    wanted = _number(given, "max_tokens", room)
    if wanted < 1:
        raise EngineRefused(400, "invalid_value", f"max_tokens must be at least 1, not {wanted!r}.", param="max_tokens")
    return min(int(wanted), room)


def _stops(value: Any) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else tuple(value or ())
    if not all(isinstance(stop, str) for stop in stops):
        raise EngineRefused(400, "invalid_value", "'stop' must be a string or a list of strings.", param="stop")
    return tuple(stop for stop in stops if stop)


def _field(name: str, value: Any) -> Any:
    if name == "logit_bias" and isinstance(value, Mapping):
        return [[int(token) if str(token).isdigit() else token, bias] for token, bias in value.items()]
    return value


def grammar(request: ChatRequest) -> Json:
    """The fields that hold the generation to `request.response_format`; {} for free text.

    Raises `EngineRefused` for a tool choice that forces a call, which llama.cpp accepts and does not enforce, and for
    a format beside tools, since its grammar would forbid every call.
    """
    choice = request.tool_choice
    if request.tools and choice not in (None, "auto", "none"):
        message = f"tool_choice {choice!r} cannot be enforced by llama.cpp; use 'auto' or 'none'."
        raise EngineRefused(400, "unsupported_value", message, param="tool_choice")
    form = request.response_format or {}
    kind = form.get("type", "text")
    if kind == "text":
        return {}
    if kind not in ("json_object", "json_schema"):
        raise EngineRefused(400, "unsupported_value", f"Unknown response format {kind!r}.", param="response_format")
    if request.tools and choice != "none":
        message = "response_format and tools cannot be honoured together by llama.cpp."
        raise EngineRefused(400, "unsupported_value", message, param="response_format")
    if kind == "json_object":
        return {"json_schema": {"type": "object"}}
    schema = (form.get("json_schema") or {}).get("schema")
    if not isinstance(schema, dict):
        message = "response_format.json_schema.schema must be an object."
        raise EngineRefused(400, "invalid_value", message, param="response_format")
    return {"json_schema": schema}
