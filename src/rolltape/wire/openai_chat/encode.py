"""Replies as `chat.completion` objects and streams as `chat.completion.chunk` events.

Clients act on the finish chunk: only then do they run tools. So the finish chunk and what follows it (usage, `[DONE]`)
are the acting frames, and nothing before them is. A stream that broke ends with an error frame, without a finish
reason and without `[DONE]`, so that no client can take it for a whole reply.

Ids and log-probs reach the caller only where it asked: `logprobs` as OpenAI, `return_token_ids` as vLLM does. A
log-prob that the engine did not give is null, never a number.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, assert_never

import msgspec

from rolltape import sse
from rolltape.chat import ChatRequest, Delta, EngineEvent, Finished, Json, Reply, Started, ToolCallDelta, Usage
from rolltape.errors import RequestError
from rolltape.wire import Frame
from rolltape.wire.openai_errors import error_object
from rolltape.wire.openai_fields import wants_ids


def encode_reply(request: ChatRequest, reply: Reply) -> bytes:
    """The body of a reply that is not streamed."""
    choice: Json = {"index": 0, "message": _message(reply), "finish_reason": reply.finish_reason, "logprobs": None}
    if request.want_log_probs:
        choice["logprobs"] = _log_probs(reply.token_ids, reply.log_probs, reply.token_texts)
    body: Json = {
        "id": reply.id,
        "object": "chat.completion",
        "created": reply.created,
        "model": request.model,
        "choices": [choice],
        "usage": _usage(reply.usage),
    }
    if wants_ids(request):
        choice["token_ids"] = reply.token_ids
        body["prompt_token_ids"] = None if reply.prompt_token_ids is None else reply.prompt_token_ids.tolist()
    return msgspec.json.encode(body)


class ChatStreamEncoder:
    """One streamed reply. Token counts are the engine's where it gives them, else those that passed by."""

    content_type = sse.CONTENT_TYPE

    def __init__(self, request: ChatRequest, reply_id: str, created: int) -> None:
        self._request = request
        self._head: Json = {
            "id": reply_id,
            "object": "chat.completion.chunk",
            "created": created,
            "model": request.model,
        }
        self._prompt_tokens: int | None = None
        self._sampled = 0
        self._calls: list[tuple[int, str | None]] = []  # (the engine's index, id) of each tool call, in order

    def open(self) -> Sequence[Frame]:
        """The chunk that names the role."""
        return [self._choice({"role": "assistant", "content": ""})]

    def encode(self, event: EngineEvent) -> Sequence[Frame]:
        """Chunks for one event; none where it shows nothing that the caller asked for."""
        match event:
            case Started():
                return self._started(event)
            case Delta():
                return self._delta(event)
            case Finished():
                return self._finished(event)
            case _:
                assert_never(event)

    def keep_alive(self) -> Frame:
        """A chunk without choices: qwen-code ends a stream that is silent for 240 s and does not count comments."""
        return self._chunk({"choices": []})

    def error(self, error: RequestError) -> Sequence[Frame]:
        """The error frame that SDKs raise on."""
        return [Frame(sse.frame(msgspec.json.encode(error_object(error))))]

    def _started(self, event: Started) -> Sequence[Frame]:
        if event.prompt_token_ids is None:
            return []
        self._prompt_tokens = len(event.prompt_token_ids)
        if not wants_ids(self._request):
            return []
        return [self._choice({}, more={"prompt_token_ids": event.prompt_token_ids.tolist()})]

    def _delta(self, event: Delta) -> Sequence[Frame]:
        self._sampled += len(event.token_ids)
        delta: Json = {}
        if event.reasoning:
            delta["reasoning_content"] = event.reasoning
        if event.text:
            delta["content"] = event.text
        if event.tool_calls:
            delta["tool_calls"] = [self._tool_call(call) for call in event.tool_calls]
        asked = self._asked_for(event)
        return [self._choice(delta, **asked)] if delta or asked else []

    def _asked_for(self, event: Delta) -> Json:
        if not event.token_ids:
            return {}
        asked: Json = {}
        if self._request.want_log_probs:
            asked["logprobs"] = _log_probs(event.token_ids, event.log_probs, event.token_texts)
        if wants_ids(self._request):
            asked["token_ids"] = event.token_ids
        return asked

    def _tool_call(self, call: ToolCallDelta) -> Json:
        """A new id starts a new call, whatever index it came with: glued arguments would poison the history."""
        known = [place for place, (index, _) in enumerate(self._calls) if index == call.index]
        starts = not known or (call.id is not None and self._calls[known[-1]][1] not in (None, call.id))
        if starts:
            self._calls.append((call.index, call.id))
        place = len(self._calls) - 1 if starts else known[-1]
        body: Json = {"index": place, "function": {"arguments": call.arguments}}
        if call.id is not None:
            body |= {"id": call.id, "type": "function"}
        if call.name is not None:
            body["function"] = {"name": call.name, "arguments": call.arguments}
        return body

    def _finished(self, event: Finished) -> Sequence[Frame]:
        frames = [self._choice({}, finish_reason=event.finish_reason, acting=True)]
        if self._request.stream_usage and self._prompt_tokens is not None:
            sampled = self._sampled if event.completion_tokens is None else event.completion_tokens
            usage = _usage(Usage(self._prompt_tokens, sampled, event.cached_tokens))
            frames.append(self._chunk({"choices": [], "usage": usage}, acting=True))
        return [*frames, Frame(sse.frame(b"[DONE]"), acting=True)]

    def _choice(
        self,
        delta: Json,
        *,
        finish_reason: str | None = None,
        acting: bool = False,
        more: Json | None = None,
        **asked: Any,
    ) -> Frame:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason, **asked}
        return self._chunk({"choices": [choice], **(more or {})}, acting=acting)

    def _chunk(self, body: Json, *, acting: bool = False) -> Frame:
        return Frame(sse.frame(msgspec.json.encode(self._head | body)), acting)


def _message(reply: Reply) -> Json:
    message = reply.message
    body: Json = {"role": "assistant", "content": message.content}
    if message.reasoning is not None:
        body["reasoning_content"] = message.reasoning
    if message.tool_calls:
        body["tool_calls"] = message.to_openai()["tool_calls"]
    return body


def _usage(usage: Usage) -> Json:
    total = usage.prompt_tokens + usage.completion_tokens
    body: Json = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": total,
    }
    if usage.cached_tokens is not None:
        body["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    return body


def _log_probs(ids: Sequence[int], values: Sequence[float | None], texts: Sequence[str]) -> Json:
    """One item a token id. Only sampled tokens are known here, so the lists of alternatives are empty."""
    shown = texts if len(texts) == len(ids) else [f"token_id:{token}" for token in ids]
    given = zip_longest(shown, values[: len(ids)])
    return {
        "content": [
            {"token": text, "logprob": value, "bytes": _bytes(text), "top_logprobs": []} for text, value in given
        ]
    }


def _bytes(text: str) -> list[int] | None:
    """None where the text stands for bytes that are no text by themselves."""
    return None if "\ufffd" in text or text.startswith(("token_id:", "<0x")) else list(text.encode())
