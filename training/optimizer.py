"""Optimizer, schedule, and sharpness-aware minimization."""

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from timm.optim._optim_factory import create_optimizer_v2, list_optimizers
from timm.optim._param_groups import param_groups_layer_decay
from timm.scheduler.cosine_lr import CosineLRScheduler
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from mien.training.config import OptimConfig, RecipeError

_NO_DECAY_ENDINGS: Final = ("cls_token", "dist_token", "pos_embed", "relative_position_bias_table")


def build_optimizer(network: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """Build the optimizer of a recipe.

    Weight decay applies to matrices and kernels, not to biases, norms, tokens, position embeddings and relative
    position biases.

    Raises: RecipeError, for a name or option unknown to timm, and for `layer_decay` on a network without timm's layer
        groups.
    """
    if config.layer_decay is None:
        trained = [(name, p) for name, p in network.named_parameters() if p.requires_grad]
        plain = [p for name, p in trained if p.ndim <= 1 or name.endswith(_NO_DECAY_ENDINGS)]
        chosen = {id(p) for p in plain}
        decayed = [p for _, p in trained if id(p) not in chosen]
        groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    else:  # with timm's `lr_scale`, which is 1 for the heads
        backbone: Any = getattr(network, "backbone", None)
        layered: Any = getattr(backbone, "network", backbone)
        if not hasattr(layered, "group_matcher"):
            raise RecipeError("optim.layer_decay: this network has no layer groups; remove it, or choose a timm family")
        names = [name for name, _ in layered.named_parameters() if name.endswith(_NO_DECAY_ENDINGS)]
        groups = param_groups_layer_decay(
            layered, weight_decay=config.weight_decay, no_weight_decay_list=names, layer_decay=config.layer_decay
        )
    try:
        optimizer = create_optimizer_v2(groups, opt=config.name, lr=config.learning_rate, **config.options)
    except (ValueError, TypeError, AssertionError) as error:
        near = difflib.get_close_matches(config.name, [str(name) for name in list_optimizers()], n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? " if near and config.name not in near else ""
        raise RecipeError(f"optim.name {config.name}, options {config.options}: {hint}timm says: {error}") from error
    if getattr(optimizer, "is_second_order", False):
        raise RecipeError(f"optim.name {config.name}: needs second derivatives, which no training computes")
    return optimizer


def build_scheduler(
    optimizer: torch.optim.Optimizer, config: OptimConfig, *, epochs: int, steps_per_epoch: int
) -> CosineLRScheduler:
    """Build a cosine schedule over all steps with a linear warm-up; call `step_update(step)` before each step."""
    lowest = min(config.min_learning_rate, config.learning_rate)
    warmup_steps = round(config.warmup_epochs * steps_per_epoch)
    return CosineLRScheduler(
        optimizer,
        t_initial=max(1, epochs * steps_per_epoch - warmup_steps),
        lr_min=lowest,
        warmup_t=warmup_steps,
        warmup_lr_init=lowest,
        warmup_prefix=True,  # the cosine starts at the end of the warm-up, not below its peak
        t_in_epochs=False,
    )


@contextmanager
def perturbed_weights(network: nn.Module, rho: float) -> Iterator[None]:
    """Move the weights by `rho` along their gradient during a block, then restore them and keep the new gradients.

    In the block, gradients start at zero, and running statistics of BatchNorm are frozen: the first pass updated them.
    """
    gradients = [(weight, weight.grad) for weight in network.parameters() if weight.grad is not None]
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(gradient) for _, gradient in gradients]))
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    momenta = [module.momentum for module in norms]
    with torch.no_grad():
        before = [(weight, weight.clone()) for weight, _ in gradients]
        for weight, gradient in gradients:
            weight.add_(gradient * (rho / (norm + 1e-12)))
            weight.grad = None
    for module in norms:
        module.momentum = 0.0
    try:
        yield
    finally:
        for module, momentum in zip(norms, momenta, strict=True):
            module.momentum = momentum
        with torch.no_grad():
            for weight, value in before:
                weight.copy_(value)
