"""Trained networks of runs and artifacts: their weights, as teachers, and as initial weights.

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
from mien.models.manifest import MANIFEST_NAME, REPORT_NAME, load_artifact, read_report
from mien.models.network import FaceNetwork, Head, select_head
from mien.training.config import DistillationConfig, ModelConfig, Recipe, RecipeError, parse_as, read_as
from mien.training.run import BEST, RECIPE, RunError, load, read_run_info

logger = logging.getLogger("mien.training")

WEIGHTS_NAME: Final = "model.safetensors"
_POSITIONS: Final = "backbone.pos_embed"
_OF_DISTILLATION: Final = ("backbone.head_dist.", "backbone.dist_token")


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
    model: ModelConfig
    if (folder / MANIFEST_NAME).exists():
        labels, report = load_artifact(folder).labels, read_report(folder)
        model = parse_as(ModelConfig, report["recipe"]["model"], origin=str(folder / REPORT_NAME))
        head, weights = report["head"], load_file(folder / WEIGHTS_NAME)
    else:
        model, state = read_as(Recipe, folder / RECIPE).model, load(folder / BEST)
        if state["contract_id"] != contract_id():
            raise RunError(
                f"{folder}: trained with contract {state['contract_id']}; this build has {contract_id()}. Train it "
                f"again, or check out commit {read_run_info(folder)['commit']}."
            )
        head, labels, weights = state["head"], tuple(state["labels"]), state["weights"]
    network = FaceNetwork(model.model_copy(update={"pretrained": False}), len(labels))
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise RunError(f"{folder}: the weights are of another network ({error})") from error
    return network.eval(), head, labels


class Teachers(nn.Module):
    """One or several frozen teachers; an ensemble returns the log of the mean probability.

    Raises: RunError, ArtifactError, if a teacher is missing or damaged, or has another contract; RecipeError, if one of
        them does not know all classes.
    """

    columns: Tensor

    def __init__(self, config: DistillationConfig, classes: tuple[str, ...] = LABELS) -> None:
        super().__init__()
        self.members, self.heads = nn.ModuleList(), list[Head]()
        columns = []
        for folder in config.teachers:
            network, head, labels = load_trained(folder)
            self.members.append(network)
            self.heads.append(head)
            if unknown := [name for name in classes if name not in labels]:
                raise RecipeError(f"distillation.teachers {folder}: does not know {', '.join(unknown)}")
            columns.append([labels.index(name) for name in classes])
        # Columns of each teacher in the order of `classes`; a list would be copied to the device in each step.
        self.register_buffer("columns", torch.tensor(columns), persistent=False)
        self.to(memory_format=torch.channels_last)

    def forward(self, crops: Tensor) -> Tensor:  # (B, 112, 112, C) uint8
        logits = [
            select_head(member(crops), head)[:, columns]  # (B, K)
            for member, head, columns in zip(self.members, self.heads, self.columns, strict=True)
        ]
        if len(logits) == 1:
            return logits[0]
        return torch.stack(logits).softmax(dim=-1).mean(dim=0).clamp_min(1e-12).log()


def load_initial(network: FaceNetwork, folder: Path, classes: tuple[str, ...] = LABELS) -> None:
    """Load the weights of a run or a released artifact, and log what was loaded.

    Of a deeper network, evenly spaced blocks are taken, such as every second. Position embeddings are resized if the
    grids differ. Missing heads and distillation tokens, and the weights of new classes in a head, keep their random
    initialization; all other weights must match.
    Raises: RunError, ArtifactError, RecipeError, if the source is missing or damaged, or does not match the network.
    """
    with torch.random.fork_rng(devices=[]):  # Its random weights are replaced.
        source, _, labels = load_trained(folder)
    _take_blocks(source, network)
    weights, own = source.state_dict(), network.state_dict()
    for key in (f"{head}.{part}" for head in network.heads() for part in ("weight", "bias")):
        if key in weights and weights[key].shape[1:] == own[key].shape[1:]:
            weights[key] = _rows(weights[key], own[key], labels, classes)
    optional = tuple(f"{name}." for name in network.heads()) + _OF_DISTILLATION
    start = {key: value for key, value in own.items() if key.startswith(optional)}
    weights = {key: value for key, value in weights.items() if not key.startswith(optional) or key in own}
    try:
        if _POSITIONS in weights and _POSITIONS in own:
            weights[_POSITIONS] = _resized(weights[_POSITIONS], own[_POSITIONS], network.backbone)
        network.load_state_dict(start | weights)
    except RuntimeError as error:
        raise RunError(
            f"model.init_from {folder}: the weights do not match the network. Use the same family, options and color "
            f"as in the recipe.yaml of that run. {error}"
        ) from error
    fresh = {".".join(key.split(".")[:2]) for key in start.keys() - weights.keys()} | set(classes).difference(labels)
    logger.info("initialized from %s; newly initialized: %s", folder, ", ".join(sorted(fresh)) or "none")


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
