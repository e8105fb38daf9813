"""Errors in OpenAI's words, and the constructors by which the decoder refuses.

Clients choose by status and by a few words in the message: opencode, pi, qwen-code and cline start a compaction when
they read `context_length_exceeded` or "maximum context length". The `openai` SDK asks again after 408, 409, 429 and
5xx, unless `x-should-retry` says no.
"""

import msgspec

from rolltape.errors import RequestError
from rolltape.wire import EncodedError

OVERFLOW = "context_length_exceeded"
OVERFLOW_WORDS = "maximum context length"
TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
RETRIED_4XX = (408, 429)


def invalid(param: str, message: str) -> RequestError:
    """A refusal of a field that is malformed."""
    return RequestError(400, "invalid_value", message, param=param)


def unsupported(param: str, message: str) -> RequestError:
    """A refusal of a field that is well-formed and cannot be honoured."""
    return RequestError(400, "unsupported_value", message, param=param)


def error_object(error: RequestError) -> dict[str, object]:
    """`{"error": {message, type, param, code}}`, as a reply's body and as a frame of a broken stream."""
    kind = TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    return {"error": {"message": error_message(error), "type": kind, "param": error.param, "code": error.code}}


def encode_error(error: RequestError) -> EncodedError:
    """The whole reply. A refusal that would be given again says so to the SDK."""
    headers = {"content-type": "application/json"}
    if 400 <= error.status < 500 and error.status not in RETRIED_4XX:
        headers["x-should-retry"] = "false"
    return EncodedError(error.status, headers, msgspec.json.encode(error_object(error)))


def error_message(error: RequestError) -> str:
    """The message with its hint; an overflow in the words on which harnesses start a compaction."""
    message = f"{error.message} ({error.hint})" if error.hint else error.message
    if error.code == OVERFLOW and OVERFLOW_WORDS not in message:
        message = f"The request exceeds this model's {OVERFLOW_WORDS}: {message}"
    return message.encode("utf-8", "replace").decode()
