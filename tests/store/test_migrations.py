"""A store of an earlier release opens and goes on; what cannot be one is refused in words.

`data/store/store-v1.db` was written by the release whose schema had version 1: an open rollout with a call in flight, a
frozen, a dropped and an incomplete one.
"""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from rolltape.errors import StoreError
from rolltape.store import PolicyState, TokenCaptureStore
from rolltape.store.sqlite import schema, verify
from rolltape.store.sqlite.schema import FILE_NAME
from rolltape.testing.contracts import entry

RECORDED = Path(__file__).parents[1] / "data" / "store" / "store-v1.db"
OPEN = (
    "import sys; from rolltape.store.sqlite import schema; from pathlib import Path; schema.prepare(Path(sys.argv[1]))"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(RECORDED, tmp_path / FILE_NAME)
    return tmp_path


def version_of(folder: Path) -> int:
    db = sqlite3.connect(folder / FILE_NAME)
    try:
        return int(db.execute("PRAGMA user_version").fetchone()[0])
    finally:
        db.close()


def tables_of(folder: Path) -> set[tuple[str, str]]:
    db = sqlite3.connect(folder / FILE_NAME)
    try:
        return set(db.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
    finally:
        db.close()


async def test_the_store_of_the_release_before_opens_with_all_it_held(folder: Path) -> None:
    async with TokenCaptureStore(folder, settle_seconds=0) as store:
        states = {state.rollout_id: state for state in await store.rollouts()}
        assert list(states) == ["open-0", "frozen-0", "dropped-0", "incomplete-0"]
        assert [state.frozen for state in states.values()] == [False, True, True, True]
        assert [state.incomplete for state in states.values()] == [False, False, False, True]
        assert [state.retired_at is not None for state in states.values()] == [False, False, True, False]
        assert (states["open-0"].n_open_calls, states["open-0"].labels) == (1, {"task": "t1"})
        assert (states["frozen-0"].reward, states["frozen-0"].ending) == (1.0, "finished")
        assert await store.policy() == PolicyState("7", "serving")
        read = await store.read("open-0", texts=True)
        assert read is not None
        assert [one.prompt_token_ids.tolist() for one in read.entries] == [
            [1, 0],
            [1, 0, 60, 2, 1],
            [1, 0, 60, 2, 1, 61, 2, 2],
        ]
        assert [one.request_text for one in read.entries] == [b'{"messages":[%d]}' % n for n in range(3)]
        assert [str(one.delivery) for one in read.entries] == ["delivered"] * 3
    assert version_of(folder) == len(schema.MIGRATIONS)
    assert verify(folder).sound


async def test_a_rollout_that_an_earlier_release_began_is_finished_by_this_one(folder: Path) -> None:
    async with TokenCaptureStore(folder, settle_seconds=0) as store:
        await store.put(entry("k3", [1, 0, 60, 2, 1, 61, 2, 2, 62, 2, 9], [63, 2], rollout_id="open-0"))
        snapshot = await store.freeze("open-0")
        assert (snapshot.entries[-1].parent_call_id, snapshot.incomplete) == ("k2", False)
        assert await store.drop("open-0", snapshot_id=snapshot.snapshot_id, version=snapshot.version)
        frozen = await store.freeze("frozen-0")
        assert await store.drop("frozen-0", snapshot_id=frozen.snapshot_id, version=frozen.version)
        assert set((await store.sweep(0)).rollout_ids) == {"dropped-0", "open-0", "frozen-0"}


async def test_an_earlier_schema_can_be_verified_without_being_changed(folder: Path) -> None:
    report = verify(folder)
    assert (report.rollouts, report.entries, report.sound) == (4, 6, True)
    assert version_of(folder) == 1


async def test_a_migrated_store_has_the_tables_of_a_new_one(folder: Path, tmp_path: Path) -> None:
    schema.prepare(folder)
    schema.prepare(tmp_path / "new")
    assert tables_of(folder) == tables_of(tmp_path / "new")


def test_processes_that_open_it_at_once_migrate_it_once(folder: Path) -> None:
    opening = [subprocess.Popen([sys.executable, "-c", OPEN, str(folder)]) for _ in range(4)]
    assert [process.wait() for process in opening] == [0] * 4
    assert version_of(folder) == len(schema.MIGRATIONS)


def test_a_step_that_fails_leaves_the_version_before_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step is one transaction: what came before the failing one stays, nothing of it does."""
    good = "CREATE TABLE later (a INTEGER);"
    bad = "CREATE TABLE halfway (a INTEGER); CREATE TABLE rollouts (a INTEGER);"
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, good, bad))
    with pytest.raises(StoreError, match="no usable store"):
        schema.prepare(folder)
    assert version_of(folder) == len(schema.MIGRATIONS) - 1
    names = {name for name, _ in tables_of(folder)}
    assert ("later" in names, "halfway" in names) == (True, False)
    monkeypatch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:-1])
    schema.prepare(folder)


def test_a_newer_schema_is_refused_with_both_versions(folder: Path) -> None:
    db = sqlite3.connect(folder / FILE_NAME)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreError, match=rf"schema version 99; .* up to {len(schema.MIGRATIONS)}\b"):
        TokenCaptureStore(folder)


def test_a_file_that_another_program_made_is_refused_and_left_alone(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / FILE_NAME)
    db.execute("CREATE TABLE rollouts (mine TEXT)")
    db.close()
    with pytest.raises(StoreError, match="another program"):
        TokenCaptureStore(tmp_path)
    assert version_of(tmp_path) == 0


async def test_an_empty_file_left_by_a_crash_is_finished(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).touch()
    async with TokenCaptureStore(tmp_path) as store:
        await store.put(entry("k1", [1], [60, 2]))
    assert verify(tmp_path).sound


def test_a_directory_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    """As any user but root sees it."""
    tmp_path.chmod(0o555)
    for above in tmp_path.parents:
        if above != Path("/") and above.stat().st_uid == os.getuid() and len(above.parts) > 2:
            above.chmod(0o755)
    script = (
        "import asyncio, os, sys\n"
        "from rolltape.errors import StoreError\n"
        "from rolltape.store import TokenCaptureStore\n"
        "if os.getuid() == 0: os.setgid(65534); os.setuid(65534)\n"
        "try: TokenCaptureStore(sys.argv[1])\n"
        "except StoreError as error: print(error.message); sys.exit(0)\n"
        "sys.exit(1)\n"
    )
    refused = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    tmp_path.chmod(0o755)
    assert (refused.returncode, "cannot open the store" in refused.stdout) == (0, True), refused


def test_one_store_opened_twice_in_one_process_is_one_store(folder: Path) -> None:
    stores = [TokenCaptureStore(folder) for _ in range(2)]
    for store in stores:
        asyncio.run(store.close())
    assert version_of(folder) == len(schema.MIGRATIONS)
