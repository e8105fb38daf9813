"""Somebody else's transport, in a folder: its sink, its source and its lineage store, no kin of Rolltape's.

One file a rollout, one JSON line an event, synced. A sink in one process and a source in another share the folder only.
A file named `broken` in it makes every write fail.
"""

import asyncio
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from rolltape.record import TokenCaptureSnapshot, TokenEntry

KEY = "k3y-of-the-data-plane"


class FolderSink:
    def __init__(self, *, folder: str, key: str, delay: float = 0.0) -> None:
        if key != KEY:
            raise PermissionError(f"the key {key} opens nothing")
        self.folder, self.key, self.delay = Path(folder), key, delay

    async def begin_call(self, rollout_id: str, model_call_id: str) -> None:
        self._append(rollout_id, {"began": model_call_id})

    async def put(self, entry: Any) -> None:
        await asyncio.sleep(self.delay)
        self._append(entry.rollout_id, {"entry": entry.to_json()})

    async def mark_incomplete(self, rollout_id: str, model_call_id: str = "") -> None:
        self._append(rollout_id, {"lost": model_call_id})

    async def close(self) -> None:
        (self.folder / "closed").touch()

    def _append(self, rollout_id: str, event: dict[str, Any]) -> None:
        if (self.folder / "broken").exists():
            raise ConnectionError(f"the data plane refuses {self.key}")
        with (self.folder / f"{rollout_id}.jsonl").open("a") as file:
            file.write(json.dumps(event) + "\n")
            file.flush()
            os.fsync(file.fileno())


class FolderSource:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        lines = self._lines(rollout_id)
        events = [json.loads(line) for line in lines]
        entries = tuple(TokenEntry.from_json(event["entry"]) for event in events if "entry" in event)
        began = {event["began"] for event in events if "began" in event}
        lost = any("lost" in event for event in events) or bool(began - {entry.model_call_id for entry in entries})
        return TokenCaptureSnapshot(rollout_id, entries, lost, _identity(lines), len(lines))

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        lines = self._lines(rollout_id)
        if (snapshot_id, version) != (_identity(lines), len(lines)):
            return False
        (self.folder / f"{rollout_id}.jsonl").unlink()
        return True

    async def close(self) -> None:
        return

    def _lines(self, rollout_id: str) -> list[str]:
        file = self.folder / f"{rollout_id}.jsonl"
        return file.read_text().splitlines() if file.exists() else []


def _identity(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


class PlainLineage:
    """Remembers sequences in memory; `unreachable` makes every question fail."""

    def __init__(self, *, unreachable: bool = False) -> None:
        self.unreachable = unreachable
        self.sequences: dict[str, list[int]] = {}

    async def record(self, rollout_id: str, model_call_id: str, cumulative_token_ids: Any) -> None:
        self.sequences[model_call_id] = list(cumulative_token_ids)

    async def resolve(self, rollout_id: str, prompt_token_ids: Any) -> Any:
        if self.unreachable:
            raise TimeoutError
        from rolltape.store import LineageMatch

        prompt = list(prompt_token_ids)
        whole = [(len(s), name) for name, s in self.sequences.items() if prompt[: len(s)] == s]
        return LineageMatch(max(whole)[1], max(whole)[0]) if whole else None

    async def close(self) -> None:
        return


class Forgetful:
    """A sink that cannot say that a call was lost."""

    async def put(self, entry: Any) -> None: ...
    async def close(self) -> None: ...


class Blocking(FolderSink):
    def put(self, entry: Any) -> None:  # type: ignore[override]
        return


class NoQuestions(PlainLineage):
    resolve = None  # type: ignore[assignment]


not_a_class = "text"
