"""Plain torch: log-probs of rows and of packed trees, for a loss of your own."""

from rolltape.trainers.torch.log_probs import gathered, packed_log_probs, row_log_probs

__all__ = ["gathered", "packed_log_probs", "row_log_probs"]
