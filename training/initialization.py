"""Initialization of weights: from a finished run or a released artifact."""

import logging
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import torch
from timm.layers.pos_embed import resample_abs_pos_embed
from torch import Tensor, nn

from mien.data.contract import LABELS
from mien.models.manifest import ArtifactError
from mien.models.network import FaceNetwork
from mien.training.run import RunError
from mien.training.weights import load_trained

logger = logging.getLogger("mien.training")

_MAY_START_FRESH: Final = tuple(f"backbone.{name}" for name in ("head.", "head_dist.", "fc.", "dist_token"))
_POSITIONS: Final = "backbone.pos_embed"
_STEM: Final = "backbone.patch_embed."


class InitialWeightsError(RunError):
    """Weights that cannot be read, or do not match the network to initialize."""


def load_initial(network: FaceNetwork, folder: Path, classes: tuple[str, ...] = LABELS) -> None:
    """Load the weights of a run or a released artifact, and log what was loaded.

    Of a deeper network, evenly spaced blocks are taken, such as every second. Position embeddings are resized if the
    grids differ. Missing heads and distillation tokens, and the weights of new classes in a head, keep their random
    initialization; all other weights must match. Weights of MobileFaceNet also
    initialize a stem of its convolutions.
    Raises: InitialWeightsError; RunError, RecipeError, if the source is missing or damaged.
    """
    try:
        with torch.random.fork_rng(devices=[]):  # its random weights, which are replaced, change no later ones
            source, _, labels = load_trained(folder)
    except ArtifactError as error:
        raise InitialWeightsError(f"model.init_from {folder}: {error}") from error
    note = _take_blocks(source, network)
    weights = source.state_dict()
    for key in ("color", "normalization", "img_size"):
        before, here = (getattr(of.preprocess, key) for of in (source, network))
        if before != here:
            logger.warning("model.init_from %s: trained with %s %s, this recipe has %s", folder, key, before, here)
    own = network.state_dict()
    resized = _fit_positions(network, weights, own)
    fitted = _fit_heads(network, weights, own, labels, classes)
    may_start_fresh = _MAY_START_FRESH + tuple(f"{name}." for name in network.heads())
    stem = {_STEM + key.removeprefix("backbone."): tensor for key, tensor in weights.items()}
    if shared := stem.keys() & own.keys():
        weights, may_start_fresh = {key: stem[key] for key in shared}, ("backbone.",)
    _check(folder, weights, own, may_start_fresh=may_start_fresh)
    network.load_state_dict(weights, strict=False)
    fresh = sorted({".".join(key.split(".")[:2]) for key in own.keys() - weights.keys()})
    listed = ", ".join([*fresh, *fitted]) or "none"
    logger.info(
        "initialized from %s: %d tensors%s; newly initialized: %s", folder, len(weights), note + resized, listed
    )


def _take_blocks(source: nn.Module, network: nn.Module) -> str:
    """Leave out blocks of a deeper `source` in place, as in Sanh et al. 2019; returns a note. The last block stays."""
    note = ""
    deeper = dict(source.named_modules())
    for name, own in network.named_modules():
        other = deeper.get(name)
        if not (isinstance(own, nn.Sequential) and isinstance(other, nn.Sequential) and len(own) < len(other)):
            continue
        # each run of blocks of one kind loses some; of a stem, these are the blocks between two convolutions
        parts, there = ([list(part) for _, part in groupby(layers, type)] for layers in (own, other))
        pairs = list(zip(parts, there, strict=False))
        if len(parts) == len(there) and all(len(part) <= len(blocks) for part, blocks in pairs):
            kept = [
                blocks[(place + 1) * len(blocks) // len(part) - 1]
                for part, blocks in pairs
                for place in range(len(part))
            ]
            source.set_submodule(name, nn.Sequential(*kept))
            note += f", {len(own)} of {len(other)} layers of {name}"
    return note


def _fit_heads(
    network: FaceNetwork,
    weights: dict[str, Tensor],
    own: dict[str, Tensor],
    labels: tuple[str, ...],
    classes: tuple[str, ...],
) -> list[str]:
    """Keep the rows of the heads for the classes that both have; returns the names of the new ones."""
    if labels == classes:
        return []
    both = [name for name in classes if name in labels]
    before, after = ([names.index(name) for name in both] for names in (labels, classes))
    for head in network.heads():
        for key in (f"{head}.weight", f"{head}.bias"):
            if key in weights and weights[key].shape[1:] == own[key].shape[1:]:
                rows = own[key].clone()
                rows[after] = weights[key][before]
                weights[key] = rows
    return [f"the classes {', '.join(name for name in classes if name not in both)}"]


def _fit_positions(network: FaceNetwork, weights: dict[str, Tensor], own: dict[str, Tensor]) -> str:
    """Resize position embeddings in place to the grid of `network`; returns a note for the log."""
    if _POSITIONS not in weights or _POSITIONS not in own or weights[_POSITIONS].shape == own[_POSITIONS].shape:
        return ""
    transformer: Any = network.backbone
    has_token = "backbone.dist_token" in weights
    prefix = 2 if has_token else 1
    positions = weights[_POSITIONS]  # (1, prefix + side * side, dim)
    side, new_side = round((positions.shape[1] - prefix) ** 0.5), transformer.patch_embed.grid_size[0]
    if side**2 != positions.shape[1] - prefix or positions.shape[2] != own[_POSITIONS].shape[2]:
        return ""  # `_check` reports the mismatch
    patches = resample_abs_pos_embed(positions[:, prefix:], [new_side, new_side], [side, side], num_prefix_tokens=0)
    fitted = own[_POSITIONS].clone()
    kept = min(prefix, transformer.num_prefix_tokens)
    fitted[:, :kept] = positions[:, :kept]
    fitted[:, transformer.num_prefix_tokens :] = patches
    weights[_POSITIONS] = fitted
    return f", positions from {side}x{side} to {new_side}x{new_side}" if side != new_side else ""


def _check(
    folder: Path, weights: dict[str, Tensor], own: dict[str, Tensor], *, may_start_fresh: tuple[str, ...]
) -> None:
    missing = [key for key in own if key not in weights and not key.startswith(may_start_fresh)]
    for key in [key for key in weights if key.startswith(may_start_fresh)]:
        if key not in own or own[key].shape != weights[key].shape:  # the head of other classes starts fresh
            del weights[key]
    unknown = [key for key in weights if key not in own]
    shapes = [
        f"{key} {tuple(weights[key].shape)}, expected {tuple(own[key].shape)}"
        for key in own
        if key in weights and weights[key].shape != own[key].shape
    ]
    problems = [
        f"{name} {len(names)}, first {names[0]}"
        for name, names in (("missing", missing), ("unexpected", unknown), ("with another shape", shapes))
        if names
    ]
    if problems:
        raise InitialWeightsError(
            f"model.init_from {folder}: the weights do not match the network ({'; '.join(problems)}). Use the same "
            "family, options and color as in the recipe.yaml of that run."
        )
