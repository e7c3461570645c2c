"""Training of the face detector from a recipe.

    mien detector train training/recipes/detector/face_fpn_tiny.yaml [key=value ...] [--out runs/NAME]

YuNet labels the images once (images.py), scenes.py composes samples, loss.py defines the loss, training/loop/session.py
trains. With model.init_from, training starts with the weights of an artifact, and scenes.hard_share of the parts of the
samples show its false positives (hard.py). The run folder contains recipe.yaml, run.json, metrics.jsonl, last.pt, and
at the end best.pt with the averaged weights. Rerun the same command to resume.
"""

import sys
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import cv2
import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from mien.models.detector.manifest import load_detector
from mien.models.detector.network import FaceFPN
from mien.models.manifest import sha256_of
from mien.training.command import recipe_command
from mien.training.config import RecipeError, check_weights
from mien.training.detector.config import DetectorModel, DetectorRecipe
from mien.training.detector.hard import false_positives
from mien.training.detector.images import LabeledImages, load_images
from mien.training.detector.loss import Targets, losses
from mien.training.detector.scenes import Scenes
from mien.training.detector.teacher import Teacher
from mien.training.loop import checkpoint
from mien.training.loop.machine import Machine, use_machine
from mien.training.loop.parallel import World
from mien.training.loop.run_folder import parameters
from mien.training.loop.session import Session
from mien.training.loop.task import Forward, Task
from mien.training.release.weights import WEIGHTS_NAME, in_fp32

_FIRST_GAIN: Final = 0.1  # of a block that model.init_from lacks; 0 would leave its ReLU without a gradient


class SceneBatch(NamedTuple):
    """A batch of B samples."""

    pixels: Tensor  # (B, S, S, 3) uint8 BGR
    faces: Tensor  # (B, F, 14), padded with NaN
    ignored: Tensor  # boxes (B, M, 4), padded with NaN
    cells: Tensor  # outputs of the teacher (B, cells, 16); no cells without loss.cells


class SceneBatches(Dataset[SceneBatch]):
    """A process's part of the batches of a run; item b depends only on the seed and b."""

    def __init__(self, scenes: Scenes, recipe: DetectorRecipe, world: World) -> None:
        self._scenes, self._recipe, self._world = scenes, recipe, world

    def __len__(self) -> int:
        return self._recipe.steps

    def __getitem__(self, number: int) -> SceneBatch:
        cv2.setNumThreads(1)  # in a spawned worker
        size = self._recipe.batch_size
        chosen = self._world.mine(np.arange(number * size, (number + 1) * size))
        scenes = [self._scenes(int(index)) for index in chosen]
        pixels = torch.from_numpy(np.stack([scene.pixels for scene in scenes]))
        faces, ignored = [scene.faces for scene in scenes], [scene.ignored for scene in scenes]
        used = scenes if self._recipe.loss.cells else []
        cells = np.array([self._teacher.cells(scene.pixels) for scene in used], np.float32).reshape(len(scenes), -1, 16)
        return SceneBatch(pixels, _padded(faces, 14), _padded(ignored, 4), torch.from_numpy(cells))

    @cached_property
    def _teacher(self) -> Teacher:
        return Teacher(self._recipe.data.resolved_teacher())  # in the worker, since sessions cannot be sent to it


def _padded(rows: list[list[Any]], width: int) -> Tensor:
    tensors = [torch.from_numpy(np.array(of_sample, np.float32).reshape(-1, width)) for of_sample in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=float("nan"))


def build_detector(model: DetectorModel) -> FaceFPN:
    """Build the network of a recipe."""
    return FaceFPN(model.widths, model.depths, model.neck_width, model.heads)


def start_from(artifact: Path, network: FaceFPN) -> None:
    """Give a network the weights of a released one, which may have fewer blocks.

    The other blocks are residual, and start close to the identity.

    Raises: ArtifactError; RecipeError, if the networks differ in anything else.
    """
    load_detector(artifact)
    stored, own = in_fp32(load_file(artifact / WEIGHTS_NAME)), network.state_dict()
    if any(name not in own or own[name].shape != weights.shape for name, weights in stored.items()):
        raise RecipeError(f"model.init_from {artifact}: it is not the network of this recipe")
    for name, module in network.named_modules():
        if isinstance(module, nn.BatchNorm2d) and f"{name}.weight" not in stored:
            nn.init.constant_(module.weight, _FIRST_GAIN)
    network.load_state_dict(stored, strict=False)


class Detection(Task):
    """Distillation of a detector: one epoch of composed samples."""

    recipe: DetectorRecipe
    epochs = 1

    def __init__(self, recipe: DetectorRecipe, out: Path, images: LabeledImages, machine: Machine) -> None:
        self.recipe, self.out, self.machine, self.steps_per_epoch = recipe, out, machine, recipe.steps
        network, start = build_detector(recipe.model), recipe.model.init_from
        if start is not None:
            start_from(start, network)
        self.network: nn.Module = network.to(machine.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        weights = {folder.name: folder.weight for folder in recipe.data.folders}
        hard = false_positives(start, images) if start is not None and recipe.scenes.hard_share else []
        self.scenes = Scenes(images, recipe.scenes, weights=weights, seed=recipe.seed, hard=hard)

    def dataset(self, epoch: int) -> Dataset[SceneBatch]:
        """This process's samples."""
        cv2.setNumThreads(1)  # a forked worker would wait forever for threads that exist only here
        return SceneBatches(self.scenes, self.recipe, self.machine.world)

    def losses(self, forward: Forward, batch: SceneBatch) -> dict[str, Tensor]:
        """Loss and its parts, each a mean over the positive cells."""
        targets = [
            Targets(*(rows[~rows[:, 0].isnan()].cpu() for rows in of_sample))
            for of_sample in zip(batch.faces, batch.ignored, batch.cells, strict=True)
        ]
        with self.machine.autocast:
            grids = forward(batch.pixels.permute(0, 3, 1, 2).float())  # channels last in memory
        return losses(grids, targets, self.recipe.loss)

    def end_epoch(self, session: Session, epoch: int) -> None:
        """Save the averaged weights."""
        if session.world.writes:
            state = {"weights": session.averaged.state_dict(), "step": session.step}
            checkpoint.save(self.out / checkpoint.BEST, state)


def train(recipe: DetectorRecipe, out: Path) -> Path:
    """Train a recipe and return the run folder.

    Raises: RecipeError, RunError, CheckpointError, TrainingDiverged, DatasetError.
    """
    check_weights("model.init_from", recipe.model.init_from)
    with use_machine(recipe.runtime) as machine:
        torch.manual_seed(recipe.seed)
        images = machine.world.first_alone(lambda: load_images(recipe.data, "train"))
        task = Detection(recipe, out, images, machine)
        teacher = recipe.data.resolved_teacher()
        facts = {
            "parameters": parameters(task.network),
            "data": {"images/train": images.index_sha256},
            "images": len(images),
            "teacher": {teacher.name: sha256_of(teacher)},
        }
        if (start := recipe.model.init_from) is not None:
            facts["init_from"] = {start.name: sha256_of(start / WEIGHTS_NAME)}
        Session(recipe, out, task, machine=machine).run(facts)
    return out


main = recipe_command("detector train", DetectorRecipe, train)


if __name__ == "__main__":
    sys.exit(main())
