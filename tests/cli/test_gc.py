"""`rolltape gc` over a real store: what goes, what is counted, what stays."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rolltape.store import TokenCaptureStore
from rolltape.testing.contracts import entry

ROLLTAPE = str(Path(sys.executable).with_name("rolltape"))


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([ROLLTAPE, "gc", *arguments], capture_output=True, text=True, check=False)


def said(*arguments: str) -> dict[str, Any]:
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


async def fill(folder: Path) -> None:
    """Ten retired rollouts of some size, one frozen, one open."""
    async with TokenCaptureStore(folder) as store:
        for number in range(10):
            await store.put(entry("k1", list(range(number, number + 20_000)), [2], rollout_id=f"R{number}"))
            seen = await store.freeze(f"R{number}")
            await store.drop(f"R{number}", snapshot_id=seen.snapshot_id, version=seen.version)
        for name in ("frozen", "open"):
            await store.put(entry("k1", [1], [60, 2], rollout_id=name))
        await store.freeze("frozen")


def test_gc_removes_what_is_due_and_counts_what_it_freed(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path))
    place = ("--dir", str(tmp_path))
    assert said(*place)["removed"] == [], "nothing is seven days old"
    would = said(*place, "--days", "0", "--dry-run")
    done = said(*place, "--days", "0")
    assert would["removed"] == done["removed"] == [f"R{number}" for number in range(10)]
    assert (would["bytes_freed"], would["bytes"], would["entries"]) == (0, done["bytes"], 10)
    assert done["bytes_freed"] > 0.8 * done["bytes"]
    assert said(*place, "--days", "0")["removed"] == []
    assert said(*place, "--days", "0", "--quota-bytes", "0")["removed"] == ["frozen"]


def test_gc_says_in_words_what_it_did_and_where_there_is_no_store(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path / "store"))
    done = run("--dir", str(tmp_path / "store"), "--days", "0")
    assert "removed 10 rollouts, 10 calls" in done.stdout
    missing = run("--dir", str(tmp_path / "none"))
    assert (missing.returncode, missing.stderr.startswith("error: there is no store")) == (1, True)
    assert not (tmp_path / "none").exists()
