"""Errors in Google's words, and the constructors by which the decoder refuses.

What clients do with a status decides it: gemini-cli ends at 400 and 403, and asks again, 5 s and more apart, after 429
and 5xx. `google-genai` tells a broken stream by a chunk that is an error object.
"""

import math

import msgspec

from rolltape.chat import Json
from rolltape.errors import EngineRefused, RateLimited, RequestError
from rolltape.wire import EncodedError

OVERFLOW = "context_length_exceeded"
STATUSES = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 409: "ABORTED",
    429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 501: "UNIMPLEMENTED", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip
RPC = "type.googleapis.com/google.rpc."


def invalid(param: str, message: str) -> RequestError:
    """A refusal of a field that is malformed."""
    return RequestError(400, "invalid_value", message, param=param)


def unsupported(param: str, message: str) -> RequestError:
    """A refusal of a field that is well-formed and cannot be honoured."""
    return RequestError(400, "unsupported_value", message, param=param)


def error_object(error: RequestError) -> Json:
    """`{"error": {code, message, status, details}}`, as a reply's body and as the chunk that ends a broken stream."""
    status = STATUSES.get(error.status, "UNAVAILABLE" if error.status >= 500 else "INVALID_ARGUMENT")
    details: list[Json] = [{"@type": f"{RPC}ErrorInfo", "reason": error.code.upper(), "domain": "rolltape"}]
    message = _message(error)
    if error.param is not None:
        violations = [{"field": error.param, "description": message}]
        details.append({"@type": f"{RPC}BadRequest", "fieldViolations": violations})
    if isinstance(error, RateLimited):
        details.append({"@type": f"{RPC}RetryInfo", "retryDelay": f"{math.ceil(error.retry_after)}s"})
    return {"error": {"code": error.status, "message": message, "status": status, "details": details}}


def encode_error(error: RequestError) -> EncodedError:
    """The whole reply."""
    headers = {"content-type": "application/json; charset=UTF-8"}
    return EncodedError(error.status, headers, msgspec.json.encode(error_object(error)))


def _message(error: RequestError) -> str:
    message = f"{error.message} ({error.hint})" if error.hint else error.message
    numbers = error.overflow if isinstance(error, EngineRefused) else None
    if error.code == OVERFLOW and numbers is not None:
        said, most = numbers
        message = f"The input token count ({said}) exceeds the maximum number of tokens allowed ({most})."
    return message.encode("utf-8", "replace").decode()
