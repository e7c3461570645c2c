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

import numpy as np
import torch
from torch import nn

from mien.data.contract import EIGHT_LABELS
from mien.models.network import FaceNetwork
from mien.training.command import recipe_command
from mien.training.config import Recipe, RecipeError, check_weights
from mien.training.loop.batches import Faces, JoinedFaces, load_faces
from mien.training.loop.machine import use_machine
from mien.training.loop.provenance import data_facts, provenance
from mien.training.loop.run_folder import parameters
from mien.training.loop.session import Session
from mien.training.loop.supervised import Supervised
from mien.training.release.initialization import load_start, model_to_build

logger = logging.getLogger("mien.training")


def train(recipe: Recipe, out: Path) -> Path:
    """Run a recipe to its end and return the run folder.

    Raises: RecipeError, RunError, CheckpointError, TrainingDiverged; DatasetError, for missing or damaged data.
    """
    check_weights("distillation.teachers", *recipe.distillation.teachers)
    model = model_to_build(recipe.model, run=out)
    with use_machine(recipe.runtime) as machine:
        torch.manual_seed(recipe.seed)
        sources = (*recipe.data.train, recipe.data.valid)
        parts = machine.world.first_alone(
            lambda: [load_faces(part, color=recipe.model.color, cache_dir=recipe.data.cache_dir) for part in sources]
        )
        faces, valid = JoinedFaces(parts[:-1]), parts[-1]
        _check_held_out(parts, recipe)
        _check_classes(faces, valid, recipe)
        network = FaceNetwork(model, faces.targets.shape[1])
        start = load_start(network, recipe.model, run=out)
        if machine.world.size > 1 and machine.device.type == "cuda":
            # not available on CPUs, where each process normalizes its own part of the batch
            network = nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
        network.to(machine.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        task = Supervised(recipe, out, network, faces, valid=valid, machine=machine)
        facts = data_facts(sources, parts)
        learned = dict(list(facts["data"].items())[:-1])
        facts |= provenance(recipe.model, learned, folders=(*recipe.distillation.teachers, *start))
        Session(recipe, out, task, machine=machine).run({"parameters": parameters(network), **facts})
    logger.info("best: epoch %d, validation %s %.2f %%", task.best_epoch + 1, recipe.select, 100 * task.best_score)
    return out


def _check_held_out(parts: list[Faces], recipe: Recipe) -> None:
    held_out, keys = recipe.data.valid, set(parts[-1].keys)
    for source, part in zip(recipe.data.train, parts, strict=False):
        same_root = source.resolved_root().resolve() == held_out.resolved_root().resolve()
        both = keys.intersection(part.keys) if same_root else ()
        if both:
            raise RecipeError(
                f"data: {len(both)} of {len(keys)} faces of valid are also in train, such as {min(both)}. Give both "
                "the same options, and different splits."
            )
    seen = {hash(crop.tobytes()) for part in parts[:-1] for crop in part.crops}
    same = [key for key, crop in zip(parts[-1].keys, parts[-1].crops, strict=True) if hash(crop.tobytes()) in seen]
    if same:
        logger.warning(
            "data: %d of %d faces of valid have the pixels of a training face, such as %s: remove these from train",
            len(same), len(keys), same[0],
        )  # fmt: skip


def _check_classes(faces: JoinedFaces, valid: Faces, recipe: Recipe) -> None:
    classes, expected = faces.targets.shape[1], valid.targets.shape[1]
    if classes != expected:
        raise RecipeError(f"data: train has {classes} classes, valid {expected}. Give both the same options.classes.")
    labeled = faces.labels[faces.targets.sum(axis=1) > 0]  # the others have only a teacher
    counts = np.bincount(labeled, minlength=classes)
    empty = [label for label, count in zip(EIGHT_LABELS, counts, strict=False) if count == 0]
    if empty and len(labeled) and not recipe.data.allow_missing_classes:
        raise RecipeError(
            f"data.train: no faces of {', '.join(empty)} among {len(labeled)}. Add faces, or set "
            "data.allow_missing_classes: true."
        )


main = recipe_command("train", Recipe, train)


if __name__ == "__main__":
    sys.exit(main())
