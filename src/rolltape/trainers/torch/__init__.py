"""Plain torch: log-probs of rows and of packed trees, and the policy loss over them."""

from rolltape.trainers.torch.batch import batch_log_probs
from rolltape.trainers.torch.log_probs import gathered, packed_log_probs, row_log_probs
from rolltape.trainers.torch.loss import LossShape, RowLoss, policy_loss

__all__ = ["LossShape", "RowLoss", "batch_log_probs", "gathered", "packed_log_probs", "policy_loss", "row_log_probs"]
