"""Anthropic's Messages: what Claude Code, litellm's anthropic models, opencode and pi can speak.

`decode`, `tools` and `messages` read requests, `encode` and `stream` write replies, `errors` words refusals. How a
request becomes canonical chat, what is refused and what clients may act on: docs/decisions/0008-anthropic-messages.md.
"""

from collections.abc import Mapping, Sequence

import msgspec

from rolltape.chat import ChatRequest, Reply
from rolltape.errors import RequestError
from rolltape.wire import EncodedError, only
from rolltape.wire.anthropic_messages.decode import decode_request
from rolltape.wire.anthropic_messages.encode import encode_reply
from rolltape.wire.anthropic_messages.errors import encode_error
from rolltape.wire.anthropic_messages.stream import MessageStreamEncoder

TAGS = frozenset(
    {
        "anthropic-beta", "anthropic-version", "user-agent", "x-app", "x-claude-code-agent-id",
        "x-claude-code-session-id", "x-client-request-id", "x-litellm-session-id", "x-parent-session-id",
        "x-request-id", "x-session-affinity", "x-session-id", "x-stainless-read-timeout", "x-stainless-retry-count",
        "x-stainless-timeout",
    }
)  # fmt: skip
"""Headers by which harnesses tell sessions, sub-agents and retries apart."""


class AnthropicMessages:
    """The `anthropic_messages` wire protocol."""

    name = "anthropic_messages"
    paths: Sequence[str] = ("/v1/messages",)
    counting_paths: Sequence[str] = ("/v1/messages/count_tokens",)
    reply_prefix = "msg_"

    def decode(self, path: str, body: bytes, headers: Mapping[str, str]) -> ChatRequest:
        """The request in `body`. Raises `RequestError` naming the field at fault; never anything else."""
        return decode_request(body, counting=path.partition("?")[0] in self.counting_paths)

    def encode_reply(self, request: ChatRequest, reply: Reply) -> bytes:
        """`reply` as one `message` object; the model is named as the caller named it."""
        return encode_reply(request, reply)

    def encode_count(self, tokens: int) -> bytes:
        """`{"input_tokens": N}`."""
        return msgspec.json.encode({"input_tokens": tokens})

    def encoder(self, request: ChatRequest, *, reply_id: str, created: int) -> MessageStreamEncoder:
        """An encoder of named events from `message_start` to `message_stop`."""
        return MessageStreamEncoder(request, reply_id)

    def encode_error(self, error: RequestError) -> EncodedError:
        """`error` as Anthropic's error object; an overload is never a 429."""
        return encode_error(error)

    def tagged(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Session, agent and retry marks, names in lower case. Credentials are not among them."""
        return only(headers, TAGS)
