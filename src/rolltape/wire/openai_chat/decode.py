"""A chat request's bytes to a `ChatRequest`. Any bytes either decode or raise `RequestError` (400).

Strategy: the body becomes a dict, each known field is taken out of it and checked, and what is left is `extra`. Fields
that would change what the reply means and that cannot be honoured are refused by name; fields that only a vendor's
cloud knows stay in `extra`.
"""

from typing import Any

from rolltape.chat import ChatRequest, Json
from rolltape.wire import openai_fields as common
from rolltape.wire.body import parse_object
from rolltape.wire.openai_chat import messages as parts
from rolltape.wire.openai_errors import invalid, unsupported

TOOL_CHOICES = ("none", "auto", "required")


def _is_text_only(value: Any) -> bool:
    return bool(value == ["text"])


REFUSED: common.Refusals = {
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


def decode_request(body: bytes) -> ChatRequest:
    """The request in `body`, nothing lost that has a meaning. Raises `RequestError` (400)."""
    fields = parse_object(body)
    common.refuse(fields, REFUSED)
    tools = parts.tools(fields.pop("tools", None))
    return ChatRequest(
        model=common.model(fields),
        sampling=common.sampling(fields),
        tools=tools,
        tool_choice=_tool_choice(fields.pop("tool_choice", None), tools),
        response_format=_response_format(fields.pop("response_format", None)),
        stream=common.flag(fields, "stream"),
        stream_usage=common.stream_usage(fields.pop("stream_options", None)),
        want_log_probs=_log_probs(fields),
        messages=parts.messages(fields.pop("messages", None)),
        extra=common.rest(fields),
    )


def _log_probs(fields: Json) -> bool:
    want, top = common.flag(fields, "logprobs"), fields.pop("top_logprobs", None)
    if top is not None and (type(top) is not int or not 0 <= top <= 20):
        raise invalid("top_logprobs", "'top_logprobs' must be a whole number from 0 to 20.")
    if top:
        raise unsupported("top_logprobs", "'top_logprobs' above 0 is not supported: only sampled tokens are known.")
    return want


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
