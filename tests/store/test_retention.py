"""What retention removes is gone from the disk; what it keeps is untouched, and nobody waits for it."""

import asyncio
import time
from pathlib import Path

import pytest

from rolltape.config import Retention
from rolltape.errors import RetiredError
from rolltape.gateway.retention import sweep_once, sweeping
from rolltape.record import TokenEntry
from rolltape.store import TokenCaptureStore
from rolltape.store.sqlite import verify
from rolltape.testing.contracts import entry

MARKER = b"a prompt that must not stay behind"
IDS = list(range(1_000_000, 1_000_400))


def marked(rollout_id: str) -> TokenEntry:
    """An entry whose ids and texts can be found in the bytes of a file: neither pays to compress."""
    return entry("k1", IDS[:200], IDS[200:], rollout_id=rollout_id, request_text=MARKER, created_at=1.5)


async def retired(store: TokenCaptureStore, rollout_id: str) -> None:
    await store.put(marked(rollout_id))
    seen = await store.freeze(rollout_id)
    assert await store.drop(rollout_id, snapshot_id=seen.snapshot_id, version=seen.version)


def found_in(folder: Path, needle: bytes) -> list[str]:
    return [file.name for file in folder.iterdir() if needle in file.read_bytes()]


def stored_ids(folder: Path) -> bytes:
    """The bytes under which an entry's ids lie in the file."""
    import sqlite3

    db = sqlite3.connect(folder / "rolltape.db")
    (ids,) = db.execute("SELECT ids FROM entries LIMIT 1").fetchone()
    db.close()
    return bytes(ids)[-64:]


async def test_what_was_removed_is_in_no_byte_of_the_files(tmp_path: Path) -> None:
    async with TokenCaptureStore(tmp_path) as store:
        await retired(store, "R")
        ids = stored_ids(tmp_path)
        texts = b"{" + MARKER[:8]
        assert found_in(tmp_path, ids)
        await store.sweep(0)
        for _ in range(100):
            if not found_in(tmp_path, ids):
                break
            await asyncio.sleep(0.02)
        assert not found_in(tmp_path, ids), "while the store is open"
    assert not found_in(tmp_path, ids)
    assert not found_in(tmp_path, texts)
    assert verify(tmp_path).sound


async def test_the_file_shrinks_by_what_was_removed(tmp_path: Path) -> None:
    async with TokenCaptureStore(tmp_path) as store:
        for number in range(20):
            await store.put(entry("k1", list(range(number, number + 20_000)), [2], rollout_id=f"R{number}"))
            seen = await store.freeze(f"R{number}")
            await store.drop(f"R{number}", snapshot_id=seen.snapshot_id, version=seen.version)
    before = (tmp_path / "rolltape.db").stat().st_size
    async with TokenCaptureStore(tmp_path) as store:
        swept = await store.sweep(0)
    assert (len(swept.rollout_ids), swept.entries, swept.more) == (20, 20, False)
    assert before - (tmp_path / "rolltape.db").stat().st_size > 0.8 * swept.bytes


async def test_a_dry_run_says_what_would_go_and_removes_nothing(store: TokenCaptureStore) -> None:
    await retired(store, "R")
    would = await store.sweep(0, dry_run=True)
    assert await store.read("R") is not None
    assert await store.sweep(0) == would
    assert not (await store.sweep(0, dry_run=True)).rollout_ids


async def test_a_clock_that_was_set_back_does_not_keep_what_goes_at_once(
    store: TokenCaptureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await retired(store, "R")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 86_400)
    assert not (await store.sweep(60)).rollout_ids
    assert (await store.sweep(0)).rollout_ids == ("R",)


async def test_the_newest_of_what_nobody_accepted_is_kept_within_the_quota(store: TokenCaptureStore) -> None:
    for name in ("old", "newer", "newest"):
        await store.put(marked(name))
        await store.freeze(name)
        await asyncio.sleep(0.002)
    await store.put(marked("open"))
    one = (await store.sweep(0, quota_bytes=0, dry_run=True)).bytes // 3
    assert not (await store.sweep(0)).rollout_ids, "without a quota all of it is kept"
    assert (await store.sweep(0, quota_bytes=2 * one)).rollout_ids == ("old",)
    with pytest.raises(RetiredError):
        await store.freeze("old")
    assert not (await store.sweep(60, quota_bytes=0)).rollout_ids, "what was frozen just now is still on its way"
    assert (await store.sweep(0, quota_bytes=0)).rollout_ids == ("newer", "newest")
    assert (await store.read("open")) is not None


async def test_a_rollout_that_was_incomplete_is_still_listed_so(store: TokenCaptureStore) -> None:
    await store.put(marked("R"))
    await store.mark_incomplete("R", "k2")
    await store.freeze("R")
    await store.sweep(0, quota_bytes=0)
    state = await store.rollout("R")
    assert state is not None
    assert (state.incomplete, state.retired_at is not None) == (True, True)


async def test_a_gateway_sweeps_in_batches_and_puts_go_on_meanwhile(store: TokenCaptureStore) -> None:
    for number in range(20):
        await retired(store, f"R{number}")
    sweeping_all = asyncio.ensure_future(sweep_once(store, Retention(days=0)))
    n_puts = 0
    while not sweeping_all.done():
        await store.put(entry(f"k{n_puts}", [1, n_puts], [60, 2], rollout_id="S"))
        n_puts += 1
    assert await sweeping_all == 20
    assert n_puts >= 3, "a put came between two batches"
    assert len((await store.freeze("S")).entries) == n_puts


async def test_a_running_gateway_removes_what_is_due_by_itself(store: TokenCaptureStore) -> None:
    await retired(store, "R")
    async with sweeping(store, Retention(days=0)):
        for _ in range(100):
            if await store.read("R") is None:
                break
            await asyncio.sleep(0.01)
    assert await store.read("R") is None
