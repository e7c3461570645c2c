"""Training of the face detector from a recipe.

    python -m training.detector.train training/recipes/detector/face_fpn_tiny.yaml [key=value ...] [--out runs/NAME]

YuNet labels the images once (images.py), scenes.py composes samples, loss.py defines the loss. The run folder contains
recipe.yaml, run.json, metrics.jsonl, last.pt, and at the end best.pt with the averaged weights. Rerun the same command
to resume.
"""

import logging
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from models.detector.network import FaceFPN
from models.manifest import sha256_of
from training.command import run_command
from training.detector.config import DetectorModel, DetectorRecipe, read_detector_recipe
from training.detector.images import LabeledImages, load_images
from training.detector.loss import Targets, losses
from training.detector.scenes import Scenes
from training.loop import checkpoint
from training.loop.machine import choose_device
from training.loop.optimizer import build_average, build_optimizer, build_scheduler
from training.loop.run_folder import METRICS_NAME, parameters, start_run
from training.loop.throughput import Clock, MetricsLogger, TrainingDiverged, progress_bar
from training.loop.trackers import open_trackers

logger = logging.getLogger("training")
Batch = tuple[Tensor, list[Targets]]


class Samples(Dataset[tuple[Tensor, Targets]]):
    """Samples `start` to `stop` of a run."""

    def __init__(self, scenes: Scenes, start: int, stop: int) -> None:
        self._scenes, self._start, self._stop = scenes, start, stop

    def __len__(self) -> int:
        return self._stop - self._start

    def __getitem__(self, number: int) -> tuple[Tensor, Targets]:
        scene = self._scenes(self._start + number)
        faces = np.array(scene.faces, np.float32).reshape(-1, 14)
        ignored = np.array(scene.ignored, np.float32).reshape(-1, 4)
        pixels = torch.from_numpy(np.ascontiguousarray(scene.pixels))
        return pixels, Targets(torch.from_numpy(faces), torch.from_numpy(ignored))


def _collate(samples: list[tuple[Tensor, Targets]]) -> Batch:
    pixels = torch.stack([pixels for pixels, _ in samples])  # (B, S, S, 3)
    return pixels, [targets for _, targets in samples]


def build_detector(model: DetectorModel) -> FaceFPN:
    """Build the network of a recipe."""
    return FaceFPN(model.widths, model.depths, model.neck_width)


class Run:
    """State of a run; a resumed run has the same samples and losses."""

    def __init__(self, recipe: DetectorRecipe, out: Path) -> None:
        self.recipe, self.out, self.step = recipe, out, 0
        self.device, self.autocast = choose_device(recipe.runtime)
        torch.manual_seed(recipe.seed)
        self.network = build_detector(recipe.model).to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        assert recipe.optim.ema_decay is not None  # noqa: S101  # checked by DetectorRecipe
        self.average = build_average(self.network, decay=recipe.optim.ema_decay, warmup=recipe.optim.ema_warmup)
        self.optimizer = build_optimizer(self.network, recipe.optim)
        self.scheduler = build_scheduler(self.optimizer, recipe.optim, epochs=1, steps_per_epoch=recipe.steps)

    def resume(self) -> None:
        """Load the newest complete checkpoint, if there is one."""
        state = checkpoint.read_newest(self.out)
        if state is None:
            return
        self.network.load_state_dict(state["network"])
        self.average.module.load_state_dict(state["ema"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        logger.info("resumed at step %d of %d", self.step, self.recipe.steps)

    def save(self) -> None:
        """Write a checkpoint. Raises: CheckpointError."""
        state = {"network": self.network.state_dict(), "ema": self.average.module.state_dict()}
        checkpoint.save_last(self.out, state | {"optimizer": self.optimizer.state_dict(), "step": self.step})

    def train_step(self, pixels: Tensor, targets: list[Targets]) -> dict[str, float]:
        """Train on one batch; returns its losses by name. Raises: TrainingDiverged."""
        self.scheduler.step_update(self.step)
        self.optimizer.zero_grad(set_to_none=True)
        image = pixels.to(self.device).permute(0, 3, 1, 2).float()  # channels last in memory
        with self.autocast:
            grids = self.network(image)
        parts = losses(grids, targets, self.recipe.loss)
        if not math.isfinite(parts["loss"].item()):
            raise TrainingDiverged(f"step {self.step}: loss is {parts['loss'].item()}. Lower optim.learning_rate")
        parts["loss"].backward()  # type: ignore[no-untyped-call]
        if self.recipe.optim.clip_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.network.parameters(), self.recipe.optim.clip_grad_norm)
        self.optimizer.step()
        self.step += 1
        self.average.update(self.network, step=self.step)
        return {name: round(part.item(), 5) for name, part in parts.items()}


def train(recipe: DetectorRecipe, out: Path) -> Path:
    """Train a recipe and return the run folder.

    Raises: RecipeError, RunError, CheckpointError, TrainingDiverged, DatasetError.
    """
    cv2.setNumThreads(1)
    run = Run(recipe, out)
    images = load_images(recipe.data, "train")
    start_run(out, recipe, _facts(recipe, images, run.network))
    run.resume()
    trackers = open_trackers(recipe.runtime, out, name=recipe.name, step=run.step)
    metrics = MetricsLogger(out / METRICS_NAME, step=run.step, trackers=trackers)
    try:
        _steps(run, _batches(recipe, images, run.step), metrics)
    finally:
        metrics.close()
    run.save()
    checkpoint.save(out / checkpoint.BEST, {"weights": run.average.module.state_dict(), "step": run.step})
    return out


def _facts(recipe: DetectorRecipe, images: LabeledImages, network: nn.Module) -> dict[str, Any]:
    return {
        "parameters": parameters(network),
        "data": {"images/train": images.index_sha256},
        "images": len(images),
        "teacher": teacher_sha256(recipe),
    }


def teacher_sha256(recipe: DetectorRecipe) -> dict[str, str]:
    """Name and SHA-256 of the teacher's file."""
    path = recipe.data.resolved_teacher()
    return {path.name: sha256_of(path)}


def _batches(recipe: DetectorRecipe, images: LabeledImages, step: int) -> Iterator[Batch]:
    weights = {folder.name: folder.weight for folder in recipe.data.folders}
    scenes = Scenes(images, recipe.scenes, weights=weights, seed=recipe.seed)
    samples = Samples(scenes, step * recipe.batch_size, recipe.steps * recipe.batch_size)
    return iter(
        DataLoader(
            samples,
            recipe.batch_size,
            num_workers=recipe.runtime.workers,
            collate_fn=_collate,
            worker_init_fn=_one_thread,
        )
    )


def _one_thread(_: int) -> None:
    cv2.setNumThreads(1)


def _steps(run: Run, batches: Iterator[Batch], metrics: MetricsLogger) -> None:
    runtime, clock = run.recipe.runtime, Clock()
    run.network.train()
    with progress_bar() as progress:
        bar = progress.add_task(run.recipe.name, total=run.recipe.steps, completed=run.step, note="")
        for pixels, targets in batches:
            clock.batch_loaded()
            parts = run.train_step(pixels, targets)
            clock.step_done(len(targets))
            rates = {"samples_per_s": round(clock.faces_per_s, 1), "data_wait_share": clock.rates()["data_wait_share"]}
            progress.update(bar, advance=1, note=f"loss {parts['loss']:.3f}  {rates['samples_per_s']} samples/s")
            if run.step % runtime.log_every_steps == 0:
                metrics.add({"step": run.step, **parts, "lr": run.optimizer.param_groups[0]["lr"], **rates})
            if run.step % runtime.checkpoint_every_steps == 0:
                run.save()


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    description = "Train a face detector from a recipe."
    return run_command("python -m training.detector.train", description, read_detector_recipe, train, arguments)


if __name__ == "__main__":
    sys.exit(main())
