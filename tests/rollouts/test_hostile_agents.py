"""An agent has a shell in its attempt's folder: whatever it does there, its own rollout bears it, and no other."""

from pathlib import Path

import pytest

from rollouts.folder_desk import CALL, FolderDesk, make_plan, rows_of
from rolltape.rollouts import run_rollouts

TASK = [{"id": "t", "prompt": "hello", "check": "test -e answer"}]


@pytest.fixture
def desk(tmp_path: Path) -> FolderDesk:
    return FolderDesk(tmp_path / "store")


@pytest.mark.parametrize(
    "deed",
    [
        "rm -rf ../out",
        "rm -rf ../out; touch ../out",
        "mkfifo ../out/check.stdout",
        "mkdir ../out/check.stdout",
        "ln -s /dev/full ../out/check.stderr",
        "touch ../check-home",
        "cd ..; rm -rf workspace",
        "cd ..; rm -rf workspace; touch workspace",
        "cd ..; rm -rf workspace; ln -s / workspace",
        "rm -rf ../tmp ../home",
        "chmod 0 .",
        'rm -rf "$(dirname $PWD)"',
    ],
)
async def test_a_failed_task_gets_its_zero_whatever_its_agent_broke(
    tmp_path: Path, desk: FolderDesk, deed: str
) -> None:
    plan = make_plan(tmp_path, TASK, f"{CALL}; {deed}; exit 0", group_size=2)
    await run_rollouts(plan, desk, desk)
    assert [(row["ending"], row["reward"], row["exclude"]) for row in rows_of(plan)] == [("finished", 0.0, False)] * 2


@pytest.mark.parametrize("deed", ["rm -rf ../out", "rm ../out/stderr; mkfifo ../out/stderr"])
async def test_a_crash_that_took_its_output_along_is_still_a_crash(tmp_path: Path, desk: FolderDesk, deed: str) -> None:
    plan = make_plan(tmp_path, TASK, f"{CALL}; {deed}; exit 7")
    await run_rollouts(plan, desk, desk)
    assert [(row["ending"], row["reward"], row["exit_code"]) for row in rows_of(plan)] == [("crashed", None, 7)]


async def test_what_the_agent_left_in_the_checks_home_does_not_steer_the_check(
    tmp_path: Path, desk: FolderDesk
) -> None:
    task = [{"id": "t", "prompt": "hello", "check": "test ! -e ~/planted"}]
    plan = make_plan(tmp_path, task, f"{CALL}; mkdir ../check-home; touch ../check-home/planted; exit 0")
    await run_rollouts(plan, desk, desk)
    assert [row["reward"] for row in rows_of(plan)] == [1.0]
