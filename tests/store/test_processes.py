"""Several processes share one directory: fences, prefixes and policy hold for all of them."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from rolltape.errors import FrozenError, StoreError
from rolltape.store import PolicyState, TokenCaptureStore
from rolltape.store.sqlite import schema, verify
from rolltape.testing.contracts import entry

FREEZE = """
import asyncio, sys
from rolltape.store import TokenCaptureStore
async def main():
    async with TokenCaptureStore(sys.argv[1], settle_seconds=2) as store:
        snapshot = await store.freeze("R")
        print(len(snapshot.entries), snapshot.incomplete, snapshot.version)
asyncio.run(main())
"""


async def test_a_freeze_from_another_process_fences_the_writer(store: TokenCaptureStore, tmp_path: Path) -> None:
    """Calls that began before the fence are waited for and stored; none begins after it."""
    freezing: asyncio.subprocess.Process | None = None
    number = 0
    try:
        while True:
            await store.begin_call("R", f"k{number}")
            await store.put(entry(f"k{number}", [1, number], [60, 2]))
            number += 1
            if number == 20:
                freezing = await asyncio.create_subprocess_exec(
                    sys.executable, "-c", FREEZE, str(tmp_path / "store"), stdout=subprocess.PIPE
                )
    except FrozenError:
        pass
    assert freezing is not None
    output, _ = await freezing.communicate()
    assert output.decode().split() == [str(number), "False", str(number + 1)]


async def test_two_stores_that_write_one_rollout_continue_each_other(tmp_path: Path) -> None:
    a, b = TokenCaptureStore(tmp_path), TokenCaptureStore(tmp_path)
    sequence = [1]
    for number in range(20):
        one = entry(f"k{number}", [*sequence, number], [60, 2])
        await (a, b)[number % 2].put(one)
        sequence = one.sequence.tolist()
    snapshot = await a.freeze("R")
    assert [one.parent_call_id for one in snapshot.entries] == [None, *(f"k{number}" for number in range(19))]
    assert [one.step_index for one in snapshot.entries] == list(range(20))
    await a.close()
    await b.close()
    assert verify(tmp_path).sound


async def test_every_process_sees_the_policy(tmp_path: Path) -> None:
    async with TokenCaptureStore(tmp_path) as a, TokenCaptureStore(tmp_path) as b:
        await a.set_policy(PolicyState("9", "paused"))
        assert await b.policy() == PolicyState("9", "paused")


def test_a_directory_is_made_private(tmp_path: Path) -> None:
    schema.prepare(tmp_path / "deep" / "store")
    assert (tmp_path / "deep" / "store").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "deep" / "store" / schema.FILE_NAME).stat().st_mode & 0o777 == 0o600


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    file = schema.prepare(tmp_path)
    db = schema.connect(file)
    db.execute(f"PRAGMA user_version = {len(schema.MIGRATIONS) + 1}")
    db.close()
    with pytest.raises(StoreError, match="schema version"):
        TokenCaptureStore(tmp_path)
    with pytest.raises(StoreError, match="schema version"):
        verify(tmp_path)


def test_a_place_that_can_hold_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot open"):
        TokenCaptureStore(tmp_path / "file" / "store")
    (tmp_path / schema.FILE_NAME).write_text("this is no database" * 100)
    with pytest.raises(StoreError, match="no usable store"):
        TokenCaptureStore(tmp_path)
