"""Losses: supervised cross entropy, and the four distillation modes of DeiT.

Source: Touvron et al. 2021, "Training data-efficient image transformers & distillation through attention", eq. 2 and 3.
"""

import torch
from torch import Tensor
from torch.nn import functional

from mien.models.backbones import Heads
from mien.models.network import select_head
from mien.training.config import DistillationConfig


def class_weights(counts: Tensor, *, beta: float) -> Tensor:
    """Class weights (7,) by effective number of faces, with mean 1; `counts` (7,) may be sums of vote shares.

    Source: Cui et al. 2019, eq. 2. A class without a face has weight 0.
    """
    effective = (1 - beta ** counts.double()) / (1 - beta)
    weights = torch.where(effective > 0, 1 / effective.clamp_min(1e-12), 0.0)
    return (weights * len(weights) / weights.sum()).float()


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    logit_adjustment: Tensor | None = None,
    class_balance: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Mean cross entropy with class shares (votes, mixed labels or one-hot).

    Args:
        logits: (B, 7).
        target: (B, 7), rows sum to 1, or are 0 without a label.
        logit_adjustment: (7,), tau times the log class frequency, added to the logits in training only, so that rare
            classes are not suppressed in serving. Source: Menon et al. 2021, eq. 10.
        class_balance: (7,), weight of each class, see `class_weights`; the mean is still over the batch.
        label_smoothing: share of the target spread evenly over the classes.
    """
    adjusted = logits.float() if logit_adjustment is None else logits.float() + logit_adjustment
    return functional.cross_entropy(adjusted, target, weight=class_balance, label_smoothing=label_smoothing)


def relabel(logits: Tensor, target: Tensor, *, margin: float) -> tuple[Tensor, Tensor]:
    """Replace labels that the network contradicts by its predictions.

    Args:
        logits: (B, 7), detached.
        target: (B, 7) class shares; rows of zeros are unlabeled and stay unchanged.
        margin: minimum difference between the probabilities of the predicted class and of the label.
    Returns: (B, 7) targets, and (B,) bool, which rows changed. Source: Wang et al. 2020 (SCN), eq. 5.
    """
    probabilities = logits.float().softmax(dim=-1)
    top = probabilities.max(dim=-1)
    of_label = probabilities.gather(1, target.argmax(dim=-1, keepdim=True)).squeeze(1)
    doubted = (top.values - of_label > margin) & (target.sum(dim=-1) > 0)
    predicted = functional.one_hot(top.indices, target.shape[1]).to(target.dtype)
    return torch.where(doubted[:, None], predicted, target), doubted


def attention_consistency(maps: Tensor, mirrored: Tensor) -> Tensor:
    """Mean squared difference of class activation maps and those of the mirrored faces, (B, classes, H, W) each.

    Source: Zhang et al. 2022 (EAC), eq. 4.
    """
    return functional.mse_loss(maps.float(), mirrored.float().flip(dims=[3]))


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
