"""Training of the face detector from a recipe.

    mien detector train training/recipes/detector/face_fpn_micro.yaml [key=value ...] [--out runs/NAME]

YuNet labels the images once (images.py), scenes.py composes samples, loss.py defines the loss. With model.init_from,
training starts with the weights of an artifact, and scenes.hard_share of the parts of the samples show false positives
of it or of scenes.hard_from. The run folder contains recipe.yaml, run.json, metrics.jsonl, last.pt, and at the end
best.pt with the averaged weights. Rerun the same command to resume.
"""

import sys
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import cv2
import numpy as np
import torch
from safetensors.torch import load_file
from timm.utils.model_ema import ModelEmaV3
from torch import Tensor, nn
from torch.utils.data import Dataset

from mien.data.contract import Array
from mien.models.detector.manifest import load_detector
from mien.models.detector.network import FaceFPN
from mien.models.manifest import sha256_of
from mien.training.config import RecipeError, check_weights
from mien.training.detector.config import DetectorModel, DetectorRecipe
from mien.training.detector.images import LabeledImage, false_positives, load_images
from mien.training.detector.loss import CellTargets, Targets, cell_targets, cells, losses
from mien.training.detector.scenes import Scene, Scenes
from mien.training.detector.teacher import Teacher
from mien.training.optimizer import build_optimizer, build_scheduler, perturbed_weights
from mien.training.run import Run, check_batch_size, parts_of
from mien.training.run_folder import parameters
from mien.training.runtime import World, setup_runtime
from mien.training.weights import WEIGHTS_NAME, in_fp32

_FIRST_GAIN: Final = 0.1  # of a block that model.init_from lacks; 0 would leave its ReLU without a gradient


class SceneBatch(NamedTuple):
    """A batch of B samples, and the targets of their cells; see `CellTargets`."""

    pixels: Tensor  # (B, S, S, 3) uint8 BGR
    assigned: Tensor
    taught: Tensor
    counts: Tensor
    faces: Tensor
    scores: Tensor


class SceneBatches(Dataset[SceneBatch]):
    """A process's part of the batches of a run; item b depends only on the seed and b."""

    def __init__(self, scenes: Scenes, recipe: DetectorRecipe, world: World) -> None:
        self._scenes, self._recipe, self._world = scenes, recipe, world

    def __getitem__(self, number: int) -> SceneBatch:
        cv2.setNumThreads(1)  # in a spawned worker
        size = self._recipe.batch_size
        chosen = self._world.shard(np.arange(number * size, (number + 1) * size))
        scenes = [self._scenes(int(index)) for index in chosen]
        side = self._recipe.scenes.img_size
        targets = [cell_targets(self._targets(scene), *cells(side, side)) for scene in scenes]
        pixels = torch.from_numpy(np.stack([scene.pixels for scene in scenes]))
        return SceneBatch(pixels, *(torch.stack(parts) for parts in zip(*targets, strict=True)))

    def _targets(self, scene: Scene) -> Targets:
        seen = [self._teacher.cells(scene.pixels)] if self._recipe.loss.cells else []
        rows = ((scene.faces, 14), (scene.ignored, 4), (seen, 16))
        return Targets(*(torch.from_numpy(np.array(of, np.float32).reshape(-1, width)) for of, width in rows))

    @cached_property
    def _teacher(self) -> Teacher:
        return Teacher(self._recipe.data.resolved_teacher())  # in the worker, since sessions cannot be sent to it


def build_detector(model: DetectorModel) -> FaceFPN:
    """Build the network of a recipe."""
    return FaceFPN(model.widths, model.depths, model.neck_width, model.heads, centered=model.centered)


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


def train(recipe: DetectorRecipe, out: Path) -> Path:  # noqa: PLR0915 (one page, from top to bottom)
    """Train a recipe and return the run folder.

    Raises: RecipeError, RunError, CheckpointError, TrainingDiverged, DatasetError.
    """
    start, optim = recipe.model.init_from, recipe.optim
    check_weights("model.init_from", start)
    check_weights("scenes.hard_from", recipe.hard_from)
    with setup_runtime(recipe.runtime) as runtime:
        check_batch_size(recipe, runtime.world.size)
        torch.manual_seed(recipe.seed)
        images = runtime.world.main_process_first(lambda: load_images(recipe.data, "train"))
        network = build_detector(recipe.model)
        if start is not None:
            start_from(start, network)
        network.to(runtime.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        weights = {folder.name: folder.weight for folder in recipe.data.folders}
        hard: list[tuple[LabeledImage, Array]] = []
        if (artifact := recipe.hard_from) is not None:
            hard = runtime.world.main_process_first(lambda: false_positives(artifact, images, recipe.data.cache_dir))
        scenes = Scenes(images, recipe.scenes, weights=weights, seed=recipe.seed, hard=hard)
        cv2.setNumThreads(1)  # a forked worker would wait forever for threads that exist only here
        batches = SceneBatches(scenes, recipe, runtime.world)

        optimizer = build_optimizer(network, optim)
        scheduler = build_scheduler(optimizer, optim, epochs=1, steps_per_epoch=recipe.steps)
        scaler = torch.amp.GradScaler(runtime.device.type, enabled=recipe.runtime.precision == "fp16")
        ema = ModelEmaV3(network, decay=optim.ema_decay, use_warmup=True) if optim.ema_decay is not None else None
        compiled: Any = torch.compile(network) if recipe.runtime.compile else network
        forward: Any = runtime.world.wrap(compiled, all_used=True)

        def backward(batch: SceneBatch) -> dict[str, Tensor]:
            """Accumulate the gradients of a batch in parts; returns its mean losses by name."""
            means: dict[str, Tensor] = {}
            for number, (share, part) in enumerate(parts_of(batch, recipe.runtime.accumulate), start=1):
                is_last = number == recipe.runtime.accumulate or runtime.world.size == 1
                with nullcontext() if is_last else forward.no_sync():
                    with runtime.autocast:
                        grids = forward(part.pixels.permute(0, 3, 1, 2).float())  # channels last in memory
                    by_name = losses(grids, CellTargets(*part[1:]), recipe.loss)
                    scaler.scale(by_name["loss"] * share).backward()  # type: ignore[no-untyped-call]
                means = {name: means.get(name, 0.0) + share * value.detach() for name, value in by_name.items()}
            return means

        teacher = recipe.data.resolved_teacher()
        facts: dict[str, Any] = {
            "parameters": parameters(network),
            "data": {"images/train": images.index_sha256},
            "images": len(images),
            "teacher": {teacher.name: sha256_of(teacher)},
        }
        artifacts = {"init_from": start, "hard_from": recipe.scenes.hard_from}
        facts |= {key: {of.name: sha256_of(of / WEIGHTS_NAME)} for key, of in artifacts.items() if of is not None}
        state: dict[str, Any] = {"network": network, "optimizer": optimizer}
        state |= {"ema": ema.module} if ema is not None else {}
        state |= {"scaler": scaler} if scaler.is_enabled() else {}
        with Run(recipe, out, facts, state, runtime=runtime, epochs=1, steps_per_epoch=recipe.steps) as run:
            if run.finished:
                return out
            network.train()
            for batch in run.batches(batches):
                scheduler.step_update(run.step)
                optimizer.zero_grad(set_to_none=True)
                means = backward(batch)
                if optim.sam_rho is not None:
                    with perturbed_weights(network, optim.sam_rho):
                        backward(batch)
                scaler.unscale_(optimizer)
                grad_norm = nn.utils.clip_grad_norm_(network.parameters(), optim.clip_grad_norm or float("inf"))
                scaler.step(optimizer)
                scaler.update()
                if ema is not None:
                    ema.update(network, step=run.step + 1)
                if scaler.is_enabled():  # it skips a step whose gradients are not finite, and scales less
                    grad_norm = torch.zeros_like(grad_norm)
                learning_rate = max(group["lr"] for group in optimizer.param_groups)
                run.end_step(means, grad_norm=grad_norm, learning_rate=learning_rate)
            averaged = network if ema is None else ema.module
            run.keep_best(0.0, 0, {"weights": averaged.state_dict(), "step": run.step})
            run.save_last()
    return out


if __name__ == "__main__":  # of torchrun
    from mien.training.cli import main

    sys.exit(main(["detector", "train", *sys.argv[1:]]))
