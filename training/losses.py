"""Losses: supervised cross entropy, and the four distillation modes of DeiT.

Source: Touvron et al. 2021, "Training data-efficient image transformers & distillation through attention", eq. 2 and 3.
"""

from torch import Tensor
from torch.nn import functional

from mien.models.backbones import Heads
from mien.models.network import select_head
from mien.training.config import DistillationConfig


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    logit_adjustment: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Mean cross entropy with class shares (votes, mixed labels or one-hot).

    Args:
        logits: (B, 7).
        target: (B, 7), rows sum to 1, or are 0 without a label.
        logit_adjustment: (7,), tau times the log class frequency, added to the logits in training only, so that rare
            classes are not suppressed in serving. Source: Menon et al. 2021, eq. 10.
        label_smoothing: share of the target spread evenly over the classes.
    """
    adjusted = logits.float() if logit_adjustment is None else logits.float() + logit_adjustment
    return functional.cross_entropy(adjusted, target, label_smoothing=label_smoothing)


def soft_distillation(student_logits: Tensor, teacher_logits: Tensor, *, temperature: float) -> Tensor:
    """tau^2 KL(teacher || student) at temperature tau, (B, 7) each. Source: Hinton et al. 2015; DeiT eq. 2."""
    # batchmean: DeiT's published code divides by numel, which is 7x smaller at 7 classes
    return temperature**2 * functional.kl_div(
        functional.log_softmax(student_logits.float() / temperature, dim=-1),
        functional.log_softmax(teacher_logits.float() / temperature, dim=-1),
        reduction="batchmean",
        log_target=True,
    )


def hard_distillation(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Cross entropy with the teacher's prediction as the label, (B, 7) each. Source: DeiT eq. 3."""
    return functional.cross_entropy(student_logits.float(), teacher_logits.argmax(dim=-1))


def distillation_loss(heads: Heads, teacher_logits: Tensor, config: DistillationConfig) -> Tensor:
    """Loss of the student against the logits of the teacher, (B, 7); token modes use the head of that token."""
    student_logits = select_head(heads, "distillation" if config.mode.startswith("token-") else "class")
    if config.mode.endswith("soft"):
        return soft_distillation(student_logits, teacher_logits, temperature=config.temperature)
    return hard_distillation(student_logits, teacher_logits)
