"""Sharpness-aware minimization: gradients at the worst point near the weights (Foret et al. 2021)."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


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
