"""Bytes that changed on the disk are found, named and left out; what they did not touch is still given."""

import sqlite3
from pathlib import Path

import pytest

from rolltape.errors import StoreError
from rolltape.record import TokenCaptureSnapshot
from rolltape.store import TokenCaptureStore
from rolltape.store.sqlite import verify
from rolltape.store.sqlite.schema import FILE_NAME
from rolltape.testing.contracts import entry


async def stored_chain(folder: Path) -> None:
    """k0 <- k1 <- k2, each with texts, and a rollout S beside them."""
    async with TokenCaptureStore(folder) as store:
        sequence = [1]
        for number in range(3):
            one = entry(f"k{number}", [*sequence, number], [60, 61, 2], request_text=b"x" * 100 * (number + 1))
            await store.put(one)
            sequence = one.sequence.tolist()
        await store.put(entry("s0", [1], [60, 2], rollout_id="S"))


def change(folder: Path, statement: str) -> None:
    db = sqlite3.connect(folder / FILE_NAME)
    assert db.execute(statement).rowcount == 1
    db.commit()
    db.close()


async def freeze(folder: Path, rollout_id: str = "R") -> TokenCaptureSnapshot:
    async with TokenCaptureStore(folder) as store:
        return await store.freeze(rollout_id)


async def test_a_sound_store_has_no_problems(tmp_path: Path) -> None:
    await stored_chain(tmp_path)
    seen: list[tuple[int, int]] = []
    report = verify(tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert (report.rollouts, report.entries, report.texts, report.problems) == (2, 4, 3, ())
    assert seen == [(1, 2), (2, 2)]


@pytest.mark.parametrize(
    ("statement", "left"),
    [
        ("UPDATE entries SET log_probs = zeroblob(12) WHERE call_id = 'k1'", ["k0", "k2"]),
        ("UPDATE entries SET header = '{\"model\":\"n\"}' WHERE call_id = 'k1'", ["k0", "k2"]),
        ("UPDATE entries SET ids = zeroblob(length(ids)) WHERE call_id = 'k1'", ["k0"]),
        ("UPDATE entries SET ids = x'00' WHERE call_id = 'k1'", ["k0"]),
        ("UPDATE entries SET header = CAST(x'ff' AS TEXT) WHERE call_id = 'k1'", ["k0"]),
        ("UPDATE entries SET packed = 1 WHERE call_id = 'k1'", ["k0"]),
        ("UPDATE entries SET base_len = 3 WHERE call_id = 'k1'", ["k0"]),
        ("UPDATE entries SET digest = x'00' WHERE call_id = 'k1'", ["k0", "k2"]),
        ("UPDATE entries SET prompt_digest = x'00' WHERE call_id = 'k1'", ["k0", "k2"]),
        ("DELETE FROM entries WHERE call_id = 'k1'", ["k0"]),
        ("DELETE FROM entries WHERE call_id = 'k2'", ["k0", "k1"]),
    ],
)
async def test_a_changed_row_is_left_out_and_named(tmp_path: Path, statement: str, left: list[str]) -> None:
    await stored_chain(tmp_path)
    change(tmp_path, statement)
    snapshot = await freeze(tmp_path)
    assert [one.model_call_id for one in snapshot.entries] == left
    assert snapshot.incomplete
    assert all("damaged" in reason for reason in snapshot.incomplete_reasons)
    assert not (await freeze(tmp_path, "S")).incomplete
    report = verify(tmp_path)
    assert len(report.problems) == len(snapshot.incomplete_reasons)
    assert all(problem.startswith("R: ") for problem in report.problems)


async def test_a_damaged_text_is_no_damage_to_the_rollout(tmp_path: Path) -> None:
    await stored_chain(tmp_path)
    change(tmp_path, "UPDATE texts SET request = x'00' WHERE base IS NULL")
    snapshot = await freeze(tmp_path)
    assert not snapshot.incomplete
    assert any("texts are unreadable" in problem for problem in verify(tmp_path).problems)


async def test_a_rollout_goes_on_after_damage(tmp_path: Path) -> None:
    """A later call is not based on what cannot be read."""
    await stored_chain(tmp_path)
    change(tmp_path, "UPDATE entries SET ids = x'00' WHERE call_id = 'k1'")
    async with TokenCaptureStore(tmp_path) as store:
        await store.put(entry("k3", [1, 0, 60, 61, 2, 1, 60, 61, 2, 2, 60, 61, 2, 9], [2]))
        snapshot = await store.freeze("R")
    assert [one.model_call_id for one in snapshot.entries] == ["k0", "k3"]


async def test_a_torn_file_is_reported_and_never_an_exception_out_of_freeze(tmp_path: Path) -> None:
    async with TokenCaptureStore(tmp_path) as store:
        for number in range(50):
            await store.put(entry(f"k{number}", list(range(number * 2000, number * 2000 + 2000)), [2]))
    file = tmp_path / FILE_NAME
    size = file.stat().st_size
    with file.open("r+b") as handle:
        handle.seek(size // 2)
        handle.write(b"\xff" * 20_000)
    snapshot = await freeze(tmp_path)
    assert snapshot.incomplete
    assert 0 < len(snapshot.entries) < 50
    assert not verify(tmp_path).sound


async def test_retention_removes_what_retired_rollouts_held_and_keeps_the_fence(tmp_path: Path) -> None:
    await stored_chain(tmp_path)
    async with TokenCaptureStore(tmp_path) as store:
        snapshot = await store.freeze("R")
        assert not (await store.sweep(0)).rollout_ids
        assert await store.drop("R", snapshot_id=snapshot.snapshot_id, version=snapshot.version)
        assert not (await store.sweep()).rollout_ids
        assert (await store.sweep(0)).rollout_ids == ("R",)
        assert await store.read("R") is None
        with pytest.raises(StoreError, match="retired"):
            await store.begin_call("R", "k9")
        assert len((await store.freeze("S")).entries) == 1
    report = verify(tmp_path)
    assert (report.swept, report.entries, report.sound) == (1, 1, True)


def test_no_store_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store"):
        verify(tmp_path)


@pytest.mark.parametrize("said", ["'{oops'", "'[1]'", "x'ff'", "7"])
async def test_an_outcome_that_cannot_be_read_is_damage_and_no_exception(tmp_path: Path, said: str) -> None:
    await stored_chain(tmp_path)
    change(tmp_path, f"UPDATE rollouts SET outcome = {said} WHERE rollout_id = 'R'")
    async with TokenCaptureStore(tmp_path) as store:
        snapshot, states = await store.freeze("R"), await store.rollouts()
    assert (len(snapshot.entries), snapshot.incomplete, snapshot.outcome) == (3, True, {})
    assert len(states) == 2
    assert not verify(tmp_path).sound


@pytest.mark.parametrize("column", ["digest", "prompt_digest", "ids", "log_probs", "header", "base", "n_prompt"])
async def test_a_column_of_another_type_is_damage_and_no_exception(tmp_path: Path, column: str) -> None:
    await stored_chain(tmp_path)
    for value in ("7", "'text'", "1.5", "-1", "x'00'"):
        change(tmp_path, f"UPDATE entries SET {column} = {value} WHERE call_id = 'k1'")
        snapshot = await freeze(tmp_path)
        assert snapshot.incomplete, value
        assert not verify(tmp_path).sound, value
        assert "k1" not in [entry.model_call_id for entry in snapshot.entries]


async def test_a_schema_whose_text_is_no_text_is_an_unusable_store(tmp_path: Path) -> None:
    await stored_chain(tmp_path)
    file = tmp_path / FILE_NAME
    whole = file.read_bytes()
    at = whole.index(b"CREATE TABLE rollouts")
    file.write_bytes(whole[: at + 13] + b"\xff\xfe" + whole[at + 15 :])
    assert not verify(tmp_path).sound
    with pytest.raises(StoreError, match="no usable store"):
        TokenCaptureStore(tmp_path)
