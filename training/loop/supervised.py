"""`Task` of training/train.py: supervised learning and distillation, with selection of the best epoch."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from mien.data.contract import CROP_PX, EIGHT_LABELS, Array, contract_id
from mien.models.backbones import Heads
from mien.models.network import FaceNetwork, Head, select_head
from mien.training.config import LossConfig, Recipe, RecipeError
from mien.training.distillation.losses import (
    ClassTerms,
    attention_consistency,
    class_weights,
    distillation_loss,
    relabel,
)
from mien.training.distillation.teachers import Teachers, fixed_logits
from mien.training.loop import checkpoint, metrics
from mien.training.loop.batches import Faces, JoinedFaces
from mien.training.loop.machine import Machine
from mien.training.loop.mixing import mix
from mien.training.loop.session import Session
from mien.training.loop.task import FaceTask, Forward
from mien.training.loop.throughput import forward_flops

logger = logging.getLogger("mien.training")
_CPU: Final = Machine(torch.device("cpu"), torch.autocast("cpu", enabled=False))


@dataclass(slots=True)
class Best:
    """Best epoch so far, by validation."""

    score: float = -1.0
    epoch: int = -1


class Supervised(FaceTask):
    """Training of a face network on class shares and, if the recipe has teachers, on their logits."""

    recipe: Recipe

    def __init__(
        self, recipe: Recipe, out: Path, network: FaceNetwork, faces: JoinedFaces, *, valid: Faces, machine: Machine
    ) -> None:
        super().__init__(recipe, faces, machine)
        self.out, self.network, self.valid, self.sampler = out, network, valid, recipe.data.sampler
        self.labels = EIGHT_LABELS[: valid.targets.shape[1]]
        self.teachers: Teachers | None = None
        if recipe.distillation.teachers:
            self._use(Teachers(recipe.distillation).to(machine.device))
        self.terms = _class_terms(faces.targets, recipe.loss, machine.device)
        self.best, self.step = Best(), 0
        has_two_heads = bool(getattr(network.backbone, "distilled", False))
        by_token = recipe.distillation.mode.startswith("token-")
        if by_token and not has_two_heads:
            raise RecipeError(
                f"distillation.mode {recipe.distillation.mode}: {recipe.model.name} has no distillation token. Choose "
                "one of timm's *_distilled_* models, or mode soft or hard."
            )
        self.all_weights_used = by_token or not has_two_heads

    def prepare(self, *batch: Tensor, step: int) -> tuple[Tensor, ...]:
        """Apply mixup or CutMix."""
        crops, targets, *taught = batch
        self.step = step
        return *mix(crops, targets, self.recipe.mix, seed=self.recipe.seed, step=step), *taught

    def losses(self, forward: Forward, *batch: Tensor) -> dict[str, Tensor]:
        """Loss and its parts, and the shares of the batch that are predicted correctly and that are labeled."""
        crops, targets, *taught = batch
        with self.machine.autocast:
            teacher_logits = taught[0] if taught else self._teach(crops)
            heads, inconsistency = self._forward(forward, crops)
        targets, relabeled = self._relabel(heads, targets)
        smoothing = self.recipe.loss.label_smoothing
        config = self.recipe.distillation
        parts = distillation_loss(heads, targets, teacher_logits, config, terms=self.terms, smoothing=smoothing)
        right, known = _shares_right(heads, targets)
        return {
            "loss": parts.total + self.recipe.loss.attention_consistency * inconsistency.get("inconsistency", 0.0),
            "supervised": parts.supervised,
            "distillation": parts.distillation,
            "right": right,
            "known": known,
            **inconsistency,
            **relabeled,
        }

    def _forward(self, forward: Forward, crops: Tensor) -> tuple[Heads, dict[str, Tensor]]:
        """Heads of B crops, and, if enabled, the inconsistency of their class activation maps under mirroring."""
        if not self.recipe.loss.attention_consistency:
            return forward(crops), {}
        # one batch, so that several processes synchronize their gradients once
        both: Heads = forward(torch.cat([crops, crops.flip(dims=[2])]))
        if both.class_maps is None:
            name = self.recipe.model.name
            raise RecipeError(f"loss.attention_consistency: {name} has no class activation maps; choose a CNN")
        maps, mirrored = both.class_maps.chunk(2)
        return Heads(both.class_logits.chunk(2)[0]), {"inconsistency": attention_consistency(maps, mirrored)}

    def _relabel(self, heads: Heads, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Targets (B, 7) with contradicted labels replaced, and, if enabled, the share that was replaced."""
        config = self.recipe.loss.relabel
        if config is None:
            return targets, {}
        if self.step < config.from_epoch * self.steps_per_epoch:
            return targets, {"relabeled": torch.zeros((), device=targets.device)}
        found, doubted = relabel(heads.class_logits.detach(), targets, margin=config.margin)
        return found, {"relabeled": doubted.float().mean()}

    def summary(self, means: dict[str, float]) -> dict[str, float]:
        """Replace the shares `right` and `known` by the accuracy on the labeled part of the batch."""
        named = {name: value for name, value in means.items() if name not in ("right", "known")}
        return named | ({"accuracy": means["right"] / means["known"]} if means["known"] else {})

    def _teach(self, crops: Tensor) -> Tensor | None:
        if self.teachers is None:
            return None
        with torch.no_grad():
            logits: Tensor = self.teachers.eval()(crops)
        self._check_teachers(logits.shape[1])
        return logits

    def _use(self, teachers: Teachers) -> None:
        """Apply the teachers once, now, or in every step."""
        if self.recipe.distillation.views == "augmented":
            self.teachers = teachers
            return
        cache_dir = self.recipe.data.cache_dir
        found = self.machine.world.first_alone(
            lambda: fixed_logits(teachers, self.faces, machine=self.machine, cache_dir=cache_dir)
        )
        self._check_teachers(found.shape[1])
        self.faces.teacher_logits = found

    def _check_teachers(self, classes: int) -> None:
        if classes != len(self.labels):
            raise RecipeError(f"distillation.teachers: {classes} classes, this recipe has {len(self.labels)}")

    def step_flops(self) -> int:
        """Forward pass, twice that for the backward pass, and the forward pass of the teachers."""
        views = 2 if self.recipe.loss.attention_consistency else 1
        channels = 1 if self.recipe.model.color == "luminance" else 3
        crops = torch.zeros(1, CROP_PX, CROP_PX, channels, dtype=torch.uint8, device=self.machine.device)
        taught = 0 if self.teachers is None else forward_flops(self.teachers, crops)
        return 3 * views * forward_flops(self.network, crops) + taught

    def end_epoch(self, session: Session, epoch: int) -> bool:
        """Validate the weights, save them if they are the best so far; returns whether patience has run out."""
        if session.world.writes:
            self._validate(session, epoch)
        self.best = session.world.from_first(self.best)
        patience = self.recipe.patience_epochs
        return patience is not None and epoch - self.best.epoch >= patience

    def _validate(self, session: Session, epoch: int) -> None:
        heads = predict(session.averaged, self.valid.crops, machine=self.machine)
        scores = {head: _score(logits, self.valid.labels) for head, logits in heads.items()}
        head = max(scores, key=lambda name: scores[name][self.recipe.select])
        score = scores[head]
        session.log({"epoch": epoch, "head": head, **{f"valid_{name}": value for name, value in score.items()}})
        logger.info(
            "epoch %d: validation accuracy %.2f %%, mean class %.2f %% (%s head)",
            epoch + 1, 100 * score["accuracy"], 100 * score["mean_class_accuracy"], head,
        )  # fmt: skip
        if score[self.recipe.select] > self.best.score:
            self.best = Best(score[self.recipe.select], epoch)
            chosen = {"weights": session.averaged.state_dict(), "head": head, "epoch": epoch, **score}
            about = {"labels": list(self.labels), "contract_id": contract_id()}
            checkpoint.save(self.out / checkpoint.BEST, {**chosen, **about})

    def state(self) -> dict[str, Any]:
        """The best score so far, its epoch, and the labels."""
        return {"best": self.best.score, "best_epoch": self.best.epoch, "labels": list(self.labels)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`."""
        self.best = Best(state["best"], state["best_epoch"])


def _class_terms(targets: Array, loss: LossConfig, device: torch.device) -> ClassTerms:
    log_frequency = np.log(np.maximum(targets.mean(axis=0), 1e-6))
    prior = torch.from_numpy(loss.logit_adjustment * log_frequency).float().to(device)
    if loss.class_balance is None:
        return ClassTerms(log_prior=prior)
    counts = torch.from_numpy(targets.sum(axis=0))
    return ClassTerms(prior, class_weights(counts, beta=loss.class_balance).to(device))


def _shares_right(heads: Heads, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Shares of a batch that the class head predicts correctly and that are labeled; scalars."""
    known = targets.sum(dim=1) > 0
    right = known & (heads.class_logits.detach().argmax(dim=1) == targets.argmax(dim=1))
    return right.float().mean(), known.float().mean()


def predict(network: nn.Module, crops: Array, *, machine: Machine = _CPU, batch: int = 256) -> dict[Head, Array]:
    """Logits of each head and of their mean, (N, 7) each; leaves the network in eval mode. Default: fp32 on the CPU."""
    network.eval()
    found: dict[Head, list[Array]] = {}
    for start in range(0, len(crops), batch):
        pixels = torch.from_numpy(np.array(crops[start : start + batch])).to(machine.device)
        with torch.no_grad(), machine.autocast:
            heads = network(pixels)
        names: tuple[Head, ...] = ("class",) if heads.distillation_logits is None else ("class", "distillation", "mean")
        for name in names:
            found.setdefault(name, []).append(select_head(heads, name).cpu().numpy())
    return {name: np.concatenate(parts) for name, parts in found.items()}


def _score(logits: Array, labels: Array) -> dict[str, float]:
    counts = metrics.confusion(logits.argmax(axis=1), labels)
    return {"accuracy": metrics.accuracy(counts), "mean_class_accuracy": metrics.mean_class_accuracy(counts)}
