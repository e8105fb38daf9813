"""Recorded JSON, changed: as a value (a field that is gone, of another type, twice, or deeper) and as bytes."""

import random
from collections.abc import Callable
from typing import Any

import msgspec

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 2**63, -(2**70), 1e308, "", "x", "\x00", "\ud83d", "é" * 3, "Infinity", [], {},
    [None], [[]], {"": ""}, [{}], {"type": None}, {"type": "text"}, {"type": "text", "text": 5}, {"role": "user"},
    "user", "tool", "assistant", "function", "auto", {"type": "function", "function": {}}, {"url": "data:,"}, [0] * 3,
    {"a": {"b": [1]}},
)  # fmt: skip
_BYTES = (
    b"\x00", b"\xff", b"\xf0\x9f", b"\\ud83d", b'"', b"{", b"}", b"[", b"]", b",", b"\n\n", b"\r", b"data: ", b"NaN",
    b"1e999",
)  # fmt: skip


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (holder, key) in `value`."""
    found: list[tuple[Any, Any]] = []
    left = [value]
    while left:
        holder = left.pop()
        keys = range(len(holder)) if isinstance(holder, list) else list(holder) if isinstance(holder, dict) else ()
        for key in keys:
            found.append((holder, key))
            left.append(holder[key])
    return found


def changed(value: Any, dice: random.Random) -> Any:
    """`value` with one to three changes; it is taken over."""
    for _ in range(dice.randint(1, 3)):
        every = places(value)
        if not every:
            return value
        holder, key = dice.choice(every)
        kind = dice.randrange(6)
        if kind == 0:
            del holder[key]
        elif kind == 1:
            donor, where = dice.choice(every)
            holder[key] = _copy(donor[where]) if where in donor or isinstance(donor, list) else None
        elif kind == 2:
            holder[key] = [holder[key]]
        elif kind == 3 and isinstance(holder, list):
            holder.append(_copy(holder[key]))
        else:
            holder[key] = _copy(dice.choice(ODD))
    return value


def _copy(value: Any) -> Any:
    """So that no value holds itself."""
    if isinstance(value, dict):
        return {key: _copy(held) for key, held in value.items()}
    return [_copy(held) for held in value] if isinstance(value, list) else value


def torn(data: bytes, dice: random.Random) -> bytes:
    """`data` with a few bytes cut, doubled, moved or replaced."""
    for _ in range(dice.randint(1, 4)):
        a, b = sorted((dice.randint(0, len(data)), dice.randint(0, len(data))))
        b = min(b, a + 40)
        piece = dice.choice((b"", data[a:b] * 2, dice.choice(_BYTES), bytes([dice.randrange(256)])))
        data = data[:a] + piece + data[b:]
    return data


def body(seeds: list[bytes], dice: random.Random) -> bytes:
    """A changed request body."""
    data = dice.choice(seeds)
    if dice.random() < 0.8:
        data = _written(changed(msgspec.json.decode(data), dice))
    return torn(data, dice) if dice.random() < 0.4 else data


def answer(seeds: list[bytes], dice: random.Random) -> bytes:
    """A changed answer of an engine: a stream of chunks, or one object."""
    data = dice.choice(seeds)
    if data.startswith(b"data:"):
        data = b"\n\n".join(_chunk(part, dice) for part in data.split(b"\n\n"))
    else:
        data = _chunk(data, dice, 0.9)
    return torn(data, dice) if dice.random() < 0.3 else data


def _chunk(part: bytes, dice: random.Random, often: float = 0.2) -> bytes:
    head = b"data: " if part.startswith(b"data: ") else b""
    try:
        value = msgspec.json.decode(part.removeprefix(head))
    except msgspec.DecodeError:
        return part
    return head + _written(changed(value, dice)) if dice.random() < often else part


def _written(value: Any) -> bytes:
    encode: Callable[[Any], bytes] = msgspec.json.encode
    try:
        return encode(value)
    except (UnicodeEncodeError, OverflowError):
        import json

        return json.dumps(value).encode()
