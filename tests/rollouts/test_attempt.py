"""Reward rules."""

import pytest

from rolltape.rollouts.attempt import reward_of


@pytest.mark.parametrize(
    ("exit_code", "output", "reward"),
    [
        (0, "", 1.0),
        (0, "all good\n", 1.0),
        (0, "log\n0.25\n", 0.25),
        (0, "0.25\nlog\n", 1.0),
        (0, "-3", -3.0),
        (0, "1e-3\n\n  \n", 0.001),
        (0, ".5", 0.5),
        (0, "nan", 1.0),
        (0, "inf", 1.0),
        (0, "1e999", 1.0),
        (0, "1_000", 1.0),
        (0, "0.5 0.6", 1.0),
        (1, "0.9", 0.0),
        (-9, "", 0.0),
    ],
)
def test_the_check_gives_the_reward(exit_code: int, output: str, reward: float) -> None:
    assert reward_of(exit_code, output) == reward
