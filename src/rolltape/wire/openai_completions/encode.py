"""Completions as `text_completion` objects, whole and in chunks.

The finish chunk and what follows it are the acting frames. Log-probs go to those who ask, one a sampled token, null
where the engine gave none; `text_offset` is where the text that was visible before the token ends. `return_token_ids`
gives ids as vLLM does.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import assert_never

import msgspec

from rolltape import sse
from rolltape.chat import ChatRequest, Delta, EngineEvent, Finished, FinishReason, Json, Reply, Started, Usage
from rolltape.errors import RequestError
from rolltape.wire import Frame
from rolltape.wire.openai_errors import error_object
from rolltape.wire.openai_fields import wants_ids


def encode_reply(request: ChatRequest, reply: Reply) -> bytes:
    """The body of a reply that is not streamed."""
    choice = _choice(reply.message.text(), _finish(reply.finish_reason))
    if request.want_log_probs:
        choice["logprobs"] = _log_probs(reply.token_ids, reply.log_probs, reply.token_texts, 0)
    if wants_ids(request):
        choice["token_ids"] = reply.token_ids
        known = reply.prompt_token_ids
        choice["prompt_token_ids"] = None if known is None else known.tolist()
    head = {"id": reply.id, "object": "text_completion", "created": reply.created, "model": request.model}
    return msgspec.json.encode({**head, "choices": [choice], "usage": _usage(reply.usage)})


class CompletionStreamEncoder:
    """One streamed completion."""

    content_type = sse.CONTENT_TYPE

    def __init__(self, request: ChatRequest, reply_id: str, created: int) -> None:
        self._request = request
        self._head = {"id": reply_id, "object": "text_completion", "created": created, "model": request.model}
        self._prompt_tokens: int | None = None
        self._sampled = self._shown = 0

    def open(self) -> Sequence[Frame]:
        """Nothing: the first chunk has text."""
        return []

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
        """A chunk without choices, as in chat."""
        return self._chunk([])

    def error(self, error: RequestError) -> Sequence[Frame]:
        """The error frame that SDKs raise on."""
        return [Frame(sse.frame(msgspec.json.encode(error_object(error))))]

    def _started(self, event: Started) -> Sequence[Frame]:
        known = event.prompt_token_ids
        self._prompt_tokens = None if known is None else len(known)
        if known is None or not wants_ids(self._request):
            return []
        return [self._chunk([_choice("", None) | {"prompt_token_ids": known.tolist()}])]

    def _delta(self, event: Delta) -> Sequence[Frame]:
        choice = _choice(event.text, None)
        if event.token_ids and self._request.want_log_probs:
            choice["logprobs"] = _log_probs(event.token_ids, event.log_probs, event.token_texts, self._shown)
        if event.token_ids and wants_ids(self._request):
            choice["token_ids"] = event.token_ids
        self._sampled += len(event.token_ids)
        self._shown += sum(map(len, event.token_texts)) if event.token_texts else len(event.text)
        return [self._chunk([choice])] if event.text or choice["logprobs"] or "token_ids" in choice else []

    def _finished(self, event: Finished) -> Sequence[Frame]:
        frames = [self._chunk([_choice("", _finish(event.finish_reason))], acting=True)]
        if self._request.stream_usage and self._prompt_tokens is not None:
            sampled = self._sampled if event.completion_tokens is None else event.completion_tokens
            usage = _usage(Usage(self._prompt_tokens, sampled, event.cached_tokens))
            frames.append(self._chunk([], acting=True, usage=usage))
        return [*frames, Frame(sse.frame(b"[DONE]"), acting=True)]

    def _chunk(self, choices: list[Json], *, acting: bool = False, **more: Json) -> Frame:
        return Frame(sse.frame(msgspec.json.encode({**self._head, "choices": choices, **more})), acting)


def _choice(text: str, finish_reason: str | None) -> Json:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}


def _finish(reason: FinishReason) -> str:
    """There are no tool calls here: an engine that ended with one ended by itself."""
    return "stop" if reason == "tool_calls" else reason


def _usage(usage: Usage) -> Json:
    total = usage.prompt_tokens + usage.completion_tokens
    body: Json = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
    known = {} if usage.cached_tokens is None else {"prompt_tokens_details": {"cached_tokens": usage.cached_tokens}}
    return body | {"total_tokens": total} | known


def _log_probs(ids: Sequence[int], values: Sequence[float | None], texts: Sequence[str], offset: int) -> Json:
    """One item a token id. Only sampled tokens are known here, so there are no alternatives."""
    tokens = list(texts) if len(texts) == len(ids) else [f"token_id:{token}" for token in ids]
    offsets = []
    for text in tokens:
        offsets.append(offset)
        offset += len(text)
    told = [value for _, value in zip_longest(tokens, values[: len(ids)])]
    return {"tokens": tokens, "token_logprobs": told, "top_logprobs": None, "text_offset": offsets}
