"""A Messages request's bytes to a `ChatRequest`. Any bytes either decode or raise `RequestError`.

Strategy: the body becomes a dict, each known field is taken out of it, checked and put into its OpenAI form, and what
is left (metadata, thinking, context_management, beta fields of any kind) is `aside`.
"""

from rolltape.chat import ChatRequest, Json
from rolltape.wire import openai_fields as fields_of
from rolltape.wire.anthropic_messages import messages as turns
from rolltape.wire.anthropic_messages import tools as kit
from rolltape.wire.anthropic_messages.errors import invalid, unsupported
from rolltape.wire.body import parse_object

REFUSED: fields_of.Refusals = {
    "n": (lambda v: v == 1, "only one choice a call is recorded"),
    "best_of": (lambda v: v == 1, "only one choice a call is recorded"),
    "use_beam_search": (lambda v: v is False, "beam search has no sampled tokens"),
    "echo": (lambda v: v is False, "a reply holds sampled tokens only"),
    "prompt": (lambda v: False, "prompts are rendered from 'messages'"),
    "prompt_token_ids": (lambda v: False, "prompts are rendered from 'messages'"),
    "prompt_logprobs": (lambda v: v is False, "only sampled tokens have log-probs"),
    "logprobs": (lambda v: v is False, "a message has no place for log-probs"),
    "top_logprobs": (lambda v: v == 0, "a message has no place for log-probs"),
    "stop": (lambda v: v == [], "use 'stop_sequences'"),
}
"""Fields that no Messages client sends, and that engines would take to mean something else if they were passed on."""


def decode_request(body: bytes, *, counting: bool) -> ChatRequest:
    """The request in `body`. `counting`: it asks for a count only, so `max_tokens` may be missing.

    Raises `RequestError`: 400 naming the field, or 403 where only a vendor's cloud could answer.
    """
    fields = parse_object(body)
    fields_of.refuse(fields, REFUSED)
    tools = kit.read(fields.pop("tools", None))
    messages = turns.read(fields.pop("system", None), fields.pop("messages", None), tools.deferred)
    if messages[-1].role == "assistant" and not counting:
        raise unsupported("messages", "'messages' must not end with an assistant message: replies are not prefilled.")
    choice = kit.choice(fields.pop("tool_choice", None), tools)
    return ChatRequest(
        model=fields_of.model(fields),
        sampling=_sampling(fields, counting=counting),
        tools=tools.shown,
        tool_choice=choice.value,
        response_format=_response_format(fields),
        stream=fields_of.flag(fields, "stream"),
        messages=messages,
        extra=choice.extra,
        aside={**_kept(fields), **tools.aside},
    )


def _sampling(fields: Json, *, counting: bool) -> Json:
    stops = fields.pop("stop_sequences", None)
    if stops is not None:
        if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
            raise invalid("stop_sequences", "'stop_sequences' must be a list of non-empty strings.")
        fields["stop"] = stops
    sampling = fields_of.sampling(fields)
    if "max_tokens" not in sampling and not counting:
        raise invalid("max_tokens", "'max_tokens' is required.")
    return sampling


def _response_format(fields: Json) -> Json | None:
    """The JSON schema of `output_config.format`, or of the older `output_format`, in OpenAI's form."""
    config = fields.get("output_config")
    if config is not None and not isinstance(config, dict):
        raise invalid("output_config", "'output_config' must be an object.")
    name, form = "output_format", fields.pop("output_format", None)
    if config and config.get("format") is not None:
        name, form = "output_config.format", config["format"]
        fields["output_config"] = {key: value for key, value in config.items() if key != "format"}
    if form is None:
        return None
    if not isinstance(form, dict) or form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict):
        raise invalid(name, f"'{name}' must be an object with the type 'json_schema' and a 'schema'.")
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": form["schema"], "strict": True}}


def _kept(fields: Json) -> Json:
    """What is left, but for what changes no token (a cache mark) and what only asks how an engine tells its answer."""
    for name in ("cache_control", "return_token_ids", "stream_options", *fields_of.CAPTURE_FIELDS):
        fields.pop(name, None)
    return fields
