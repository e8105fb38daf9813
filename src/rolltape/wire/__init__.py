"""Wire protocols: bytes to canonical chat and back, a folder each. No I/O.

A protocol says which paths it serves and turns a body into a `ChatRequest`, a `Reply` or engine events into bytes, and
an error into the words and status that its clients understand. The route selects the protocol; a harness declares
nothing.

Streaming is the delicate part. An encoder is fed engine events and gives frames; a frame is marked `acting` when a
harness may act on it (a finished tool call, the finish chunk). The gateway holds the first acting frame and everything
after it until the call's record is durable, so nothing can be acted on that a crash could lose.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from rolltape.chat import ChatRequest, EngineEvent, Reply
from rolltape.errors import RequestError


@dataclass(frozen=True, slots=True)
class Frame:
    """Bytes for the client. `acting`: a harness may act on it, so it waits for the durable entry."""

    data: bytes
    acting: bool = False


@dataclass(frozen=True, slots=True)
class EncodedError:
    """An error reply, complete."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class StreamEncoder(Protocol):
    """Encodes one streamed reply. Frames come in order; an empty list means that nothing is to be sent yet."""

    content_type: str

    def open(self) -> Sequence[Frame]:
        """Frames that start the stream, before any token."""
        ...

    def encode(self, event: EngineEvent) -> Sequence[Frame]:
        """Frames for one event; for `Finished` all that close the stream, acting ones included."""
        ...

    def keep_alive(self) -> Frame:
        """A frame that every known client of this protocol counts as life and none as content."""
        ...

    def error(self, error: RequestError) -> Sequence[Frame]:
        """Frames that end a stream which broke after its first byte. Never looks like a normal end."""
        ...


class WireProtocol(Protocol):
    """One dialect."""

    name: str
    """`openai_chat`, ...: recorded with each entry."""
    paths: Sequence[str]
    """Generating routes, as they stand after the address prefix: `/v1/chat/completions`. All are POST.

    `{model}` stands for a model's name, slashes included.
    """
    counting_paths: Sequence[str]
    """Routes that only count the tokens of a request: answered with the engine's own count, never recorded."""
    reply_prefix: str
    """Put before a call's id to make its reply's id: `chatcmpl-`."""

    def decode(self, path: str, body: bytes, headers: Mapping[str, str]) -> ChatRequest:
        """The request, nothing lost. Raises `RequestError` (400) naming the field that cannot be honoured.

        `path` is the route that was asked for, with its query where there is one.
        """
        ...

    def encode_reply(self, request: ChatRequest, reply: Reply) -> bytes:
        """The body of a reply that is not streamed."""
        ...

    def encode_count(self, tokens: int) -> bytes:
        """The body that answers a counting route."""
        ...

    def encoder(self, request: ChatRequest, *, reply_id: str, created: int) -> StreamEncoder:
        """A fresh encoder for one streamed reply."""
        ...

    def encode_error(self, error: RequestError) -> EncodedError:
        """The error with the status that this protocol's clients react to properly."""
        ...

    def tagged(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """The headers worth keeping with the entry: session, agent and retry marks. Never credentials."""
        ...


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model name that is answered here. `context_length` in tokens, None = not known."""

    name: str
    context_length: int | None = None


@runtime_checkable
class ListsModels(Protocol):
    """A protocol that lists the models in its own words: GET one of `models_paths`, or a model's name below it."""

    models_paths: Sequence[str]

    def is_client(self, headers: Mapping[str, str]) -> bool:
        """Whether a request is from one of its own clients: decides on a path that other protocols have too."""
        ...

    def encode_models(self, models: Sequence[ListedModel]) -> bytes:
        """The body that lists them."""
        ...

    def encode_model(self, model: ListedModel) -> bytes:
        """The body that tells of one."""
        ...


def only(headers: Mapping[str, str], names: Collection[str]) -> Mapping[str, str]:
    """The headers of these names (in lower case), their names in lower case: what a protocol's `tagged` keeps."""
    lowered = ((name.lower(), value) for name, value in headers.items())
    return {name: value for name, value in lowered if name in names}
