"""Training of one network from a recipe.

    mien train training/recipes/ferplus_teacher.yaml [key=value ...] [--out runs/NAME]
    torchrun --nproc-per-node=2 -m mien.training.train ...    # several processes, training/loop/parallel.py

Reads crops (training/loop/batches.py), trains (training/loop/session.py), and writes a run folder: recipe.yaml,
run.json, metrics.jsonl, last.pt, best.pt. Validation selects the best weights; test splits are never read. Rerun the
same command to resume.
"""

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from mien.data.contract import EIGHT_LABELS, Array
from mien.models.network import FaceNetwork
from mien.training.command import run_command
from mien.training.config import Recipe, RecipeError
from mien.training.loop import checkpoint
from mien.training.loop.batches import Faces, JoinedFaces, load_faces
from mien.training.loop.machine import Machine, use_machine
from mien.training.loop.provenance import provenance
from mien.training.loop.run_folder import build_network, parameters, start_run
from mien.training.loop.session import Session
from mien.training.loop.supervised import Supervised
from mien.training.release.initialization import load_start

logger = logging.getLogger("mien.training")


def train(recipe: Recipe, out: Path) -> Path:
    """Run a recipe to its end and return the run folder.

    Raises: RecipeError, RunError, CheckpointError, TrainingDiverged; DatasetError, for missing or damaged data.
    """
    with use_machine(recipe.runtime) as machine:
        torch.manual_seed(recipe.seed)
        train_parts, valid = machine.world.first_alone(lambda: _read_data(recipe))
        faces = JoinedFaces(train_parts)
        _check_classes(faces, recipe)
        network = _first_network(recipe, out, train_parts[0].crops, machine, classes=faces.targets.shape[1])
        task = Supervised(recipe, out, network, faces, valid=valid, machine=machine)
        if machine.world.writes:
            facts = _facts(recipe, out, train_parts, valid=valid, network=network)
            start_run(out, recipe, facts | {"processes": machine.world.size})
        Session(recipe, out, task, machine=machine).run()
    logger.info("best: epoch %d, validation %s %.2f %%", task.best.epoch + 1, recipe.select, 100 * task.best.score)
    return out


def _read_data(recipe: Recipe) -> tuple[list[Faces], Faces]:
    color, cache_dir = recipe.model.color, recipe.data.cache_dir
    parts = [load_faces(part, color=color, cache_dir=cache_dir) for part in recipe.data.train]
    valid = load_faces(recipe.data.valid, color=color, cache_dir=cache_dir)
    found, expected = max(part.targets.shape[1] for part in parts), valid.targets.shape[1]
    if found != expected:
        raise RecipeError(f"data: train has {found} classes, valid {expected}. Give both the same options.classes.")
    return parts, valid


def _check_classes(faces: JoinedFaces, recipe: Recipe) -> None:
    labeled = faces.labels[faces.targets.sum(axis=1) > 0]  # the others have only a teacher
    counts = np.bincount(labeled, minlength=faces.targets.shape[1])
    empty = [label for label, count in zip(EIGHT_LABELS, counts, strict=False) if count == 0]
    if empty and len(labeled) and not recipe.data.allow_missing_classes:
        raise RecipeError(
            f"data.train: no faces of {', '.join(empty)} among {len(labeled)}. Add faces, or set "
            "data.allow_missing_classes: true."
        )


def _first_network(recipe: Recipe, out: Path, crops: Array, machine: Machine, *, classes: int) -> FaceNetwork:
    """Build and initialize the network; a resumed run overwrites its weights."""
    network = build_network(recipe.model, classes)
    if not checkpoint.exists(out):
        load_start(network, recipe.model, crops)
    if machine.world.size > 1 and machine.device.type == "cuda":
        # not available on CPUs, where each process normalizes its own part of the batch
        network = nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
    return network.to(machine.device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _facts(recipe: Recipe, out: Path, train_parts: list[Faces], *, valid: Faces, network: nn.Module) -> dict[str, Any]:
    sources = [*zip(recipe.data.train, train_parts, strict=True), (recipe.data.valid, valid)]
    learned = {f"{source.kind}/{source.split}": part.index_sha256 for source, part in sources[:-1]}
    start = recipe.model.init_from
    folders = (*recipe.distillation.teachers, *(() if start is None or checkpoint.exists(out) else (start,)))
    return {
        "parameters": parameters(network),
        "data": {f"{source.kind}/{source.split}": part.index_sha256 for source, part in sources},
        "faces": {f"{source.kind}/{source.split}": len(part) for source, part in sources},
        **provenance(recipe.model, learned, folders=folders),
    }


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    return run_command("train", "Train one network from a recipe.", Recipe, train, arguments)


if __name__ == "__main__":
    sys.exit(main())
