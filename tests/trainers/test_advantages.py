"""An advantage belongs to a rollout; its rows only share it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltape.trainers.advantages import advantages, dr_grpo, grpo, rloo


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


def test_a_reward_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="reward of a"):
        advantages({"a": float("nan")}, {"a": "t"})


@pytest.mark.parametrize("baseline", [grpo, dr_grpo, rloo])
@given(rewards=st.lists(st.floats(-10, 10, width=16), min_size=1, max_size=9))
def test_a_group_neither_gains_nor_loses(baseline, rewards):
    names = [f"r{n}" for n in range(len(rewards))]
    found = advantages(dict(zip(names, rewards, strict=True)), dict.fromkeys(names, "t"), baseline)
    assert sum(found.values()) == pytest.approx(0, abs=1e-3)
