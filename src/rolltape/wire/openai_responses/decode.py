"""A Responses request's bytes to a `ChatRequest`. Any bytes either decode or raise `RequestError` (400).

Strategy: as for chat, each known field is taken out of the body and checked. What chat knows too gets chat's name and
form (`text.format`, `reasoning.effort`...); what only this dialect knows is kept in `aside`, so that an
engine can tell it from fields that it may be sent.
"""

from typing import Any

from rolltape.chat import ChatRequest, Json, Message
from rolltape.wire import openai_fields as common
from rolltape.wire.body import parse_object
from rolltape.wire.openai_errors import invalid, unsupported
from rolltape.wire.openai_responses.items import Transcript
from rolltape.wire.openai_responses.tools import Toolbox

NO_STORE = "replies are not kept for later requests: send the whole input"
REFUSED: common.Refusals = {
    "previous_response_id": (lambda v: False, NO_STORE),
    "conversation": (lambda v: False, NO_STORE),
    "background": (lambda v: v is False, "a reply goes to the request that asked for it"),
    "prompt": (lambda v: False, "prompt templates are kept by the vendor: send the text itself"),
    "context_management": (lambda v: v == [], "the input is used as it is sent"),
    "n": (lambda v: v == 1, "only one choice a call is recorded"),
    "top_logprobs": (lambda v: v == 0, "only sampled tokens have log-probs"),
    "return_token_ids": (lambda v: v is False, "this dialect has no place for ids"),
}
LOG_PROBS = "message.output_text.logprobs"
SEALED = "reasoning.encrypted_content"
OWN = ("include", "client_metadata", "truncation", "max_tool_calls", "reasoning", "text", "stream_options")
"""Fields that no chat endpoint knows."""


def decode_request(body: bytes) -> ChatRequest:
    """The request in `body`, nothing lost that has a meaning. Raises `RequestError` (400)."""
    fields = parse_object(body)
    common.refuse(fields, REFUSED)
    _include(fields.get("include"))
    toolbox = Toolbox()
    toolbox.add(fields.pop("tools", None), "tools")
    transcript = Transcript(toolbox)
    messages = (*_instructions(fields), *_input(fields.pop("input", None), transcript))
    response_format = _text(fields)
    _effort(fields)
    return ChatRequest(
        model=common.model(fields),
        sampling=_sampling(fields),
        tool_choice=toolbox.choice(fields.pop("tool_choice", None)),
        tools=toolbox.shown(),
        response_format=response_format,
        stream=common.flag(fields, "stream"),
        messages=messages,
        aside=_aside(fields, toolbox, transcript),
        extra=common.rest(fields),
    )


def wants_sealed_reasoning(request: ChatRequest) -> bool:
    """Whether the caller asked for `encrypted_content`."""
    return SEALED in (request.aside.get("include") or ())


def _include(value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise invalid("include", "'include' must be a list of strings.")
    if LOG_PROBS in value:
        raise unsupported("include", f"{LOG_PROBS!r} cannot be honoured: tokens are not told apart by output item.")


def _instructions(fields: Json) -> tuple[Message, ...]:
    value = fields.pop("instructions", None)
    if value is None:
        return ()
    if not isinstance(value, str):
        raise invalid("instructions", "'instructions' must be a string.")
    return (Message(role="system", content=value),)


def _input(value: Any, transcript: Transcript) -> tuple[Message, ...]:
    if isinstance(value, str):
        return (Message(role="user", content=value),)
    if value is None:
        raise invalid("input", "Missing required parameter: 'input'.")
    if not isinstance(value, list) or not value:
        raise invalid("input", "'input' must be a string or a list of at least one item.")
    for index, item in enumerate(value):
        transcript.add(item, f"input[{index}]")
    return transcript.end()


def _sampling(fields: Json) -> Json:
    limit = fields.pop("max_output_tokens", None)
    if limit is None:
        return common.sampling(fields)
    if type(limit) is not int or not 1 <= limit < common.INT_LIMIT:
        raise invalid("max_output_tokens", "'max_output_tokens' must be a whole number of at least 1.")
    return common.sampling(fields | {"max_tokens": limit, "max_completion_tokens": None})


def _text(fields: Json) -> Json | None:
    """`text.format` in the form of chat's `response_format`; `verbosity` under chat's name."""
    text = _object(fields, "text")
    if text.get("verbosity") is not None:
        fields["verbosity"] = text["verbosity"]
    form = text.get("format")
    kind = form.get("type") if isinstance(form, dict) else None
    if form is None or kind == "text":
        return None
    if kind == "json_object":
        return {"type": kind}
    if kind != "json_schema" or not isinstance(form.get("schema"), dict):
        raise invalid("text.format", "'text.format' must be text, json_object or json_schema with a 'schema'.")
    return {"type": kind, kind: {key: value for key, value in form.items() if key != "type"}}


def _effort(fields: Json) -> None:
    effort = _object(fields, "reasoning").get("effort")
    if effort is not None:
        fields.setdefault("reasoning_effort", effort)


def _object(fields: Json, name: str) -> Json:
    value = fields.get(name)
    if value is not None and not isinstance(value, dict):
        raise invalid(name, f"'{name}' must be an object.")
    return value or {}


def _aside(fields: Json, toolbox: Toolbox, transcript: Transcript) -> Json:
    """What only this dialect knows; taken out of `fields`."""
    own = {name: fields.pop(name) for name in OWN if name in fields} | toolbox.remembered()
    if transcript.unseen:
        own["unseen_items"] = transcript.unseen
    return own
