"""A request body to plain JSON values, within limits that everything downstream can rely on.

The limits: UTF-8, an object, no number that JSON cannot carry, nested at most `MAX_DEPTH` levels. Half a surrogate
pair is written by JavaScript clients that cut a string inside an emoji; no UTF-8 text can hold it, so it becomes
U+FFFD, exactly as a browser would have sent it. A chain stays append-only, since the same half always becomes the same.
"""

import re
from typing import Any

import msgspec

from rolltape.chat import Json
from rolltape.errors import RequestError

MAX_DEPTH = 100  # tool schemas seen in the wild stay below 20; encoders recurse, so this must be well under their limit

_ESCAPE = re.compile(
    rb"\\(?:(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)"
)


def parse_object(body: bytes) -> Json:
    """The JSON object in `body`. Raises `RequestError` (400)."""
    value = _parse(body)
    if not isinstance(value, dict):
        raise _malformed("The request body must be a JSON object.")
    if _depth(value) > MAX_DEPTH:
        raise _malformed(f"The request body is nested deeper than {MAX_DEPTH} levels.")
    return value


def _parse(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.MsgspecError as error:
        repaired = _without_lone_surrogates(body)
        if repaired == body:
            raise _malformed(f"The request body is not valid JSON: {error}.") from error
        return _parse(repaired)
    except (RecursionError, UnicodeError) as error:
        raise _malformed("The request body is not JSON that can be read.") from error


def _without_lone_surrogates(body: bytes) -> bytes:
    return _ESCAPE.sub(lambda m: rb"\ufffd" if m[2] else m[0], body)


def _depth(value: Any) -> int:
    """Levels of nesting, counted to one more than is allowed."""
    level, depth = [value], 0
    while level and depth <= MAX_DEPTH:
        children = (c for v in level for c in (v.values() if type(v) is dict else v))
        level = [c for c in children if type(c) is dict or type(c) is list]
        depth += 1
    return depth


def _malformed(message: str) -> RequestError:
    return RequestError(400, "invalid_json", message)
