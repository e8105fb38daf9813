"""Errors in Anthropic's words, and the constructors by which the decoder refuses.

What clients do with a status decides it. Claude Code answers a 400 by taking features out of its prompt, six times
over, and keeps it so for the session; at 403 it stops at once; 429 is a quota to it and a long one ends the run; 5xx
are asked again. It starts a compaction when it reads "prompt is too long: N tokens > M maximum".
"""

from typing import Any

import msgspec

from rolltape.chat import Json
from rolltape.errors import EngineRefused, RequestError
from rolltape.wire import EncodedError

OVERFLOW = "context_length_exceeded"
OVERLOADED = 529
TYPES = {
    401: "authentication_error", 402: "billing_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 503: "overloaded_error", 504: "timeout_error", OVERLOADED: "overloaded_error",
}  # fmt: skip
ASKED_AGAIN = (408, 409)
"""4xx that the SDK asks again unless it is told not to."""


def invalid(param: str, message: str) -> RequestError:
    """A refusal of a field that is malformed."""
    return RequestError(400, "invalid_value", message, param=param)


def unsupported(param: str, message: str) -> RequestError:
    """A refusal of a field that is well-formed and cannot be honoured."""
    return RequestError(400, "unsupported_value", message, param=param)


def shown(value: Any) -> str:
    """`value` for a message, at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def error_object(error: RequestError) -> Json:
    """`{"type": "error", "error": {type, message}}`, as a reply's body and as the event that ends a broken stream."""
    status = _status(error)
    kind = TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": _message(error)}}


def encode_error(error: RequestError) -> EncodedError:
    """The whole reply. A refusal that would be given again says so where the SDK would ask again."""
    headers = {"content-type": "application/json"}
    status = _status(error)
    if status in ASKED_AGAIN:
        headers["x-should-retry"] = "false"
    return EncodedError(status, headers, msgspec.json.encode(error_object(error)))


def _status(error: RequestError) -> int:
    return OVERLOADED if error.status == 429 else error.status


def _message(error: RequestError) -> str:
    if error.code == OVERFLOW:
        message = _overflow(error)
    else:
        message = f"{error.message} ({error.hint})" if error.hint else error.message
    return message.encode("utf-8", "replace").decode()


def _overflow(error: RequestError) -> str:
    numbers = error.overflow if isinstance(error, EngineRefused) else None
    if numbers is None:
        return f"prompt is too long: {error.message}"
    return f"prompt is too long: {numbers[0]} tokens > {numbers[1]} maximum"
