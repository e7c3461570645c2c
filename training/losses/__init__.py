"""Losses of a training step: of the labels, `loss.name` of a recipe, which is a file of this folder; of the teachers.

Such a file has a function `loss(logits, targets, config: LossConfig) -> Tensor`. To add a loss, add a file.
Source: Touvron et al. 2021, "Training data-efficient image transformers & distillation through attention", eq. 2 and 3.
"""

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache

from torch import Tensor
from torch.nn import functional

from mien.models.backbones import Heads
from mien.models.network import select_head
from mien.training.config import DistillationConfig, LossConfig, RecipeError


@cache
def supervised_loss(name: str) -> Callable[[Tensor, Tensor, LossConfig], Tensor]:
    """Find the loss of a name. Raises: RecipeError, listing the files of this folder."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    if name not in names:
        raise RecipeError(f"loss.name {name!r}: expected one of {', '.join(names)}")
    loss: Callable[[Tensor, Tensor, LossConfig], Tensor] = importlib.import_module(f"{__name__}.{name}").loss
    return loss


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
