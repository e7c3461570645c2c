"""Trained networks, of a run or an artifact: reading, initializing another network from them, and their provenance.

`model.safetensors` has the weights of an artifact.
"""

import logging
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from timm.layers.pos_embed import resample_abs_pos_embed
from torch import Tensor, nn

from mien.data.contract import LABELS
from mien.models.backbones import published_terms
from mien.models.manifest import (
    MANIFEST_NAME,
    REPORT_NAME,
    ArtifactError,
    Manifest,
    load_artifact,
    read_report,
    sha256_of,
)
from mien.models.network import FaceNetwork, Head
from mien.training.config import ModelConfig, parse_as
from mien.training.run import BEST, RunError, load_best, read_run_info, untrained_network

logger = logging.getLogger("mien.training")

WEIGHTS_NAME: Final = "model.safetensors"
_MAY_START_FRESH: Final = tuple(f"backbone.{name}" for name in ("head.", "head_dist.", "fc.", "dist_token"))
_POSITIONS: Final = "backbone.pos_embed"
_STEM: Final = "backbone.patch_embed."


def save_weights(network: nn.Module, folder: Path) -> None:
    """Write `model.safetensors` to an artifact folder. Raises: OSError."""
    state = {name: value.detach().cpu().contiguous() for name, value in network.state_dict().items()}
    try:
        save_file(state, folder / WEIGHTS_NAME)
    except SafetensorError as error:
        raise OSError(f"{folder / WEIGHTS_NAME}: {error}") from error
    (folder / WEIGHTS_NAME).chmod(0o644)  # the library makes it readable by its owner only


def load_network(folder: Path) -> tuple[FaceNetwork, Manifest]:
    """Verify an artifact and build its network in eval mode.

    Raises: ArtifactError, also if it has no weights; RecipeError, for options that this version does not have.
    """
    manifest, recipe = load_artifact(folder), read_report(folder).get("recipe", {})
    if WEIGHTS_NAME not in manifest.files:
        several = "members" in recipe
        remedy = "it averages several networks: take one of them" if several else "export its run again"
        raise ArtifactError(f"artifact {manifest.name}: no {WEIGHTS_NAME}; {remedy}")
    model = parse_as(ModelConfig, recipe["model"], origin=str(folder / REPORT_NAME))
    network = untrained_network(model, len(manifest.labels))
    try:
        network.load_state_dict(load_file(folder / WEIGHTS_NAME))
    except RuntimeError as error:
        raise ArtifactError(f"artifact {manifest.name}: {WEIGHTS_NAME} is of another network ({error})") from error
    return network.eval(), manifest


def load_trained(folder: Path) -> tuple[FaceNetwork, Head, tuple[str, ...]]:
    """Network of a run or an artifact in eval mode, its selected head, and its labels.

    Raises: RunError, ArtifactError, if it is missing or damaged, or has another contract.
    """
    if (folder / MANIFEST_NAME).exists():
        network, manifest = load_network(folder)
        return network, read_report(folder)["head"], manifest.labels
    network, state = load_best(folder)
    return network, state["head"], tuple(state["labels"])


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
        with torch.random.fork_rng(devices=[]):  # Its random weights are replaced.
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


def provenance(model: ModelConfig, sources: dict[str, str], *, folders: tuple[Path, ...]) -> dict[str, Any]:
    """Collect the provenance for `run.json` and the manifest.

    Args:
        model: the recipe's model.
        sources: index hash of each training split, by kind/split.
        folders: runs and artifacts used for initialization or as teachers.
    Returns: `learned_from`, hashes by kind/split, including inherited ones; `weights_from`, hashes of weights by name;
        `weight_terms`, publisher and license of third-party weights by name.
    Raises: RunError, ArtifactError, if a folder has no weights.
    """
    learned, weights, terms = dict(sources), dict[str, str](), dict[str, str]()
    if model.pretrained:
        terms[f"{model.family}/{model.name}"] = published_terms(model.family)
    for folder in folders:
        if (folder / MANIFEST_NAME).exists():
            own = load_artifact(folder).graph("fp32").sha256
        elif (folder / BEST).exists():
            own = sha256_of(folder / BEST)
        else:
            raise RunError(f"{folder}: found neither {MANIFEST_NAME} nor {BEST}")
        weights[folder.name if weights.get(folder.name, own) == own else "/".join(folder.parts[-2:])] = own
        inherited = recorded(folder)
        add_learned(learned, inherited["learned_from"], of=folder.name)
        weights = inherited["weights_from"] | weights
        terms = inherited["weight_terms"] | terms
    return {"learned_from": learned, "weights_from": weights, "weight_terms": terms}


def add_learned(learned: dict[str, str], more: Mapping[str, str], *, of: str) -> None:
    """Add index hashes by kind/split; `of` tells apart splits of the same name with other faces."""
    for name, sha256 in more.items():
        learned[name if learned.get(name, sha256) == sha256 else f"{name} of {of}"] = sha256


def recorded(folder: Path) -> dict[str, dict[str, str]]:
    """Provenance of the weights of a run or an artifact, as `provenance` returns it."""
    names = ("learned_from", "weights_from", "weight_terms")
    if (folder / MANIFEST_NAME).exists():
        report = read_report(folder)
        return {name: report.get(name, {}) for name in names}
    run_info = read_run_info(folder)
    return {name: run_info[name] for name in names}
