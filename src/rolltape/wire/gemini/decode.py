"""A request's bytes to a `ChatRequest`. Any bytes either decode or raise `RequestError` (400).

Strategy: the body becomes a dict, each known field is taken out of it, checked and put into its OpenAI form. At the top
what is left is `aside`: safety settings, labels, whatever only the vendor's cloud knows. Within `generationConfig` an
unknown field is refused by name, since each one there steers the generation; so are unknown kinds of parts.
"""

from collections.abc import Mapping
from typing import Any

from rolltape.chat import ChatRequest, Json
from rolltape.wire import openai_fields
from rolltape.wire.body import parse_object
from rolltape.wire.gemini import contents as turns
from rolltape.wire.gemini import tools as kit
from rolltape.wire.gemini.errors import invalid, unsupported
from rolltape.wire.gemini.fields import listed, shown, string, taken
from rolltape.wire.gemini.schema import json_schema

SAMPLING: Mapping[str, str] = {
    "temperature": "temperature", "topP": "top_p", "topK": "top_k", "maxOutputTokens": "max_tokens",
    "stopSequences": "stop", "seed": "seed", "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
}  # fmt: skip
WHOLE = ("topK", "maxOutputTokens", "seed")
"""Numbers without a fraction, which SDKs may send as 40.0."""

TOLERATED = ("thinkingConfig", "routingConfig", "modelSelectionConfig", "enableEnhancedCivicAnswers")
"""Of `generationConfig`: kept, and told to no engine."""

HARMLESS: openai_fields.Refusals = {
    "candidateCount": (lambda v: v == 1, "only one candidate a call is recorded"),
    "responseModalities": (lambda v: [str(m).upper() for m in v] in ([], ["TEXT"]), "replies are text"),
    "responseLogprobs": (lambda v: v is False, "candidates are sent without log-probs"),
    "logprobs": (lambda v: v == 0, "candidates are sent without log-probs"),
    "mediaResolution": (lambda v: v == "MEDIA_RESOLUTION_UNSPECIFIED", "images are shown as they are"),
    "speechConfig": (lambda v: v == {}, "replies are text"),
    "imageConfig": (lambda v: v == {}, "replies are text"),
    "audioTimestamp": (lambda v: v is False, "there is no audio here"),
}
"""Of `generationConfig`: fields that are refused unless their value says what happens anyway."""

JSON_TYPE = "application/json"


def decode_request(model: str, body: bytes, *, stream: bool, counting: bool, alt: str) -> ChatRequest:
    """The request in `body` to the model named in its path. Raises `RequestError` (400) naming the field.

    `counting`: it asks for a count only, perhaps wrapped as `generateContentRequest`. `alt`: the form of a stream.
    """
    fields = taken(parse_object(body), "the body")
    if counting and "generateContentRequest" in fields:
        fields = taken(fields["generateContentRequest"], "generateContentRequest")
    fields.pop("model", None)
    if fields.get("cachedContent"):
        raise unsupported("cachedContent", "'cachedContent' cannot be honoured: contents are not stored here.")
    config = taken(fields.pop("generationConfig", {}), "generationConfig")
    tools = kit.read(fields.pop("tools", None))
    choice, tool_config = kit.choice(fields.pop("toolConfig", None), tools)
    messages = turns.read(fields.pop("systemInstruction", None), fields.pop("contents", None), counting=counting)
    aside = {"toolConfig": tool_config, "alt": alt, **tools.aside}
    return ChatRequest(
        model=model,
        response_format=_response_format(config),
        sampling=_sampling(config),
        tools=tools.shown,
        tool_choice=choice,
        stream=stream,
        stream_usage=stream,
        messages=messages,
        aside={**fields, **_kept(config), **{name: kept for name, kept in aside.items() if kept}},
    )


def _sampling(config: Json) -> Json:
    sent = {name: config.pop(name) for name in SAMPLING if name in config}
    if "stopSequences" in sent:
        stops = listed(sent["stopSequences"], "generationConfig.stopSequences")
        sent["stopSequences"] = [string(stop, "generationConfig.stopSequences") for stop in stops]
    for name in WHOLE:
        if isinstance(sent.get(name), float) and sent[name].is_integer():
            sent[name] = int(sent[name])
    if sent.get("maxOutputTokens") == 0:
        raise invalid("generationConfig.maxOutputTokens", "'generationConfig.maxOutputTokens' must be at least 1.")
    return openai_fields.sampling({SAMPLING[name]: value for name, value in sent.items()})


def _response_format(config: Json) -> Json | None:
    """What `responseMimeType` and a schema ask for, in OpenAI's form."""
    mime = config.pop("responseMimeType", None)
    spoken, exact = config.pop("responseSchema", None), config.pop("responseJsonSchema", None)
    schema = json_schema(spoken) if spoken is not None else exact
    if mime not in (None, "text/plain", JSON_TYPE):
        raise unsupported("generationConfig.responseMimeType", f"Replies of type {shown(mime)} are not supported.")
    if schema is None:
        return {"type": "json_object"} if mime == JSON_TYPE else None
    if mime != JSON_TYPE:
        raise invalid("generationConfig.responseMimeType", f"A response schema needs 'responseMimeType': {JSON_TYPE}.")
    if not isinstance(schema, dict):
        raise invalid("generationConfig.responseSchema", "A response schema must be an object.")
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": schema, "strict": True}}


def _kept(config: Json) -> Json:
    kept = {name: config.pop(name) for name in TOLERATED if name in config}
    for name, (harmless, why) in HARMLESS.items():
        value = config.pop(name, None)
        if value is not None and not (_is_iterable(name, value) and harmless(value)):
            field = f"generationConfig.{name}"
            raise unsupported(field, f"'{field}' cannot be honoured with this value: {why}.")
    if config:
        field = f"generationConfig.{next(iter(config))}"
        raise unsupported(field, f"'{field[:120]}' is not known here, and it may steer the generation.")
    return {"generationConfig": kept} if kept else {}


def _is_iterable(name: str, value: Any) -> bool:
    return name != "responseModalities" or isinstance(value, list)


def includes_thoughts(request: ChatRequest) -> bool:
    """Whether the caller wants to see thoughts; unless it says so, the protocol has none."""
    config = request.aside.get("generationConfig", {}).get("thinkingConfig")
    return isinstance(config, dict) and (config.get("includeThoughts") or config.get("include_thoughts")) is True
