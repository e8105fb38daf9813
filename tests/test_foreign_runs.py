"""A run on a gateway whose tokens are somebody else's, or nobody's."""

from dataclasses import replace

import pytest

from rollouts.folder_desk import CALL, FolderDesk, make_plan, rows_of
from rolltape.rollouts import run_rollouts
from rolltape.rollouts.run import NOT_CAPTURED

ONE = [{"id": "t", "prompt": "hello", "check": "true"}]


class Desk(FolderDesk):
    """A gateway that says of every rollout what it does and does not do."""

    def __init__(self, folder, **says):
        super().__init__(folder)
        self.says = says

    async def create(self, rollout_id, *, labels, budget):
        return replace(await super().create(rollout_id, labels=labels, budget=budget), **self.says)


@pytest.fixture
def plan(tmp_path):
    return make_plan(tmp_path, ONE, CALL)


async def test_where_the_framework_rebuilds_a_run_stops_after_the_write(tmp_path, plan):
    desk = Desk(tmp_path / "store", rebuild=False)
    await run_rollouts(plan, desk, desk)
    (row,) = rows_of(plan)
    assert (row["_ng_rollout_id"], row["reward"], row["exclude"], row["mask_sample"]) == ("t-0", 1.0, False, False)
    assert "_ng_token_capture" not in row
    assert desk.log == ["create t-0", "outcome t-0"]


async def test_a_rollout_that_is_not_captured_keeps_its_reward_and_is_left_out(tmp_path, plan):
    desk = Desk(tmp_path / "store", captured=False)
    await run_rollouts(plan, desk, desk)
    (row,) = rows_of(plan)
    assert (row["reward"], row["exclude"], row["excluded_reason"]) == (1.0, True, NOT_CAPTURED)
    assert desk.log == ["create t-0", "outcome t-0"]
