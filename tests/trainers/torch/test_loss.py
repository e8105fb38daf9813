"""The clipped objective, by hand."""

import math

import pytest
import torch

from rolltape.trainers.torch.loss import LossShape, policy_loss

pytestmark = pytest.mark.real
NAN = float("nan")


def values(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, requires_grad=True)


def test_fresh_tokens_have_a_ratio_of_one():
    loss = policy_loss(values(NAN, -1.0, -2.0), torch.tensor([NAN, -1.0, -2.0]), 0.5)
    assert loss.total.item() == pytest.approx(-1.0)
    assert (loss.tokens, loss.clipped, loss.max_difference) == (2, 0, 0.0)


def test_context_has_no_gradient():
    now = values(-0.3, -1.0)
    policy_loss(now, torch.tensor([NAN, -1.0]), 2.0).total.backward()
    assert now.grad.tolist() == [0.0, -2.0]


def test_a_ratio_above_the_clip_stops_pulling():
    now = values(-0.5)
    loss = policy_loss(now, torch.tensor([-1.0]), 1.0)
    loss.total.backward()
    assert (loss.total.item(), loss.clipped) == (pytest.approx(-1.2), 1)
    assert now.grad.tolist() == [0.0]


def test_the_clip_may_be_higher_above_than_below():
    wide = policy_loss(values(-0.75), torch.tensor([-1.0]), 1.0, LossShape(clip_high=0.28))
    narrow = policy_loss(values(-0.75), torch.tensor([-1.0]), 1.0, LossShape(clip_high=0.2))
    assert (wide.total.item(), narrow.total.item()) == (pytest.approx(-1.28), pytest.approx(-1.2))


def test_a_bad_reply_is_pushed_down_however_unlikely_it_has_become():
    now = values(-0.5)
    policy_loss(now, torch.tensor([-1.0]), -1.0).total.backward()
    assert now.grad.item() == pytest.approx(math.exp(0.5))


def test_one_ratio_a_sequence_is_the_geometric_mean_of_its_tokens():
    now = values(-1.1, -0.9)
    loss = policy_loss(now, torch.tensor([-1.0, -1.0]), 1.0, LossShape(ratio="sequence"))
    loss.total.backward()
    assert loss.total.item() == pytest.approx(-2.0)
    assert now.grad.tolist() == pytest.approx([-1.0, -1.0])


def test_what_lies_between_sampler_and_trainer_is_a_weight_with_a_bound():
    recorded, before = torch.tensor([-3.0, -1.0]), torch.tensor([-1.0, -1.1])
    loss = policy_loss(values(-1.0, -1.1), recorded, 1.0, LossShape(truncate_at=2.0), before)
    assert loss.total.item() == pytest.approx(-(2.0 + math.exp(-0.1)))


def test_a_token_whose_log_prob_is_missing_stops_the_training():
    with pytest.raises(ValueError, match="miss tokens"):
        policy_loss(values(NAN, -1.0), torch.tensor([-1.0, -1.0]), 1.0)
