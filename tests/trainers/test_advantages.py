"""An advantage belongs to a rollout; its rows only share it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltape.record import Row
from rolltape.trainers.advantages import advantages, dr_grpo, grouped, grpo, rloo, with_advantages


def test_a_group_is_compared_with_itself():
    found = advantages({"a": 1.0, "b": 0.0, "c": 1.0, "d": 5.0}, {"a": "t", "b": "t", "c": "t", "d": "u"}, dr_grpo)
    assert found == {"a": pytest.approx(1 / 3), "b": pytest.approx(-2 / 3), "c": pytest.approx(1 / 3), "d": 0.0}


def test_a_crash_is_no_low_reward():
    groups = dict.fromkeys("abc", "t")
    assert "c" not in advantages({"a": 1.0, "b": 0.0, "c": None}, groups)
    assert advantages({"a": 1.0, "b": 0.0, "c": None}, groups) == advantages({"a": 1.0, "b": 0.0}, groups)


def test_a_group_without_spread_teaches_nothing():
    assert advantages({"a": 0.7, "b": 0.7}, {"a": "t", "b": "t"}) == {"a": 0.0, "b": 0.0}


def test_the_spread_is_that_of_a_sample():
    assert grpo([1.0, 0.0]) == [pytest.approx(0.7071, abs=1e-4), pytest.approx(-0.7071, abs=1e-4)]


def test_leave_one_out_compares_with_the_others():
    assert rloo([1.0, 0.0, 0.0]) == [1.0, -0.5, -0.5]


@pytest.mark.parametrize(
    ("rewards", "masked", "reason"),
    [
        ([1.0, 0.0, float("nan"), 1.0], {}, "the reward is nan"),
        ([1.0, 0.0, None, 1.0], {}, "there is no reward"),
        ([1.0, 0.0, 0.0, 1.0], {"r2": "incomplete"}, "masked: incomplete"),
    ],
)
def test_what_has_no_reward_or_is_masked_has_no_vote(rewards, masked, reason):
    """Case ED-04 and its variant: the same numbers."""
    named = {f"r{n}": reward for n, reward in enumerate(rewards)}
    groups = dict.fromkeys(named, "g1")
    group = grouped(named, groups, masked)["g1"]

    assert (group.usable, group.excluded) == (3, {"r2": reason})
    assert (group.mean, group.spread) == (pytest.approx(0.6667, abs=1e-4), pytest.approx(0.4714, abs=1e-4))
    found = advantages(named, groups, masked=masked)
    assert found == advantages({"r0": 1.0, "r1": 0.0, "r3": 1.0}, groups)
    assert "r2" not in found


def test_a_group_in_which_nobody_votes_has_no_numbers():
    group = grouped({"a": None}, {"a": "t"})["t"]
    assert (group.usable, group.mean, group.spread) == (0, None, None)
    assert advantages({"a": None}, {"a": "t"}) == {}


@pytest.mark.parametrize("baseline", [grpo, dr_grpo, rloo])
@given(rewards=st.lists(st.floats(-10, 10, width=16), min_size=1, max_size=9))
def test_a_group_neither_gains_nor_loses(baseline, rewards):
    names = [f"r{n}" for n in range(len(rewards))]
    found = advantages(dict(zip(names, rewards, strict=True)), dict.fromkeys(names, "t"), baseline)
    assert sum(found.values()) == pytest.approx(0, abs=1e-3)


def test_every_row_of_a_rollout_gets_its_advantage_and_shifts_no_mean():
    ids = np.array([1, 2], np.int32)
    mask, said = np.array([0, 1], np.int8), np.array([np.nan, -1.0], np.float32)
    rows = [Row(f"{name}:{n}", name, ids, mask, said, ()) for n, name in enumerate(["a", "a", "b", "crashed"])]
    found = advantages({"a": 1.0, "b": 0.0, "crashed": None}, dict.fromkeys(["a", "b", "crashed"], "t"), dr_grpo)
    assert [row.advantage for row in with_advantages(rows, found)] == [0.5, 0.5, -0.5, None]
