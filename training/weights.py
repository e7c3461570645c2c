"""Trained networks, of a run or an artifact: their files, and the initialization of another network from them.

`best.pt` of a run has the weights of its best epoch, `model.safetensors` those of an artifact.
"""

import logging
import math
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from timm.layers.pos_embed import resample_abs_pos_embed
from torch import Tensor, nn

from mien.data.contract import LABELS, contract_id
from mien.models.manifest import MANIFEST_NAME, REPORT_NAME, ArtifactError, load_artifact, read_report
from mien.models.network import FaceNetwork, Head
from mien.training.config import ModelConfig, parse_as
from mien.training.run import BEST, RunError, load, read_run, read_run_info

logger = logging.getLogger("mien.training")

WEIGHTS_NAME: Final = "model.safetensors"
_POSITIONS: Final = "backbone.pos_embed"
_OF_DISTILLATION: Final = ("backbone.head_dist.", "backbone.dist_token")


def load_best(folder: Path) -> tuple[FaceNetwork, dict[str, Any]]:
    """Return the network with the best weights, in eval mode, and its checkpoint.

    Raises: RunError, if the run used another crop contract.
    """
    recipe, state = read_run(folder), load(folder / BEST)
    if state["contract_id"] != contract_id():
        raise RunError(
            f"{folder}: trained with contract {state['contract_id']}; this build has {contract_id()}. Train it again, "
            f"or check out commit {read_run_info(folder)['commit']}."
        )
    network = FaceNetwork(recipe.model.model_copy(update={"pretrained": False}), len(state["labels"]))
    network.load_state_dict(state["weights"])
    return network.eval(), state


def save_weights(network: nn.Module, folder: Path) -> None:
    """Write `model.safetensors` to an artifact folder. Raises: OSError."""
    state = {name: value.detach().cpu().contiguous() for name, value in network.state_dict().items()}
    try:
        save_file(state, folder / WEIGHTS_NAME)
    except SafetensorError as error:
        raise OSError(f"{folder / WEIGHTS_NAME}: {error}") from error
    (folder / WEIGHTS_NAME).chmod(0o644)  # the library makes it readable by its owner only


def load_trained(folder: Path) -> tuple[FaceNetwork, Head, tuple[str, ...]]:
    """Network of a run or an artifact in eval mode, its selected head, and its labels.

    Raises: RunError, ArtifactError, if it is missing or damaged, has no weights, or has another contract; RecipeError,
        for options that this version does not have.
    """
    if not (folder / MANIFEST_NAME).exists():
        network, state = load_best(folder)
        return network, state["head"], tuple(state["labels"])
    manifest, report = load_artifact(folder), read_report(folder)
    model = parse_as(ModelConfig, report["recipe"]["model"], origin=str(folder / REPORT_NAME))
    network = FaceNetwork(model.model_copy(update={"pretrained": False}), len(manifest.labels))
    try:
        network.load_state_dict(load_file(folder / WEIGHTS_NAME))
    except RuntimeError as error:
        raise ArtifactError(f"artifact {manifest.name}: {WEIGHTS_NAME} is of another network ({error})") from error
    return network.eval(), report["head"], manifest.labels


def load_initial(network: FaceNetwork, folder: Path, classes: tuple[str, ...] = LABELS) -> None:
    """Load the weights of a run or a released artifact, and log what was loaded.

    Of a deeper network, evenly spaced blocks are taken, such as every second. Position embeddings are resized if the
    grids differ. Missing heads and distillation tokens, and the weights of new classes in a head, keep their random
    initialization; all other weights must match.
    Raises: RunError, RecipeError, if the source is missing or damaged, or does not match the network.
    """
    try:
        with torch.random.fork_rng(devices=[]):  # Its random weights are replaced.
            source, _, labels = load_trained(folder)
    except ArtifactError as error:
        raise RunError(f"model.init_from {folder}: {error}") from error
    for key in ("color", "normalization", "img_size"):
        before, here = (getattr(of.preprocess, key) for of in (source, network))
        if before != here:
            logger.warning("model.init_from %s: trained with %s %s, this recipe has %s", folder, key, before, here)
    _take_blocks(source, network)
    weights, own = source.state_dict(), network.state_dict()
    for key in (f"{head}.{part}" for head in network.heads() for part in ("weight", "bias")):
        if key in weights and weights[key].shape[1:] == own[key].shape[1:]:
            weights[key] = _rows(weights[key], own[key], labels, classes)
    may_start_fresh = tuple(f"{name}." for name in network.heads()) + _OF_DISTILLATION
    fresh = {
        key: tensor
        for key, tensor in own.items()
        if key.startswith(may_start_fresh) and (key not in weights or weights[key].shape != tensor.shape)
    }
    weights = {key: tensor for key, tensor in weights.items() if key in own or not key.startswith(may_start_fresh)}
    try:
        if _POSITIONS in weights and _POSITIONS in own:
            weights[_POSITIONS] = _resized(weights[_POSITIONS], own[_POSITIONS], network.backbone)
        network.load_state_dict(weights | fresh)
    except RuntimeError as error:
        raise RunError(
            f"model.init_from {folder}: the weights do not match the network. Use the same family, options and color "
            f"as in the recipe.yaml of that run. {error}"
        ) from error
    listed = sorted({".".join(key.split(".")[:2]) for key in fresh} | set(classes).difference(labels))
    logger.info("initialized from %s; newly initialized: %s", folder, ", ".join(listed) or "none")


def _take_blocks(source: nn.Module, network: nn.Module) -> None:
    """Leave out blocks of a deeper `source` in place, as in Sanh et al. 2019. The last block stays."""
    deeper = dict(source.named_modules())
    for name, own in network.named_modules():
        other = deeper.get(name)
        if isinstance(own, nn.Sequential) and isinstance(other, nn.Sequential) and len(own) < len(other):
            # Each run of blocks of one kind loses some; of a stem, these are the blocks between two convolutions.
            parts, there = ([list(part) for _, part in groupby(layers, type)] for layers in (own, other))
            pairs = list(zip(parts, there, strict=False))
            if len(parts) == len(there) and all(len(part) <= len(blocks) for part, blocks in pairs):
                kept = [
                    blocks[(index + 1) * len(blocks) // len(part) - 1]
                    for part, blocks in pairs
                    for index in range(len(part))
                ]
                source.set_submodule(name, nn.Sequential(*kept))


def _resized(positions: Tensor, own: Tensor, transformer: Any) -> Tensor:
    """Position embeddings (1, prefix + side * side, dim) for the tokens and the grid of another transformer."""
    side = math.isqrt(positions.shape[1] - 1)
    prefix = positions.shape[1] - side**2  # one or two tokens
    kept, fitted = min(prefix, transformer.num_prefix_tokens), own.clone()
    fitted[:, :kept] = positions[:, :kept]
    fitted[:, transformer.num_prefix_tokens :] = resample_abs_pos_embed(
        positions[:, prefix:], transformer.patch_embed.grid_size, [side, side], num_prefix_tokens=0
    )
    return fitted


def _rows(weight: Tensor, own: Tensor, labels: tuple[str, ...], classes: tuple[str, ...]) -> Tensor:
    """Weights of a head for other classes: the rows of those that both have, and random ones."""
    both, rows = [name for name in classes if name in labels], own.clone()
    rows[[classes.index(name) for name in both]] = weight[[labels.index(name) for name in both]]
    return rows
