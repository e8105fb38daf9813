"""The fields that OpenAI's dialects share, taken out of a parsed body and checked.

Strategy: the body is a dict; every function here pops what it reads, so that what is left is `extra`. Numbers are
checked and never changed.
"""

from collections.abc import Callable, Mapping
from typing import Any

from rolltape.chat import SAMPLING_FIELDS, ChatRequest, Json
from rolltape.wire.openai_errors import invalid, unsupported

INT_LIMIT = 2**63
Refusals = Mapping[str, tuple[Callable[[Any], bool], str]]
"""Field -> (is this value what happens anyway?, why any other is refused)."""

CAPTURE_FIELDS = ("return_tokens_as_token_ids", "return_prompt_text", "return_prompt_token_ids")
"""How an engine's answer is told, not what it is: dropped, since the gateway asks the engine in its own way."""

WHOLE = frozenset({"max_tokens", "seed", "top_k", "min_tokens", "mirostat", "dry_allowed_length"})
NUMBERS = frozenset(
    {
        "temperature", "top_p", "min_p", "typical_p", "top_n_sigma", "top_a", "tfs", "frequency_penalty",
        "presence_penalty", "repetition_penalty", "repeat_penalty", "length_penalty", "mirostat_tau", "mirostat_eta",
        "xtc_probability", "xtc_threshold", "dynatemp_range", "dynatemp_exponent", "dry_multiplier", "dry_base",
    }
)  # fmt: skip


def refuse(fields: Json, refusals: Refusals) -> None:
    """Drop the fields of `refusals` whose value is harmless (null always is); raise for any other."""
    for name, (harmless, why) in refusals.items():
        value = fields.pop(name, None)
        if value is not None and not harmless(value):
            raise unsupported(name, f"'{name}' cannot be honoured with this value: {why}.")


def model(fields: Json) -> str:
    """The model's name; there is no default."""
    name = fields.pop("model", None)
    if not isinstance(name, str) or not name:
        raise invalid("model", "You must provide a model: 'model' must be a non-empty string.")
    return name


def flag(fields: Json, name: str) -> bool:
    """A boolean field; null and absent are False."""
    value = fields.pop(name, None)
    if value is not None and not isinstance(value, bool):
        raise invalid(name, f"'{name}' must be true or false.")
    return bool(value)


def stream_usage(options: Any) -> bool:
    """`stream_options`: whether a chunk with the usage is wanted."""
    if options is None:
        return False
    if not isinstance(options, dict):
        raise invalid("stream_options", "'stream_options' must be an object.")
    return flag(options, "include_usage")


def sampling(fields: Json) -> Json:
    """The sampling fields that were sent; null is the same as not sent. Numbers are checked, not changed."""
    newer = fields.pop("max_completion_tokens", None)
    if newer is not None:
        fields["max_tokens"] = newer
    sent = {name: fields.pop(name) for name in SAMPLING_FIELDS & fields.keys()}
    if sent.get("stop") is not None:
        sent["stop"] = _stop(sent["stop"])
    meant = {name: value for name, value in sorted(sent.items()) if value is not None and value != []}
    for name, value in meant.items():
        _check_number(name, value)
    return meant


def _stop(value: Any) -> list[str]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise invalid("stop", "'stop' must be a non-empty string or a list of them.")
    return stops


def _check_number(name: str, value: Any) -> None:
    if name in WHOLE and (type(value) is not int or not -INT_LIMIT <= value < INT_LIMIT):
        raise invalid(name, f"'{name}' must be a whole number.")
    if name in NUMBERS and type(value) not in (int, float):
        raise invalid(name, f"'{name}' must be a number.")
    if name == "max_tokens" and value < 1:
        raise invalid(name, "'max_tokens' must be at least 1.")
    if name == "temperature" and value < 0:
        raise invalid(name, "'temperature' must not be negative.")
    if name == "top_p" and not 0 < value <= 1:
        raise invalid(name, "'top_p' must be above 0 and at most 1.")


def rest(fields: Json) -> Json:
    """What is left. `return_token_ids` stays when it is true: the reply then holds the ids, as vLLM's does."""
    for name in CAPTURE_FIELDS:
        fields.pop(name, None)
    if not flag(dict(fields), "return_token_ids"):
        fields.pop("return_token_ids", None)
    return fields


def wants_ids(request: ChatRequest) -> bool:
    """Whether the caller itself asked for token ids, as vLLM's callers do; else they never reach it."""
    return request.extra.get("return_token_ids") is True
