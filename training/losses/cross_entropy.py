"""Cross entropy with class shares: votes, mixed labels or one-hot."""

from torch import Tensor
from torch.nn import functional

from mien.training.config import LossConfig


def loss(logits: Tensor, targets: Tensor, config: LossConfig) -> Tensor:
    """Mean cross entropy, (B, K) each."""
    return functional.cross_entropy(logits, targets, label_smoothing=config.label_smoothing)
