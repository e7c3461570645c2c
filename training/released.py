"""A released graph as a start: its weights, back under the names of the network that was exported.

The exporter keeps the names of most tensors, turns linear layers' weights around without a name, and folds each batch
normalisation into the convolution before it. `graph_weights` undoes the first two, `unfold` the third, and `restate`
gives the normalisations back the statistics that training needs, without changing what the network answers.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

_NAMED: Final = "backbone."
_FOLDED: Final = ".weight_bias"


def graph_weights(path: Path) -> dict[str, Tensor]:
    """Tensors of an fp32 graph by the network's names; a folded normalisation's shift stands as `CONV.weight_bias`."""
    graph = onnx.load(path).graph
    constants = {constant.name: constant for constant in graph.initializer}
    weights = {name: _tensor(found) for name, found in constants.items() if name.startswith(_NAMED)}
    products = {node.output[0]: node for node in graph.node if node.op_type == "MatMul"}
    for node in graph.node:
        if node.op_type != "Add":
            continue
        bias = next((name for name in node.input if name in weights and name.endswith(".bias")), None)
        product = next((products[name] for name in node.input if name in products), None)
        if bias is not None and product is not None and product.input[1] in constants:
            weights[f"{bias.removesuffix('.bias')}.weight"] = _tensor(constants[product.input[1]]).T.contiguous()
    return weights


def _tensor(constant: Any) -> Tensor:
    return torch.from_numpy(np.array(numpy_helper.to_array(constant)))


def unfold(network: nn.Module, weights: dict[str, Tensor], crops: Tensor) -> None:
    """Replace each folded shift in `weights` by a normalisation of mean 0 and variance 1 that adds it.

    Args:
        network: where the weights will go; one pass over `crops`, (N, 112, 112, C) uint8, shows which normalisation
            follows which convolution.
        weights: as `graph_weights` returns them; changed in place.
    """
    for convolution, (name, norm) in _norm_behind(network, crops).items():
        shift = weights.pop(f"{convolution}{_FOLDED}", None)
        if shift is None:
            continue
        weights |= {
            f"{name}.weight": torch.full_like(shift, (1 + norm.eps) ** 0.5),
            f"{name}.bias": shift,
            f"{name}.running_mean": torch.zeros_like(shift),
            f"{name}.running_var": torch.ones_like(shift),
            f"{name}.num_batches_tracked": torch.tensor(0),
        }


def _norm_behind(network: nn.Module, crops: Tensor) -> dict[str, tuple[str, _BatchNorm]]:
    """Name of each convolution that a normalisation follows directly, and that normalisation with its name."""
    made: dict[int, str] = {}  # by identity of the output; `kept` keeps identities from being used again
    kept: list[Tensor] = []
    found: dict[str, tuple[str, _BatchNorm]] = {}
    hooks = []
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d):

            def remember(_module: nn.Module, _inputs: Any, output: Tensor, name: str = name) -> None:
                made[id(output)] = name
                kept.append(output)

            hooks.append(module.register_forward_hook(remember))
        elif isinstance(module, _BatchNorm):

            def follow(norm: _BatchNorm, inputs: tuple[Tensor, ...], name: str = name) -> None:
                if id(inputs[0]) in made:
                    found[made[id(inputs[0])]] = (name, norm)

            hooks.append(module.register_forward_pre_hook(follow))
    _look(network, crops[:2], hooks)
    return found


def restate(network: nn.Module, crops: Tensor) -> None:
    """Give every normalisation the mean and variance of what it sees on `crops`, and change what it adds to match.

    In evaluation the network answers as before; in training, where batches normalise themselves, it now starts from
    the same answers too. `crops`: (N, 112, 112, C) uint8, some hundreds.
    """

    def about_its_input(norm: Any, inputs: tuple[Tensor, ...]) -> None:
        variance, mean = torch.var_mean(inputs[0], dim=(0, 2, 3))
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        shift = norm.bias - norm.running_mean * scale
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance)
        norm.weight.copy_(scale * (variance + norm.eps).sqrt())
        norm.bias.copy_(shift + mean * scale)

    norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    _look(network, crops, [norm.register_forward_pre_hook(about_its_input) for norm in norms])


def _look(network: nn.Module, crops: Tensor, hooks: list[Any]) -> None:
    """One pass in evaluation, with hooks that are removed afterwards."""
    training = network.training
    try:
        with torch.no_grad():
            network.eval()(crops)
    finally:
        network.train(training)
        for hook in hooks:
            hook.remove()
