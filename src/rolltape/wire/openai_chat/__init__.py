"""OpenAI's Chat Completions: what mini-swe-agent, qwen-code, opencode, pi, cline and most SDKs speak.

`decode` and `messages` read requests, `encode` writes replies and streams, `errors` words refusals. What is kept, what
is refused and the few things that are normalised: docs/decisions/0005-canonical-chat.md.
"""

from collections.abc import Mapping, Sequence

from rolltape.chat import ChatRequest, Reply
from rolltape.errors import RequestError
from rolltape.wire import EncodedError, only
from rolltape.wire.openai_chat.decode import decode_request
from rolltape.wire.openai_chat.encode import ChatStreamEncoder, encode_reply
from rolltape.wire.openai_errors import encode_error

TAGS = frozenset(
    {
        "user-agent", "x-client-request-id", "x-litellm-session-id", "x-parent-session-id", "x-request-id",
        "x-session-affinity", "x-session-id", "x-stainless-retry-count",
    }
)  # fmt: skip
"""Headers by which harnesses tell sessions, sub-agents and retries apart."""


class OpenAIChat:
    """The `openai_chat` wire protocol."""

    name = "openai_chat"
    paths: Sequence[str] = ("/v1/chat/completions", "/chat/completions")
    counting_paths: Sequence[str] = ()
    reply_prefix = "chatcmpl-"

    def decode(self, path: str, body: bytes, headers: Mapping[str, str]) -> ChatRequest:
        """The request in `body`. Raises `RequestError` (400) naming the field at fault; never anything else."""
        return decode_request(body)

    def encode_reply(self, request: ChatRequest, reply: Reply) -> bytes:
        """`reply` as one `chat.completion` object; the model is named as the caller named it."""
        return encode_reply(request, reply)

    def encode_count(self, tokens: int) -> bytes:
        """Chat Completions has no counting route."""
        raise NotImplementedError

    def encoder(self, request: ChatRequest, *, reply_id: str, created: int) -> ChatStreamEncoder:
        """An encoder of `chat.completion.chunk` events."""
        return ChatStreamEncoder(request, reply_id, created)

    def encode_error(self, error: RequestError) -> EncodedError:
        """`error` as OpenAI's error object, with its own status."""
        return encode_error(error)

    def tagged(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Session, agent and retry marks, names in lower case. Credentials are not among them."""
        return only(headers, TAGS)
