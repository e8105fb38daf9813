"""Two spellings of one tool call's arguments: is it the same value, or were members added? Pure.

A member that was added *and* another spelling can both be there; what stands at the first character that differs
decides. So the members of the longer spelling are found with their places in the text, not only their values.
"""

import json
import re
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

_SPACE = re.compile(r"\s*")
_DECODER = json.JSONDecoder()
_DEEPEST = 64


def parsed(text: str) -> dict[str, Any] | None:
    """The object that `text` spells; None where it spells none, or one that is nested too deep to compare."""
    if text.count("{") + text.count("[") > _DEEPEST and _depth(text) > _DEEPEST:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _depth(text: str) -> int:
    """At least how deep `text` is nested; brackets in strings count too."""
    return max(accumulate(((c in "{[") - (c in "}]") for c in text), initial=0))


def same_value(was: Any, now: Any) -> bool:
    """Equal as JSON, whatever the order of members. True is not 1, as it is in Python."""
    return json.dumps(was, sort_keys=True) == json.dumps(now, sort_keys=True)


def holds(now: Any, was: Any) -> bool:
    """Whether `now` is `was`, with members added to it or to objects within it."""
    if isinstance(was, dict) and isinstance(now, dict):
        return all(name in now and holds(now[name], value) for name, value in was.items())
    if isinstance(was, list) and isinstance(now, list):
        return len(was) == len(now) and all(map(holds, now, was))
    return same_value(was, now)


def first_difference(was: str, now: str) -> int:
    """The index of the first character that differs; the shorter length where none does."""
    return next((i for i, (a, b) in enumerate(zip(was, now, strict=False)) if a != b), min(len(was), len(now)))


def added_at(was: str, now: str) -> str | None:
    """The member of `now` that `was` lacks and that stands where the two spellings part; None if another thing does.

    A dotted path. Both texts must spell objects.
    """
    before, at = json.loads(was), first_difference(was, now)
    for path, start, end in members(now):
        if start <= at < end and not _there(before, path):
            return ".".join(path)
    return None


def members(text: str, at: int = 0, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int, int]]:
    """(path, start, end) of each member of the object at `at`, outer ones first, the comma before or after included."""
    at = _skip(text, at) + 1
    while text[_skip(text, at)] != "}":
        start = at
        at = _skip(text, at)
        comma_before = text[at] == ","
        name, at = _DECODER.raw_decode(text, _skip(text, at + comma_before))
        value_at = _skip(text, _skip(text, at) + 1)
        value, at = _DECODER.raw_decode(text, value_at)
        following = _skip(text, at)
        leads = not comma_before and text[following] == ","
        yield (*path, name), start, _skip(text, following + 1) if leads else at
        if isinstance(value, dict):
            yield from members(text, value_at, (*path, name))


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _there(value: Any, path: tuple[str, ...]) -> bool:
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return False
        value = value[name]
    return True
