"""OpenAI's Responses: what Codex speaks, and mini-swe-agent, opencode, pi and openai-agents where they are told to.

`decode`, `items`, `parts` and `tools` read requests, `output` makes items and the response object, `stream` sends them
as events. What is kept, refused and translated: docs/decisions/0009-openai-responses.md.
"""

from collections.abc import Mapping, Sequence

import msgspec

from rolltape.chat import ChatRequest, Reply
from rolltape.errors import RequestError
from rolltape.wire import EncodedError, only
from rolltape.wire.openai_errors import encode_error
from rolltape.wire.openai_responses.decode import decode_request
from rolltape.wire.openai_responses.output import Items, ended, response
from rolltape.wire.openai_responses.stream import ResponsesStreamEncoder

TAGS = frozenset(
    {
        "originator", "session-id", "thread-id", "user-agent", "x-client-request-id", "x-codex-beta-features",
        "x-codex-parent-thread-id", "x-codex-turn-metadata", "x-codex-window-id", "x-openai-subagent",
        "x-parent-session-id", "x-request-id", "x-session-affinity", "x-session-id", "x-stainless-retry-count",
    }
)  # fmt: skip
"""Headers by which harnesses tell sessions, threads, sub-agents, compactions and retries apart."""
OVERLOADED = 503
"""Codex ends its run at 429 and asks again after this."""


class OpenAIResponses:
    """The `openai_responses` wire protocol."""

    name = "openai_responses"
    paths: Sequence[str] = ("/v1/responses", "/responses")
    counting_paths: Sequence[str] = ("/v1/responses/input_tokens",)
    reply_prefix = "resp_"

    def decode(self, path: str, body: bytes, headers: Mapping[str, str]) -> ChatRequest:
        """The request in `body`. Raises `RequestError` (400) naming the field at fault; never anything else."""
        return decode_request(body)

    def encode_reply(self, request: ChatRequest, reply: Reply) -> bytes:
        """`reply` as one response object; the model is named as the caller named it."""
        end = ended(reply.finish_reason, Items(request, reply.id).of(reply), reply.usage)
        return msgspec.json.encode(response(request, reply.id, reply.created, **end))

    def encode_count(self, tokens: int) -> bytes:
        """The answer of `/v1/responses/input_tokens`."""
        return msgspec.json.encode({"object": "response.input_tokens", "input_tokens": tokens})

    def encoder(self, request: ChatRequest, *, reply_id: str, created: int) -> ResponsesStreamEncoder:
        """An encoder of `response.*` events."""
        return ResponsesStreamEncoder(request, reply_id, created)

    def encode_error(self, error: RequestError) -> EncodedError:
        """`error` as OpenAI's error object, with its own status unless that is 429."""
        if error.status == 429:
            error = RequestError(OVERLOADED, error.code, error.message, param=error.param, hint=error.hint)
        return encode_error(error)

    def tagged(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Session, thread, agent and retry marks, names in lower case. Credentials are not among them."""
        return only(headers, TAGS)
