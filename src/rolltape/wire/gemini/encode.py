"""Replies as `GenerateContentResponse` objects, and the values that a whole reply and a stream share.

A call's id and the signature on its part name the call that sampled it: clients send both back as they got them.
"""

import base64
from typing import assert_never

import msgspec

from rolltape.chat import ChatRequest, FinishReason, Json, Reply, Usage
from rolltape.wire import ListedModel
from rolltape.wire.gemini.contents import UNPARSED
from rolltape.wire.gemini.decode import includes_thoughts

METHODS = ["generateContent", "countTokens"]


def encode_reply(request: ChatRequest, reply: Reply) -> bytes:
    """The body of a reply that is not streamed. Thoughts are in it where the caller asked for them."""
    said = reply.message
    parts: list[Json] = []
    if said.reasoning and includes_thoughts(request):
        parts.append({"text": said.reasoning, "thought": True})
    if said.text() or not said.tool_calls:
        parts.append({"text": said.text()} | ({} if said.tool_calls else {"thoughtSignature": signature(reply.id, 0)}))
    for number, call in enumerate(said.tool_calls):
        parts.append(function_call(reply.id, number, call.id, call.name, call.arguments))
    body = response(request, reply.id, parts, finish_reason(reply.finish_reason), usage(reply.usage))
    return msgspec.json.encode(body)


def response(
    request: ChatRequest, reply_id: str, parts: list[Json], finish: str | None = None, counts: Json | None = None
) -> Json:
    """One response object: a whole reply, or a chunk of a stream."""
    candidate: Json = {"content": {"role": "model", "parts": parts}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    body: Json = {"candidates": [candidate], "modelVersion": request.model, "responseId": reply_id}
    return body if counts is None else body | {"usageMetadata": counts}


def usage(counts: Usage) -> Json:
    """Token counts as the protocol has them: candidates and thoughts apart, cached ones within the prompt's."""
    thoughts = min(counts.reasoning_tokens or 0, counts.completion_tokens)
    told = {
        "promptTokenCount": counts.prompt_tokens,
        "candidatesTokenCount": counts.completion_tokens - thoughts,
        "totalTokenCount": counts.prompt_tokens + counts.completion_tokens,
    }
    told |= {"thoughtsTokenCount": thoughts} if thoughts else {}
    return told | ({"cachedContentTokenCount": counts.cached_tokens} if counts.cached_tokens else {})


def finish_reason(finish: FinishReason) -> str:
    """The protocol's word for how generation ended; a call of a function is an ordinary stop."""
    match finish:
        case "stop" | "tool_calls":
            return "STOP"
        case "length":
            return "MAX_TOKENS"
        case "content_filter":
            return "SAFETY"
        case _:
            assert_never(finish)


def function_call(reply_id: str, number: int, call_id: str | None, name: str, arguments: str) -> Json:
    """Call `number` of a reply as a part. The id is the engine's, or one made of the reply's."""
    call = {"id": call_id or f"{reply_id}_{number}", "name": name, "args": _args(arguments)}
    return {"functionCall": call, "thoughtSignature": signature(reply_id, number)}


def signature(reply_id: str, number: int) -> str:
    """Of part `number`: unique, base64 as clients expect it, and it names the call when a harness echoes the part."""
    return base64.b64encode(f"rolltape.{reply_id}.{number}".encode()).decode()


def encode_models(models: list[ListedModel]) -> bytes:
    """The body of a list of models."""
    return msgspec.json.encode({"models": [_card(model) for model in models]})


def encode_model(model: ListedModel) -> bytes:
    """One model."""
    return msgspec.json.encode(_card(model))


def _card(model: ListedModel) -> Json:
    card: Json = {
        "name": f"models/{model.name}",
        "version": "",
        "displayName": model.name,
        "supportedGenerationMethods": METHODS,
    }
    limit = model.context_length
    return card if limit is None else card | {"inputTokenLimit": limit, "outputTokenLimit": limit}


def _args(arguments: str) -> Json:
    """The arguments as an object. Text that is none goes in a wrapping: no argument is invented."""
    if not arguments.strip():
        return {}
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return {UNPARSED: arguments}
    return value if isinstance(value, dict) else {UNPARSED: arguments}
