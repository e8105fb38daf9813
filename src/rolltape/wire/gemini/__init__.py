"""Google's Gemini protocol: what gemini-cli and the `google-genai` SDKs speak.

`decode`, `tools`, `contents`, `fields` and `schema` read requests, `encode` and `stream` write replies, `errors` words
refusals. The model is named by the path. How a request becomes canonical chat, what is refused and what clients may
act on: docs/decisions/0022-gemini-and-aliases.md.
"""

import re
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qs, unquote

import msgspec

from rolltape.chat import ChatRequest, Reply
from rolltape.errors import RequestError
from rolltape.wire import EncodedError, ListedModel, only
from rolltape.wire.gemini.decode import decode_request
from rolltape.wire.gemini.encode import encode_model, encode_models, encode_reply
from rolltape.wire.gemini.errors import encode_error, invalid
from rolltape.wire.gemini.stream import GeminiStreamEncoder

TAGS = frozenset(
    {"user-agent", "x-goog-api-client", "x-parent-session-id", "x-request-id", "x-server-timeout", "x-session-id"}
)
"""Headers by which clients tell sessions apart, and themselves."""

VERSIONS = ("v1beta", "v1")
PATH = re.compile(r"^/v1(?:beta)?/models/(?P<model>.+)(?::|%3[Aa])(?P<method>[A-Za-z]+)$")
STREAMED = "streamGenerateContent"


class Gemini:
    """The `gemini` wire protocol."""

    name = "gemini"
    paths: Sequence[str] = tuple(
        f"/{version}/models/{{model}}:{method}" for version in VERSIONS for method in ("generateContent", STREAMED)
    )
    counting_paths: Sequence[str] = tuple(f"/{version}/models/{{model}}:countTokens" for version in VERSIONS)
    models_paths: Sequence[str] = tuple(f"/{version}/models" for version in VERSIONS)
    reply_prefix = "gen-"

    def decode(self, path: str, body: bytes, headers: Mapping[str, str]) -> ChatRequest:
        """The request in `body` to the model in `path`. Raises `RequestError` naming the field at fault."""
        route, _, query = path.partition("?")
        match = PATH.match(route)
        if match is None:
            raise invalid("model", "The path must be /v1beta/models/{model}:{method}.")
        alt = parse_qs(query).get("alt", parse_qs(query).get("$alt", [""]))[-1]
        return decode_request(
            unquote(match["model"]),
            body,
            stream=match["method"] == STREAMED,
            counting=match["method"] == "countTokens",
            alt=alt,
        )

    def encode_reply(self, request: ChatRequest, reply: Reply) -> bytes:
        """`reply` as one response object; the model is named as the caller named it."""
        return encode_reply(request, reply)

    def encode_count(self, tokens: int) -> bytes:
        """`{"totalTokens": N}`."""
        return msgspec.json.encode({"totalTokens": tokens})

    def is_client(self, headers: Mapping[str, str]) -> bool:
        """Google's clients send their key or their name in headers of their own."""
        return "x-goog-api-key" in headers or "x-goog-api-client" in headers

    def encode_models(self, models: Sequence[ListedModel]) -> bytes:
        """The body that answers `models_paths`."""
        return encode_models(list(models))

    def encode_model(self, model: ListedModel) -> bytes:
        """The body that answers a model's own path below it."""
        return encode_model(model)

    def encoder(self, request: ChatRequest, *, reply_id: str, created: int) -> GeminiStreamEncoder:
        """An encoder of response objects, as events or as an array."""
        return GeminiStreamEncoder(request, reply_id)

    def encode_error(self, error: RequestError) -> EncodedError:
        """`error` as Google's error object."""
        return encode_error(error)

    def tagged(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Session marks and the client's name, in lower case. Credentials are not among them."""
        return only(headers, TAGS)
