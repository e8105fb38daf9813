"""Fields of Google's objects, taken out of a parsed body and checked.

Protobuf's JSON takes a field under two names, `inlineData` and `inline_data`; clients send either. Strategy: an object
is copied with its names in the first form, one level deep, and every reader pops what it knows.
"""

import re
from typing import Any

from rolltape.chat import Json
from rolltape.wire.gemini.errors import invalid


def taken(value: Any, at: str) -> Json:
    """The object at `at`, a copy, its names in lower camel case, without its nulls."""
    if not isinstance(value, dict):
        raise invalid(at, f"'{at}' must be an object.")
    return {_camel(name): inner for name, inner in value.items() if inner is not None}


def string(value: Any, at: str, *, empty: bool = False) -> str:
    """`value`, which must be a string."""
    if not isinstance(value, str) or not (value or empty):
        raise invalid(at, f"'{at}' must be a {'' if empty else 'non-empty '}string.")
    return value


def listed(value: Any, at: str) -> list[Any]:
    """`value`, which must be a list; None is an empty one."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise invalid(at, f"'{at}' must be a list.")
    return value


def shown(value: Any) -> str:
    """`value` for a message, at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _camel(name: str) -> str:
    return re.sub(r"(?<=[A-Za-z0-9])_([a-z])", lambda match: match[1].upper(), name) if "_" in name else name
