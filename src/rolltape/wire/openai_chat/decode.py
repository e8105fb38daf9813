"""A chat request's bytes to a `ChatRequest`. Any bytes either decode or raise `RequestError` (400).

Strategy: the body becomes a dict, each known field is taken out of it and checked, and what is left is `extra`. Fields
that would change what the reply means and that cannot be honoured are refused by name; fields that only a vendor's
cloud knows stay in `extra`.
"""

from collections.abc import Callable
from typing import Any

from rolltape.chat import SAMPLING_FIELDS, ChatRequest, Json
from rolltape.wire.body import parse_object
from rolltape.wire.openai_chat import messages as parts
from rolltape.wire.openai_errors import invalid, unsupported

INT_LIMIT = 2**63
TOOL_CHOICES = ("none", "auto", "required")

Test = Callable[[Any], bool]


def _is_text_only(value: Any) -> bool:
    return bool(value == ["text"])


REFUSED: dict[str, tuple[Test, str]] = {
    "n": (lambda v: v == 1, "only one choice a call is recorded"),
    "best_of": (lambda v: v == 1, "only one choice a call is recorded"),
    "use_beam_search": (lambda v: v is False, "beam search has no sampled tokens"),
    "echo": (lambda v: v is False, "a reply holds sampled tokens only"),
    "audio": (lambda v: False, "replies are text"),
    "modalities": (_is_text_only, "replies are text"),
    "functions": (lambda v: False, "use 'tools'"),
    "function_call": (lambda v: False, "use 'tool_choice'"),
    "web_search_options": (lambda v: False, "there is no web search here"),
    "prompt_token_ids": (lambda v: False, "prompts are rendered from messages"),
    "prompt_logprobs": (lambda v: v is False, "only sampled tokens have log-probs"),
}
"""Fields that are refused unless their value says what happens anyway (null always does); then they are dropped."""

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


def decode_request(body: bytes) -> ChatRequest:
    """The request in `body`, nothing lost that has a meaning. Raises `RequestError` (400)."""
    fields = parse_object(body)
    _refuse(fields)
    want_log_probs, top_log_probs = _log_probs(fields)
    tools = parts.tools(fields.pop("tools", None))
    return ChatRequest(
        model=_model(fields),
        sampling=_sampling(fields),
        tools=tools,
        tool_choice=_tool_choice(fields.pop("tool_choice", None), tools),
        response_format=_response_format(fields.pop("response_format", None)),
        stream=_flag(fields, "stream"),
        stream_usage=_stream_usage(fields.pop("stream_options", None)),
        want_log_probs=want_log_probs,
        top_log_probs=top_log_probs,
        messages=parts.messages(fields.pop("messages", None)),
        extra=_extra(fields),
    )


def _refuse(fields: Json) -> None:
    for name, (harmless, why) in REFUSED.items():
        value = fields.pop(name, None)
        if value is not None and not harmless(value):
            raise unsupported(name, f"'{name}' cannot be honoured with this value: {why}.")


def _model(fields: Json) -> str:
    model = fields.pop("model", None)
    if not isinstance(model, str) or not model:
        raise invalid("model", "You must provide a model: 'model' must be a non-empty string.")
    return model


def _flag(fields: Json, name: str) -> bool:
    value = fields.pop(name, None)
    if value is not None and not isinstance(value, bool):
        raise invalid(name, f"'{name}' must be true or false.")
    return bool(value)


def _stream_usage(options: Any) -> bool:
    if options is None:
        return False
    if not isinstance(options, dict):
        raise invalid("stream_options", "'stream_options' must be an object.")
    return _flag(options, "include_usage")


def _log_probs(fields: Json) -> tuple[bool, int | None]:
    want, top = _flag(fields, "logprobs"), fields.pop("top_logprobs", None)
    if top is None:
        return want, None
    if type(top) is not int or not 0 <= top <= 20:
        raise invalid("top_logprobs", "'top_logprobs' must be a whole number from 0 to 20.")
    if not want and top:
        raise invalid("top_logprobs", "'top_logprobs' needs 'logprobs' to be true.")
    return want, top


def _tool_choice(value: Any, tools: tuple[Json, ...]) -> Any:
    if value is None or value in TOOL_CHOICES:
        if value == "required" and not tools:
            raise invalid("tool_choice", "'tool_choice' asks for a tool call, and there are no 'tools'.")
        return value
    wanted = _named_tool(value)
    if wanted not in {tool["function"]["name"] for tool in tools}:
        raise invalid("tool_choice", f"'tool_choice' names the function {wanted!r}, which is not in 'tools'.")
    return value


def _named_tool(value: Any) -> str:
    function = value.get("function") if isinstance(value, dict) and value.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise invalid("tool_choice", "'tool_choice' must be 'none', 'auto', 'required' or name one function.")
    return name


def _response_format(value: Any) -> Json | None:
    if value is None:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise invalid("response_format", "'response_format' must be an object with a 'type'.")
    return value


def _sampling(fields: Json) -> Json:
    """The sampling fields that were sent; null is the same as not sent. Numbers are checked, not changed."""
    newer = fields.pop("max_completion_tokens", None)
    if newer is not None:
        fields["max_tokens"] = newer
    sent = {name: fields.pop(name) for name in SAMPLING_FIELDS & fields.keys()}
    if sent.get("stop") is not None:
        sent["stop"] = _stop(sent["stop"])
    sampling = {name: value for name, value in sorted(sent.items()) if value is not None and value != []}
    for name, value in sampling.items():
        _check_number(name, value)
    return sampling


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


def _extra(fields: Json) -> Json:
    """What is left. `return_token_ids` stays when it is true: the reply then holds the ids, as vLLM's does."""
    for name in CAPTURE_FIELDS:
        fields.pop(name, None)
    if not _flag(dict(fields), "return_token_ids"):
        fields.pop("return_token_ids", None)
    return fields
