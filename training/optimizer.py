"""Optimizer and schedule by timm's factories, and sharpness-aware minimization."""

import difflib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from timm.optim import create_optimizer_v2, list_optimizers
from timm.scheduler import create_scheduler_v2
from timm.scheduler.scheduler import Scheduler
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from mien.training.config import OptimConfig, RecipeError


def build_optimizer(backbone: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """Build the optimizer of a recipe; timm leaves biases, norms, tokens and positions out of the weight decay.

    Raises: RecipeError, for a name or option unknown to timm, and for `layer_decay` on a network without timm's layer
        groups.
    """
    if config.layer_decay is not None and not hasattr(backbone, "group_matcher"):
        raise RecipeError("optim.layer_decay: this network has no layer groups; remove it, or choose a timm family")
    try:
        optimizer = create_optimizer_v2(
            backbone,
            opt=config.name,
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            layer_decay=config.layer_decay,
            **config.options,
        )
    except (ValueError, TypeError, AssertionError) as error:
        near = difflib.get_close_matches(config.name, [str(name) for name in list_optimizers()], n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? " if near and config.name not in near else ""
        raise RecipeError(f"optim.name {config.name}, options {config.options}: {hint}timm says: {error}") from error
    if getattr(optimizer, "is_second_order", False):
        raise RecipeError(f"optim.name {config.name}: needs second derivatives, which no training computes")
    return optimizer


def build_scheduler(
    optimizer: torch.optim.Optimizer, config: OptimConfig, *, epochs: int, steps_per_epoch: int
) -> Scheduler:
    """Build a cosine schedule over all steps with a linear warm-up; call `step_update(step)` before each step."""
    lowest = min(config.min_learning_rate, config.learning_rate)
    warmup_epochs = min(1, epochs / 10) if config.warmup_epochs is None else config.warmup_epochs
    steps, warmup = epochs * steps_per_epoch, round(warmup_epochs * steps_per_epoch)
    scheduler: Scheduler | None
    scheduler, _ = create_scheduler_v2(
        optimizer,
        num_epochs=max(1, steps - warmup),  # epochs of one step, as the warm-up may last a part of an epoch
        updates_per_epoch=1,
        step_on_epochs=False,
        warmup_epochs=warmup,
        warmup_prefix=True,  # the cosine starts at the end of the warm-up, not below its peak
        warmup_lr=lowest,
        min_lr=lowest,
    )
    assert scheduler is not None  # noqa: S101
    return scheduler


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
