"""Media in a request: where it stands, and references to it by hash.

A prompt's token ids hold only placeholders for an image, so an entry names what stood behind them. The bytes themselves
are in the request's text, where texts are kept.
"""

import binascii
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from rolltape.chat import ChatRequest, Json

TEXTS = ("text", "refusal")


@dataclass(frozen=True, slots=True)
class MediaPart:
    """A part that is no text: number `index` of the content of message number `message`, both from 0."""

    message: int
    index: int
    part: Json


def media_parts(request: ChatRequest) -> Iterator[MediaPart]:
    """All parts of the messages that are no text, in order."""
    for number, message in enumerate(request.messages):
        if isinstance(message.content, tuple):
            for index, part in enumerate(message.content):
                if part.get("type") not in TEXTS:
                    yield MediaPart(number, index, part)


def media_references(request: ChatRequest) -> tuple[Json, ...]:
    """One reference a part: `{type, message, part, sha256, mime_type, bytes}`.

    `bytes` is a length. What is named by an address alone, and never passed here, has its `url` in their place.
    """
    return tuple(
        {"type": found.part.get("type"), "message": found.message, "part": found.index, **_described(found.part)}
        for found in media_parts(request)
    )


def _described(part: Json) -> Json:
    source = _source(part)
    if source is None:
        return {}
    head, comma, data = source.partition(",")
    if not comma or not head.startswith("data:"):
        return {"url": source}
    mime = head.removeprefix("data:").removesuffix(";base64")
    content = _decoded(data) if head.endswith(";base64") else data.encode("utf-8", "surrogatepass")
    return {"sha256": hashlib.sha256(content).hexdigest(), "mime_type": mime, "bytes": len(content)}


def _source(part: Json) -> str | None:
    """The address or data of a part in OpenAI's form; raw data (of audio, of a file) as a data address."""
    inner = part.get(str(part.get("type")))
    if isinstance(inner, str):
        return inner
    if not isinstance(inner, dict):
        return None
    for name in ("url", "file_data", "file_url"):
        if isinstance(inner.get(name), str):
            return str(inner[name])
    data = inner.get("data")
    return f"data:{inner.get('format', '')};base64,{data}" if isinstance(data, str) else None


def _decoded(data: str) -> bytes:
    """The bytes of base64; of what is none, the text itself, since that is what was passed on."""
    try:
        return binascii.a2b_base64(data, strict_mode=True)
    except (binascii.Error, ValueError):
        return data.encode("utf-8", "surrogatepass")
