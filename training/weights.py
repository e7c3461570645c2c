"""Trained networks, of a run or an artifact: their files, initializing another network from them, their provenance.

`best.pt` of a run has the weights of its best epoch, `model.safetensors` those of an artifact.
"""

import io
import json
import logging
import pickle
import zipfile
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from timm.layers.pos_embed import resample_abs_pos_embed
from torch import Tensor, nn

from mien.data.atomic import write_atomic
from mien.data.contract import LABELS, contract_id
from mien.data.errors import MienError
from mien.models.backbones import published_terms
from mien.models.manifest import (
    MANIFEST_NAME,
    REPORT_NAME,
    ArtifactError,
    load_artifact,
    read_report,
    sha256_of,
)
from mien.models.network import FaceNetwork, Head
from mien.training.config import ModelConfig, Recipe, parse_as, read_as

logger = logging.getLogger("mien.training")

RECIPE: Final = "recipe.yaml"
RUN_INFO: Final = "run.json"
LAST: Final = "last.pt"
BEST: Final = "best.pt"
WEIGHTS_NAME: Final = "model.safetensors"
_MAY_START_FRESH: Final = tuple(f"backbone.{name}" for name in ("head.", "head_dist.", "fc.", "dist_token"))
_POSITIONS: Final = "backbone.pos_embed"


class RunError(MienError):
    """A run folder that is missing, damaged, in use, or of another recipe."""


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Write a checkpoint atomically. Raises: RunError."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    try:
        write_atomic(path, buffer.getvalue())
    except OSError as error:
        raise RunError(f"{path}: not written ({error.strerror}); the checkpoint before it is unchanged") from error


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint. Raises: RunError, if it is missing or damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise RunError(f"{path}: damaged at {damaged}")
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, zipfile.BadZipFile, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        raise RunError(f"{path}: cannot be read ({error}). Restore it, or train again.") from error
    return state


def read_run(folder: Path) -> Recipe:
    """Return the recipe of a run. Raises: RunError, RecipeError."""
    if not (folder / RECIPE).exists():
        raise RunError(f"{folder}: not a run folder, it has no {RECIPE}")
    return read_as(Recipe, folder / RECIPE)


def read_run_info(folder: Path) -> dict[str, Any]:
    """Return what run.json records: commit, environment, hashes of data and weights. Raises: RunError."""
    try:
        run_info: dict[str, Any] = json.loads((folder / RUN_INFO).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{folder}: {RUN_INFO} is damaged ({error}). Restore it, or train again.") from error
    return run_info


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
    network = untrained_network(recipe.model, len(state["labels"]))
    network.load_state_dict(state["weights"])
    return network.eval(), state


def untrained_network(model: ModelConfig, num_classes: int) -> FaceNetwork:
    """Build the network of a recipe with random weights, to load trained ones."""
    return FaceNetwork(model.model_copy(update={"pretrained": False}), num_classes)


def parameters(network: nn.Module) -> int:
    """Number of parameters."""
    return sum(parameter.numel() for parameter in network.parameters())


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
    if WEIGHTS_NAME not in manifest.files:
        raise ArtifactError(f"artifact {manifest.name}: no {WEIGHTS_NAME}; export its run again")
    model = parse_as(ModelConfig, report["recipe"]["model"], origin=str(folder / REPORT_NAME))
    network = untrained_network(model, len(manifest.labels))
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
    note = _take_blocks(source, network)
    weights, own = source.state_dict(), network.state_dict()
    for key in ("color", "normalization", "img_size"):
        before, here = (getattr(of.preprocess, key) for of in (source, network))
        if before != here:
            logger.warning("model.init_from %s: trained with %s %s, this recipe has %s", folder, key, before, here)
    note += _fit_positions(network, weights, own)
    new_classes = [name for name in classes if name not in labels]
    if labels != classes:
        _fit_heads(network, weights, own, labels, classes)
    may_start_fresh = _MAY_START_FRESH + tuple(f"{name}." for name in network.heads())
    for key in [key for key in weights if key.startswith(may_start_fresh)]:
        if key not in own or own[key].shape != weights[key].shape:
            del weights[key]
    _check(folder, weights, own, may_start_fresh)
    network.load_state_dict(weights, strict=False)
    fresh = sorted({".".join(key.split(".")[:2]) for key in own.keys() - weights.keys()})
    fresh += [f"the classes {', '.join(new_classes)}"] if new_classes else []
    listed = ", ".join(fresh) or "none"
    logger.info("initialized from %s: %d tensors%s; newly initialized: %s", folder, len(weights), note, listed)


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
                blocks[(index + 1) * len(blocks) // len(part) - 1]
                for part, blocks in pairs
                for index in range(len(part))
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
) -> None:
    """Keep the rows of the heads for the classes that both have."""
    both = [name for name in classes if name in labels]
    before, after = ([names.index(name) for name in both] for names in (labels, classes))
    for key in (f"{head}.{part}" for head in network.heads() for part in ("weight", "bias")):
        if key in weights and weights[key].shape[1:] == own[key].shape[1:]:
            rows = own[key].clone()
            rows[after] = weights[key][before]
            weights[key] = rows


def _fit_positions(network: FaceNetwork, weights: dict[str, Tensor], own: dict[str, Tensor]) -> str:
    """Resize position embeddings in place to the grid of `network`; returns a note for the log."""
    positions = weights.get(_POSITIONS)  # (1, prefix + side * side, dim)
    if positions is None or _POSITIONS not in own or positions.shape == own[_POSITIONS].shape:
        return ""
    transformer: Any = network.backbone
    prefix = 2 if "backbone.dist_token" in weights else 1
    side, new_side = round((positions.shape[1] - prefix) ** 0.5), transformer.patch_embed.grid_size[0]
    if side**2 != positions.shape[1] - prefix or positions.shape[2] != own[_POSITIONS].shape[2]:
        return ""  # `_check` reports the mismatch
    fitted = own[_POSITIONS].clone()
    kept = min(prefix, transformer.num_prefix_tokens)
    fitted[:, :kept] = positions[:, :kept]
    fitted[:, transformer.num_prefix_tokens :] = resample_abs_pos_embed(
        positions[:, prefix:], [new_side, new_side], [side, side], num_prefix_tokens=0
    )
    weights[_POSITIONS] = fitted
    return f", positions from {side}x{side} to {new_side}x{new_side}" if side != new_side else ""


def _check(folder: Path, weights: dict[str, Tensor], own: dict[str, Tensor], may_start_fresh: tuple[str, ...]) -> None:
    found = {
        "missing": [key for key in own if key not in weights and not key.startswith(may_start_fresh)],
        "unexpected": [key for key in weights if key not in own],
        "with another shape": [
            f"{key} {tuple(weights[key].shape)}, expected {tuple(own[key].shape)}"
            for key in own
            if key in weights and weights[key].shape != own[key].shape
        ],
    }
    if problems := [f"{name} {len(keys)}, first {keys[0]}" for name, keys in found.items() if keys]:
        raise RunError(
            f"model.init_from {folder}: the weights do not match the network ({'; '.join(problems)}). Use the same "
            "family, options and color as in the recipe.yaml of that run."
        )


def provenance(recipe: Recipe, sources: Mapping[str, str]) -> dict[str, Any]:
    """Collect the provenance for `run.json` and the manifest.

    Args:
        sources: index hash of each training split, by kind/split.
    Returns: `learned_from`, hashes by kind/split, including those of teachers and initial weights; `weights_from`,
        hashes of weights by name; `weight_terms`, publisher and license of third-party weights by name.
    Raises: RunError, ArtifactError, if a folder has no weights.
    """
    learned, weights, terms, model = dict(sources), dict[str, str](), dict[str, str](), recipe.model
    if model.pretrained:
        terms[f"{model.family}/{model.name}"] = published_terms(model.family)
    for folder in (*recipe.distillation.teachers, *([model.init_from] if model.init_from else ())):
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
    record = read_report(folder) if (folder / MANIFEST_NAME).exists() else read_run_info(folder)
    return {name: record.get(name, {}) for name in ("learned_from", "weights_from", "weight_terms")}
