"""Policy losses over recorded log-probs.

The recorded log-probs are those of the policy that sampled, so they are the denominator of the ratio, and no second
forward pass is needed for it. Where the trainer's own log-probs before the update are given as well (an engine in
another precision, or one behind by some steps), the ratio is taken to those, and what lies between the two is a
weight on the token, truncated: TIS, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (2025).

PPO's clipped objective: arXiv 1707.06347. A wider clip above than below: DAPO, arXiv 2503.14476. One ratio a sequence:
GSPO, arXiv 2507.18071.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LossShape:
    """`clip_low` and `clip_high` bound the ratio to [1 - low, 1 + high]. `ratio`: one a token, or one a sequence, the
    geometric mean over its tokens. `truncate_at` bounds the weight between sampler and trainer from above; None = no
    such weight."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    ratio: Literal["token", "sequence"] = "token"
    truncate_at: float | None = None


@dataclass(frozen=True, slots=True)
class RowLoss:
    """`total` is the sum over the row's tokens, not yet divided by anything; it carries the gradient. `tokens` of them
    were summed, `clipped` of them had a ratio that the clip cut off. `max_difference` is the largest distance, in nats,
    of a log-prob from the recorded one."""

    total: Tensor
    tokens: int
    clipped: int
    max_difference: float


def policy_loss(
    log_probs: Tensor,
    recorded: Tensor,
    advantage: float,
    shape: LossShape = LossShape(),
    before: Tensor | None = None,
) -> RowLoss:
    """The loss of one row. All tensors are (T,); `recorded` is NaN where the row holds no loss.

    `before` are the trainer's log-probs before the update, None = the recorded ones stand for them. Raises `ValueError`
    where a token with loss has no log-prob: a trainer must not fill in what it does not know.
    """
    owned = ~torch.isnan(recorded)
    now, then = log_probs[owned], recorded[owned]
    old = then if before is None else before[owned].detach()
    for name, values in (("the model's", now), ("the earlier", old)):
        if not torch.isfinite(values).all():
            raise ValueError(f"{name} log-probs miss tokens that the row's loss holds")
    ratio = _ratio(now - old, shape)
    clipped = ratio.clamp(1 - shape.clip_low, 1 + shape.clip_high)
    gain = torch.minimum(ratio * advantage, clipped * advantage)
    if shape.truncate_at is not None:
        gain = gain * (old - then).exp().clamp(max=shape.truncate_at)
    with torch.no_grad():
        cut = int((clipped * advantage < ratio * advantage).sum())
        furthest = float((now - then).abs().max()) if len(now) else 0.0
    return RowLoss(-gain.sum(), len(now), cut, furthest)


def _ratio(difference: Tensor, shape: LossShape) -> Tensor:
    if shape.ratio == "token" or not len(difference):
        return difference.exp()
    # the value is the sequence's, the gradient reaches each token through its own log-prob
    mean = difference.mean()
    return (difference - difference.detach() + mean.detach()).exp()
