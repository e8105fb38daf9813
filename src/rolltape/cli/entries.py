"""Token entries from a JSONL file: one JSON object a line, in the form of `TokenEntry.to_json`.

A line that is no entry stops the reading and is named by its number: a rollout rebuilt from some of its calls would
be another rollout. Keys that no field has are ignored, and said so.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from rolltape.errors import EntryError
from rolltape.record import FIELDS, TokenCaptureSnapshot, TokenEntry


class Described(msgspec.Struct, frozen=True):
    """The optional fields whose type rebuilding relies on. None = not given."""

    created_at: float | None = None
    started_at: float | None = None
    first_token_at: float | None = None
    step_index: int | None = None
    model: str | None = None
    model_asked: str | None = None
    finish_reason: str | None = None
    outcome: str | None = None
    delivery: str | None = None
    response_id: str | None = None
    kind: str | None = None
    kind_evidence: str | None = None
    parent_call_id: str | None = None
    policy_version: str | None = None
    policy_version_end: str | None = None
    log_prob_kind: str | None = None
    log_prob_spans: list[tuple[int, int, str]] | None = None
    policy_spans: list[tuple[int, int, str]] | None = None
    faults: list[str] | None = None
    headers: dict[str, str] | None = None
    extra: dict[str, Any] | None = None
    output_items: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class EntriesFile:
    """What a file held. `unknown_keys`: how many lines had each key that no field has."""

    entries: tuple[TokenEntry, ...]
    unknown_keys: Counter[str]

    def rollout_ids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(entry.rollout_id for entry in self.entries))

    def snapshot(self, rollout_id: str) -> TokenCaptureSnapshot:
        """The entries of one rollout as if they had been frozen."""
        chosen = tuple(entry for entry in self.entries if entry.rollout_id == rollout_id)
        return TokenCaptureSnapshot(rollout_id, chosen, incomplete=False, snapshot_id="file", version=len(chosen))


def read(path: str) -> EntriesFile:
    """The entries of the file at `path`; `-` is stdin. Raises `EntryError` naming the line."""
    if path == "-":
        return parse(sys.stdin.buffer)
    with Path(path).open("rb") as lines:
        return parse(lines)


def parse(lines: Iterable[bytes]) -> EntriesFile:
    """The entries of `lines`. Blank lines are none; the same entry twice is one, the same id with another payload an
    `EntryError`."""
    found: dict[tuple[str, str], tuple[int, TokenEntry]] = {}
    unknown: Counter[str] = Counter()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            body = _object(line)
            unknown.update(body.keys() - FIELDS)
            entry = _entry(body)
        except EntryError as error:
            raise EntryError(f"line {number}: {error.message}", hint=error.hint) from error
        first, known = found.setdefault((entry.rollout_id, entry.model_call_id), (number, entry))
        if known is not entry and known.to_json() != entry.to_json():
            raise EntryError(f"line {number}: model call {entry.model_call_id!r} differs from line {first}")
    return EntriesFile(tuple(entry for _, entry in found.values()), unknown)


def _object(line: bytes) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        body = _lenient(line)
    if not isinstance(body, dict):
        raise EntryError("not a JSON object")
    return body


def _lenient(line: bytes) -> Any:
    """JSON with NaN and Infinity, which Python writes: a log-prob that is none marks its entry, it is no bad line."""
    try:
        value = json.loads(line.decode("utf-8-sig"))
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise EntryError("it holds half a surrogate pair, which is no text") from error
    except (ValueError, RecursionError) as error:
        raise EntryError(f"not JSON: {error}") from error
    return value


def _entry(body: dict[str, Any]) -> TokenEntry:
    given = {name: body[name] for name in Described.__struct_fields__ if body.get(name) is not None}
    try:
        msgspec.convert(given, Described)
        return TokenEntry.from_json(body)
    except msgspec.ValidationError as error:
        raise EntryError(str(error).replace("`$.", "`")) from error
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, EntryError):
            raise
        raise EntryError(str(error)) from error
