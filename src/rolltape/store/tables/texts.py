"""Texts: requests and output items, kept for people, apart from the tokens.

A request repeats the one before it, so only what follows their common bytes is stored, compressed. Rows may be
deleted or rewritten without touching any token; no digest covers them.
"""

from typing import Any

import msgspec
import numpy as np

from rolltape.record import TokenEntry
from rolltape.store.tables.codec import Packer
from rolltape.store.tables.connection import Connection, insertion
from rolltape.store.tables.lineage import Lineage

_TEXT = insertion("texts", "seq, base, base_len, request, output_items")
_SHORTEST_SHARE = 64
"""Fewer common bytes than this are not worth a reference."""


def insert(db: Connection, packer: Packer, lineage: Lineage, seq: int, base: int | None, entry: TokenEntry) -> None:
    """Store the texts of `entry` as row `seq`; `base` is the entry whose request probably starts this one."""
    items = msgspec.json.encode(entry.output_items) if entry.output_items else None
    text = entry.request_text
    if items is None and text is None:
        return
    shared = 0
    if base is not None and text is not None:
        before = lineage.text(base)
        if before is None:
            before = request(db, packer, base)
            if before is not None:
                lineage.keep_text(base, before)
        shared = common_bytes(before or b"", text)
    if shared < _SHORTEST_SHARE:
        base, shared = None, 0
    db.change(
        _TEXT,
        (
            seq,
            base,
            shared,
            None if text is None else packer.pack_text(text[shared:]),
            None if items is None else packer.pack_text(items),
        ),
    )


def request(db: Connection, packer: Packer, seq: int) -> bytes | None:
    """The request text of entry `seq`; None if there is none, or if a text that it starts with is gone."""
    pieces: list[bytes] = []
    wanted: int | None = None
    at: int | None = seq
    while at is not None:
        row = db.execute("SELECT base, base_len, request FROM texts WHERE seq = ?", (at,)).fetchone()
        if row is None or row[2] is None:
            return None
        base, base_len, packed = row
        if wanted is None or wanted > base_len:
            piece = packer.unpack_text(packed)
            pieces.append(piece if wanted is None else piece[: wanted - base_len])
            wanted = base_len
        else:
            wanted = min(wanted, base_len)
        at = base
    return b"".join(reversed(pieces))


def output_items(db: Connection, packer: Packer, rollout: int) -> dict[int, tuple[Any, ...]]:
    """Output items by seq, for all entries of a rollout that have some."""
    rows = db.execute(
        "SELECT t.seq, t.output_items FROM entries e JOIN texts t ON t.seq = e.seq"
        " WHERE e.rollout = ? AND t.output_items IS NOT NULL",
        (rollout,),
    )
    return {seq: tuple(msgspec.json.decode(packer.unpack_text(data))) for seq, data in rows}


def common_bytes(a: bytes, b: bytes) -> int:
    """How many leading bytes two texts share."""
    n = min(len(a), len(b))
    differs = np.frombuffer(a, np.uint8, n) != np.frombuffer(b, np.uint8, n)
    first = int(differs.argmax()) if n else 0
    return first if n and differs[first] else n
