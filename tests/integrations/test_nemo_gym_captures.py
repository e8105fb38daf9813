"""Gym's capture files into a store: every call, or a word on why not."""

import shutil
from pathlib import Path

import pytest
from tests.integrations.recorded import CAPTURES

from rolltape.integrations.nemo_gym import ImportedRollout, import_gym_captures
from rolltape.store import TokenCaptureStore


@pytest.fixture
def captures(tmp_path: Path) -> Path:
    """A copy of the recorded files, to damage."""
    return Path(shutil.copytree(CAPTURES, tmp_path / "gym"))


async def test_every_rollout_is_imported_and_what_gym_lost_is_marked(store: TokenCaptureStore) -> None:
    assert await import_gym_captures(CAPTURES, store) == [
        ImportedRollout("deltas", 3),
        ImportedRollout("lost", 3, (("c3", "the call began and has no record"), ("c4", "marked by its writer"))),
        ImportedRollout("whole", 3),
    ]
    frozen = {name: await store.freeze(name) for name in ("deltas", "lost", "whole")}
    assert {name: snapshot.incomplete for name, snapshot in frozen.items()} == {
        "deltas": False,
        "lost": True,
        "whole": False,
    }
    prompts = {name: [e.prompt_token_ids.tolist() for e in snapshot.entries] for name, snapshot in frozen.items()}
    assert prompts["deltas"] == prompts["whole"] == [[1, 2, 3], [1, 2, 3, 10, 11, 4, 5], [1, 2, 3, 10, 11, 4, 5, 12, 6]]


async def test_importing_again_changes_nothing(store: TokenCaptureStore) -> None:
    first = await import_gym_captures(CAPTURES, store)
    versions = [state.version for state in await store.rollouts()]
    assert await import_gym_captures(CAPTURES, store) == first
    assert [state.version for state in await store.rollouts()] == versions


async def test_a_rollout_that_was_handed_over_takes_nothing(store: TokenCaptureStore) -> None:
    await import_gym_captures(CAPTURES, store)
    snapshot = await store.freeze("whole")
    assert await store.drop("whole", snapshot_id=snapshot.snapshot_id, version=snapshot.version)
    assert (await import_gym_captures(CAPTURES, store))[-1] == ImportedRollout("whole", 0, retired=True)


async def test_a_torn_last_line_is_marked_and_the_calls_before_it_are_kept(
    captures: Path, store: TokenCaptureStore
) -> None:
    path = captures / "whole.tokens.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    imported = (await import_gym_captures(captures, store))[-1]
    assert imported.n_calls == 2
    assert [call_id for call_id, _ in imported.lost] == ["", "c2"]
    assert (await store.freeze("whole")).incomplete


async def test_a_line_that_does_not_match_its_digest_is_not_taken(captures: Path, store: TokenCaptureStore) -> None:
    path = captures / "whole.tokens.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"generation_token_ids":[12]', b'"generation_token_ids":[19]'))
    imported = (await import_gym_captures(captures, store))[-1]
    assert ("c1", "line 2 does not match its digest") in imported.lost
    assert {entry.model_call_id for entry in (await store.freeze("whole")).entries} == {"c0", "c2"}


async def test_a_delta_whose_parent_is_gone_is_marked_and_so_are_those_that_follow(
    captures: Path, store: TokenCaptureStore
) -> None:
    path = captures / "deltas.tokens.jsonl"
    path.write_bytes(b"\n".join(path.read_bytes().splitlines()[1:]))
    imported = (await import_gym_captures(captures, store))[0]
    assert imported.n_calls == 0
    assert {call_id for call_id, _ in imported.lost} == {"c0", "c1", "c2"}


async def test_a_state_file_that_cannot_be_read_marks_the_rollout(captures: Path, store: TokenCaptureStore) -> None:
    (captures / "whole.tokens.state.json").write_bytes(b"{")
    imported = (await import_gym_captures(captures, store))[-1]
    assert imported.n_calls == 3
    assert imported.lost[0][1].startswith("the state file cannot be read")


async def test_a_line_of_another_rollout_is_not_taken(captures: Path, store: TokenCaptureStore) -> None:
    (captures / "other.tokens.jsonl").write_bytes((captures / "whole.tokens.jsonl").read_bytes())
    other = (await import_gym_captures(captures, store))[2]
    assert (other.rollout_id, other.n_calls, len(other.lost)) == ("other", 0, 3)
