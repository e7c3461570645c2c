"""Trained networks, of a run or an artifact, and `model.safetensors`, the weights of an artifact.

Matrices and kernels are in half precision, norms and biases in full, as a running variance may exceed fp16's range.
`round_weights` rounds them before anything is exported, so that all files of an artifact have the same weights.
"""

from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mien.data.contract import CROP_PX
from mien.models.manifest import MANIFEST_NAME, ArtifactError, Manifest, load_artifact
from mien.models.network import FaceNetwork, Head
from mien.training.config import ModelConfig, parse_as
from mien.training.run import load_best, untrained_network

WEIGHTS_NAME: Final = "model.safetensors"


@torch.no_grad()
def round_weights(network: FaceNetwork) -> None:
    """Round matrices and kernels to fp16 in place, each kernel after its BatchNorm's scale is folded into it.

    The ONNX exporter folds the scale, so rounding before would give the graph other weights. The BatchNorms keep their
    statistics and, in training, their outputs.
    """
    for convolution, norm in _norms_after_convolutions(network):
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()  # (C,)
        convolution.weight.mul_(scale[:, None, None, None])
        if convolution.bias is not None:
            convolution.bias.mul_(scale)
        norm.running_mean.mul_(scale)
        norm.running_var.mul_(scale**2)
        norm.weight.copy_((norm.running_var + norm.eps).sqrt())
    for value in network.state_dict().values():
        if value.is_floating_point() and value.ndim > 1:
            value.copy_(value.half())


def _norms_after_convolutions(network: FaceNetwork) -> list[tuple[nn.Conv2d, Any]]:
    """Each BatchNorm whose input is the output of a convolution, with it."""
    made_by: dict[int, nn.Conv2d] = {}
    outputs: list[Tensor] = []  # kept, so that no identity is used twice
    pairs: list[tuple[nn.Conv2d, Any]] = []

    def record(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(module, nn.Conv2d):
            made_by[id(output)] = module
            outputs.append(output)
        elif id(inputs[0]) in made_by:
            pairs.append((made_by[id(inputs[0])], module))

    modules = [module for module in network.modules() if isinstance(module, nn.Conv2d | nn.BatchNorm2d)]
    hooks = [module.register_forward_hook(record) for module in modules]
    network.eval()(torch.zeros(1, CROP_PX, CROP_PX, 3, dtype=torch.uint8))
    for hook in hooks:
        hook.remove()
    return pairs


def save_weights(network: nn.Module, folder: Path) -> None:
    """Write `model.safetensors` to an artifact folder; the network keeps its precision. Raises: OSError."""
    state = {name: value.detach().cpu().contiguous() for name, value in network.state_dict().items()}
    try:
        halved = {name: v.half() if v.is_floating_point() and v.ndim > 1 else v for name, v in state.items()}
        save_file(halved, folder / WEIGHTS_NAME)
    except SafetensorError as error:
        raise OSError(f"{folder / WEIGHTS_NAME}: {error}") from error
    (folder / WEIGHTS_NAME).chmod(0o644)  # the library makes it readable by its owner only


def in_fp32(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights as they are computed with, from the form in which they are stored."""
    return {name: value.float() if value.dtype == torch.float16 else value for name, value in weights.items()}


def load_network(folder: Path) -> tuple[FaceNetwork, Manifest]:
    """Verify an artifact and build its network in eval mode.

    Raises: ArtifactError, also if it has no weights; RecipeError, for options that this version does not have.
    """
    manifest = load_artifact(folder)
    if WEIGHTS_NAME not in manifest.files:
        several = "members" in manifest.recipe
        remedy = "it averages several networks: take one of them" if several else "export its run again"
        raise ArtifactError(f"artifact {manifest.name}: no {WEIGHTS_NAME}; {remedy}")
    recorded: Any = manifest.recipe["model"]
    model = parse_as(ModelConfig, recorded, origin=str(folder / MANIFEST_NAME))
    network = untrained_network(model, len(manifest.labels))
    try:
        network.load_state_dict(in_fp32(load_file(folder / WEIGHTS_NAME)))
    except RuntimeError as error:
        raise ArtifactError(f"artifact {manifest.name}: {WEIGHTS_NAME} is of another network ({error})") from error
    return network.eval(), manifest


def load_trained(folder: Path) -> tuple[FaceNetwork, Head, tuple[str, ...]]:
    """Network of a run or an artifact in eval mode, its selected head, and its labels.

    Raises: RunError, ArtifactError, if it is missing or damaged, or has another contract.
    """
    if (folder / MANIFEST_NAME).exists():
        network, manifest = load_network(folder)
        return network, manifest.head, manifest.labels
    network, state = load_best(folder)
    return network, state["head"], tuple(state["labels"])
