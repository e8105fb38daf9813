"""Gym's capture files into a store: `<rollout>.tokens.jsonl` and what lies beside it.

Every complete line is held against the digest that Gym's state file has for it. What cannot be read, does not match, or
is known to Gym as lost marks its rollout as incomplete; all other calls are still imported. Importing again is a no-op.
"""

import asyncio
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from rolltape.errors import ConflictError, EntryError, RetiredError
from rolltape.integrations.nemo_gym import convert
from rolltape.store import TokenSink
from rolltape.tokens import IntArray

_SUFFIX = ".tokens.jsonl"


@dataclass(frozen=True, slots=True)
class ImportedRollout:
    """What became of one rollout. `lost`: (call id or "", what is wrong); the rollout is incomplete if there is any.

    `retired`: the store had handed this rollout over before, and took nothing.
    """

    rollout_id: str
    n_calls: int
    lost: tuple[tuple[str, str], ...] = ()
    retired: bool = False


@dataclass(slots=True)
class _Files:
    """What Gym's files say of one rollout."""

    bodies: list[dict[str, Any]] = field(default_factory=list)
    lost: list[tuple[str, str]] = field(default_factory=list)


async def import_gym_captures(dir: str | Path, store: TokenSink) -> list[ImportedRollout]:
    """Put every rollout that Gym's file store holds in `dir` into `store`, by name. Gym's files stay as they are."""
    paths = await asyncio.to_thread(lambda: sorted(Path(dir).glob(f"*{_SUFFIX}")))
    return [await _import(path.name.removesuffix(_SUFFIX), path, store) for path in paths]


async def _import(rollout_id: str, path: Path, store: TokenSink) -> ImportedRollout:
    files = await asyncio.to_thread(_read, rollout_id, path)
    sequences: dict[str, IntArray] = {}
    lost, n_calls = files.lost, 0
    try:
        for body in files.bodies:
            try:
                entry = convert.entry_of(body, sequences.get(convert.parent_of(body) or ""))
                await store.put(entry)
            except (EntryError, ConflictError) as error:
                lost.append((str(body.get("model_call_id", "")), error.message))
            else:
                sequences[entry.model_call_id] = entry.sequence
                n_calls += 1
        for call_id in dict.fromkeys(call_id for call_id, _ in lost):
            await store.mark_incomplete(rollout_id, call_id)
    except RetiredError:
        return ImportedRollout(rollout_id, 0, retired=True)
    return ImportedRollout(rollout_id, n_calls, tuple(lost))


def _read(rollout_id: str, path: Path) -> _Files:
    files = _Files()
    state = _state(path.with_name(f"{rollout_id}.tokens.state.json"), files)
    digests = state.get("entry_digests") or {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        body = _body(line.strip(), number, rollout_id, digests, files) if line.strip() else None
        files.bodies.extend([] if body is None else [body])
    recorded = {body["model_call_id"] for body in files.bodies}
    for call_id in _call_ids(path.with_name(f"{rollout_id}.tokens.intents")):
        if call_id and call_id not in recorded:
            files.lost.append((call_id, "the call began and has no record"))
    marked = list(_call_ids(path.with_name(f"{rollout_id}.tokens.incomplete")))
    files.lost.extend((call_id, "marked by its writer") for call_id in marked)
    if state.get("incomplete") and not marked:
        files.lost.append(("", "marked by its writer"))
    for call_id in digests.keys() - recorded - {call_id for call_id, _ in files.lost}:
        files.lost.append((call_id, "Gym's index knows it, its file does not"))
    return files


def _body(
    line: bytes, number: int, rollout_id: str, digests: Mapping[str, str], files: _Files
) -> dict[str, Any] | None:
    """The record in a line; None, and something lost, where there is none that can be relied on."""
    try:
        body = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError as error:
        files.lost.append(("", f"line {number} is no record: {error}"))
        return None
    call_id = body.get("model_call_id")
    if not isinstance(call_id, str) or body.get("rollout_id") != rollout_id:
        files.lost.append(("", f"line {number} is of another rollout, or of no call"))
        return None
    if digests.get(call_id, found := hashlib.sha256(line).hexdigest()) != found:
        files.lost.append((call_id, f"line {number} does not match its digest"))
        return None
    return body


def _state(path: Path, files: _Files) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except msgspec.DecodeError as error:
        files.lost.append(("", f"the state file cannot be read: {error}"))
        return {}


def _call_ids(path: Path) -> Iterator[str]:
    """The ids in one of Gym's lists, "" for a mark that names no call."""
    if path.exists():
        yield from dict.fromkeys(line.strip() for line in path.read_text(errors="replace").splitlines())
