"""Losses of a training step, and teachers for distillation: finished runs or released artifacts, alone or together.

To add a supervised loss, add a function to `SUPERVISED`; recipes choose it by `loss.name`.
Source: Touvron et al. 2021, "Training data-efficient image transformers & distillation through attention", eq. 2 and 3.
"""

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from mien.data.contract import LABELS
from mien.models.backbones import Heads
from mien.models.manifest import ArtifactError
from mien.models.network import Head, select_head
from mien.training.config import DistillationConfig, LossConfig, Recipe, RecipeError
from mien.training.weights import RunError, load_trained


def losses(
    heads: Heads, targets: Tensor, taught: Tensor | None, recipe: Recipe, *, log_prior: Tensor
) -> dict[str, Tensor]:
    """Loss of a batch and its parts, scalars.

    Args:
        heads: of the student.
        targets: (B, K) class shares; rows sum to 1, or are 0 without a label.
        taught: (B, K) logits of the teachers, if there are any.
        log_prior: (K,) log of the frequency of each class in the training faces, for `loss.logit_adjustment`.
    Returns: `loss`, which is minimized, `supervised` and `distillation`; `correct` and `labeled`, the shares of the
        batch that are predicted correctly and that have a label.
    """
    # The prior is added in training only, so that serving does not suppress rare classes: Menon et al. 2021, eq. 10.
    logits = heads.class_logits.float() + recipe.loss.logit_adjustment * log_prior
    supervised = SUPERVISED[recipe.loss.name](logits, targets, recipe.loss)
    loss, distillation = supervised, torch.zeros_like(supervised)
    if taught is not None:
        weight = recipe.distillation.weight
        distillation = distillation_loss(heads, taught, recipe.distillation)
        loss = (1 - weight) * supervised + weight * distillation
    has_label = targets.sum(dim=1) > 0
    correct = has_label & (heads.class_logits.detach().argmax(dim=1) == targets.argmax(dim=1))
    return {
        "supervised": supervised,
        "distillation": distillation,
        "loss": loss,
        "correct": correct.float().mean(),
        "labeled": has_label.float().mean(),
    }


def cross_entropy(logits: Tensor, targets: Tensor, config: LossConfig) -> Tensor:
    """Mean cross entropy, (B, K) each, with class shares (votes, mixed labels or one-hot)."""
    return functional.cross_entropy(logits, targets, label_smoothing=config.label_smoothing)


SUPERVISED: Final[Mapping[str, Callable[[Tensor, Tensor, LossConfig], Tensor]]] = {"cross_entropy": cross_entropy}


def distillation_loss(heads: Heads, teacher_logits: Tensor, config: DistillationConfig) -> Tensor:
    """Loss of the student against the logits of the teacher, (B, 7); token modes use the head of that token.

    Soft: tau^2 KL(teacher || student) at temperature tau (Hinton et al. 2015; DeiT eq. 2). Hard: cross entropy with
    the teacher's prediction as the label (DeiT eq. 3).
    """
    student_logits = select_head(heads, "distillation" if config.mode.startswith("token-") else "class")
    if config.mode.endswith("hard"):
        return functional.cross_entropy(student_logits, teacher_logits.argmax(dim=-1))
    # batchmean: DeiT's published code divides by numel, which is 7x smaller at 7 classes
    return config.temperature**2 * functional.kl_div(
        functional.log_softmax(student_logits / config.temperature, dim=-1),
        functional.log_softmax(teacher_logits.float() / config.temperature, dim=-1),
        reduction="batchmean",
        log_target=True,
    )


class Teachers(nn.Module):
    """One or several frozen teachers; an ensemble returns the log of the mean probability.

    Raises: RunError, CheckpointError, if a teacher is missing or damaged, or has other labels or another contract;
        RecipeError, if one of them does not know all classes.
    """

    columns: Tensor

    def __init__(self, config: DistillationConfig, classes: tuple[str, ...] = LABELS) -> None:
        super().__init__()
        self.members, self.heads = nn.ModuleList(), list[Head]()
        columns = []
        for folder in config.teachers:
            try:
                network, head, labels = load_trained(folder)
            except ArtifactError as error:
                raise RunError(f"distillation.teachers {folder}: {error}") from error
            self.members.append(network)
            self.heads.append(head)
            if unknown := [name for name in classes if name not in labels]:
                raise RecipeError(f"distillation.teachers {folder}: does not know {', '.join(unknown)}")
            columns.append([labels.index(name) for name in classes])
        # Columns of each teacher in the order of `classes`; a list would be copied to the device in each step.
        self.register_buffer("columns", torch.tensor(columns), persistent=False)
        self.requires_grad_(False)
        self.to(memory_format=torch.channels_last)

    def forward(self, crops: Tensor) -> Tensor:  # (B, 112, 112, C) uint8
        logits = [
            select_head(member(crops), head)[:, columns]  # (B, K)
            for member, head, columns in zip(self.members, self.heads, self.columns, strict=True)
        ]
        if len(logits) == 1:
            return logits[0]
        return torch.stack(logits).softmax(dim=-1).mean(dim=0).clamp_min(1e-12).log()
