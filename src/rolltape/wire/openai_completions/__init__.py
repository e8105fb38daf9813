"""OpenAI's legacy Completions: one prompt, as text or as token ids, and its continuation.

The prompt goes to the engine as it is, without a chat template; ids are never turned into text. A reply is text alone,
so whatever an engine sampled is in it.
"""

from collections.abc import Mapping, Sequence

from rolltape.chat import ChatRequest, Reply
from rolltape.errors import RequestError
from rolltape.wire import EncodedError, only
from rolltape.wire.openai_completions.decode import decode_request
from rolltape.wire.openai_completions.encode import CompletionStreamEncoder, encode_reply
from rolltape.wire.openai_errors import encode_error

TAGS = frozenset({"user-agent", "x-client-request-id", "x-request-id", "x-session-id", "x-stainless-retry-count"})
"""Headers by which clients tell sessions and retries apart."""


class OpenAICompletions:
    """The `openai_completions` wire protocol."""

    name = "openai_completions"
    paths: Sequence[str] = ("/v1/completions", "/completions")
    counting_paths: Sequence[str] = ()
    reply_prefix = "cmpl-"

    def decode(self, path: str, body: bytes, headers: Mapping[str, str]) -> ChatRequest:
        """The request in `body`. Raises `RequestError` (400) naming the field at fault; never anything else."""
        return decode_request(body)

    def encode_reply(self, request: ChatRequest, reply: Reply) -> bytes:
        """`reply` as one `text_completion` object; the model is named as the caller named it."""
        return encode_reply(request, reply)

    def encode_count(self, tokens: int) -> bytes:
        """Completions have no counting route."""
        raise NotImplementedError

    def encoder(self, request: ChatRequest, *, reply_id: str, created: int) -> CompletionStreamEncoder:
        """An encoder of `text_completion` chunks."""
        return CompletionStreamEncoder(request, reply_id, created)

    def encode_error(self, error: RequestError) -> EncodedError:
        """`error` as OpenAI's error object, with its own status."""
        return encode_error(error)

    def tagged(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Session and retry marks, names in lower case. Credentials are not among them."""
        return only(headers, TAGS)
