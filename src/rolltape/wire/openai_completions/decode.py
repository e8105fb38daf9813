"""A completion request's bytes to a `ChatRequest` with a raw prompt. Any bytes decode or raise `RequestError` (400)."""

from typing import Any

from rolltape.chat import ChatRequest, Json
from rolltape.errors import EntryError
from rolltape.tokens import token_ids
from rolltape.wire import openai_fields as common
from rolltape.wire.body import parse_object
from rolltape.wire.openai_errors import invalid, unsupported

REFUSED: common.Refusals = {
    "n": (lambda v: v == 1, "only one choice a call is recorded"),
    "best_of": (lambda v: v == 1, "only one choice a call is recorded"),
    "use_beam_search": (lambda v: v is False, "beam search has no sampled tokens"),
    "echo": (lambda v: v is False, "a reply holds sampled tokens only"),
    "suffix": (lambda v: v == "", "text is only ever continued"),
    "prompt_embeds": (lambda v: False, "prompts are text or token ids"),
    "prompt_logprobs": (lambda v: v is False, "only sampled tokens have log-probs"),
}
DEFAULT_MAX_TOKENS = 16
"""What this protocol means by no `max_tokens`; clients rely on it."""


def decode_request(body: bytes) -> ChatRequest:
    """The request in `body`, nothing lost that has a meaning. Raises `RequestError` (400)."""
    fields = parse_object(body)
    common.refuse(fields, REFUSED)
    return ChatRequest(
        model=common.model(fields),
        sampling={"max_tokens": DEFAULT_MAX_TOKENS} | common.sampling(fields),
        response_format=_object(fields, "response_format"),
        stream=common.flag(fields, "stream"),
        stream_usage=common.stream_usage(fields.pop("stream_options", None)),
        want_log_probs=_log_probs(fields),
        prompt=_prompt(fields.pop("prompt", None)),
        extra=common.rest(fields),
    )


def _prompt(value: Any) -> str | tuple[int, ...]:
    """One prompt. A list that holds just one is that one."""
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > 1:
            raise unsupported("prompt", f"'prompt' holds {len(value)} prompts: only one a call is recorded.")
        value = value[0]
    if isinstance(value, str) and value:
        return value
    if not isinstance(value, list) or not value:
        raise invalid("prompt", "'prompt' must be a non-empty string or list of token ids.")
    return _ids(value)


def _ids(value: list[Any]) -> tuple[int, ...]:
    if not all(type(token) is int for token in value):
        raise invalid("prompt", "'prompt' must be one string or one list of token ids.")
    try:
        return tuple(token_ids(value).tolist())
    except EntryError as error:
        raise invalid("prompt", f"'prompt' is no list of token ids: {error.message}") from error


def _log_probs(fields: Json) -> bool:
    """Whether log-probs were asked for; the number is one of alternatives, which are not known here."""
    asked = fields.pop("logprobs", None)
    if asked is not None and (type(asked) is not int or not 0 <= asked <= 20):
        raise invalid("logprobs", "'logprobs' must be a whole number from 0 to 20.")
    return asked is not None


def _object(fields: Json, name: str) -> Json | None:
    value = fields.pop(name, None)
    if value is not None and (not isinstance(value, dict) or not isinstance(value.get("type"), str)):
        raise invalid(name, f"'{name}' must be an object with a 'type'.")
    return value
