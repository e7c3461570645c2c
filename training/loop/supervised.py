"""`Task` of training/train.py: supervised learning and distillation, with selection of the best epoch."""

import logging
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from mien.data.contract import EIGHT_LABELS, Array, contract_id
from mien.models.backbones import Heads
from mien.models.network import FaceNetwork, Head, select_head
from mien.training import metrics
from mien.training.config import Recipe, RecipeError
from mien.training.distillation.losses import (
    attention_consistency,
    cross_entropy,
    distillation_loss,
)
from mien.training.distillation.teachers import Teachers, fixed_logits
from mien.training.loop import checkpoint
from mien.training.loop.batches import FaceBatch, Faces, JoinedFaces
from mien.training.loop.machine import Machine
from mien.training.loop.mixing import mix
from mien.training.loop.session import Session
from mien.training.loop.task import FaceTask, Forward

logger = logging.getLogger("mien.training")
_CPU: Final = Machine(torch.device("cpu"), torch.autocast("cpu", enabled=False))
_BATCH: Final = 256


class Supervised(FaceTask):
    """Training of a face network on class shares and, if the recipe has teachers, on their logits."""

    recipe: Recipe

    def __init__(
        self, recipe: Recipe, out: Path, network: FaceNetwork, faces: JoinedFaces, *, valid: Faces, machine: Machine
    ) -> None:
        super().__init__(recipe, faces, machine)
        self.out, self.network, self.valid = out, network, valid
        self.labels = EIGHT_LABELS[: valid.targets.shape[1]]
        self.best_score, self.best_epoch = -1.0, -1
        self.teachers = Teachers(recipe.distillation).to(machine.device) if recipe.distillation.teachers else None
        if self.teachers is not None and self.teachers.num_classes != len(self.labels):
            classes = self.teachers.num_classes
            raise RecipeError(f"distillation.teachers: {classes} classes, this recipe has {len(self.labels)}")
        has_two_heads = bool(getattr(network.backbone, "distilled", False))
        by_token = recipe.distillation.mode.startswith("token-")
        if by_token and not has_two_heads:
            raise RecipeError(
                f"distillation.mode {recipe.distillation.mode}: {recipe.model.name} has no distillation token. Choose "
                "one of timm's *_distilled_* models, or mode soft or hard."
            )
        self.all_weights_used = by_token or not has_two_heads
        if self.teachers is not None and recipe.distillation.views == "fixed":
            teachers, cache_dir = self.teachers, recipe.data.cache_dir
            faces.teacher_logits = machine.world.first_alone(
                lambda: fixed_logits(teachers, faces, machine=machine, cache_dir=cache_dir)
            )
            self.teachers = None
        log_frequency = np.log(np.maximum(faces.targets.mean(axis=0), 1e-6))
        logit_adjustment = torch.from_numpy(recipe.loss.logit_adjustment * log_frequency).float()
        self.logit_adjustment = logit_adjustment.to(machine.device)

    def prepare(self, batch: FaceBatch, step: int) -> FaceBatch:
        """Apply mixup or CutMix."""
        crops, targets = mix(batch.crops, batch.targets, self.recipe.mix, seed=self.recipe.seed, step=step)
        return batch._replace(crops=crops, targets=targets)

    def losses(self, forward: Forward, batch: FaceBatch) -> dict[str, Tensor]:
        """Loss and its parts, and the shares of the batch that are predicted correctly and that are labeled."""
        config, targets, teacher_logits = self.recipe.loss, batch.targets, batch.teacher_logits
        optional: dict[str, Tensor] = {}
        with self.machine.autocast:
            if self.teachers is not None:
                with torch.no_grad():
                    teacher_logits = self.teachers.eval()(batch.crops)
            if config.attention_consistency:
                # one batch, so that several processes synchronize their gradients once
                both: Heads = forward(torch.cat([batch.crops, batch.crops.flip(dims=[2])]))
                if both.class_maps is None:
                    name = self.recipe.model.name
                    raise RecipeError(f"loss.attention_consistency: {name} has no class activation maps; choose a CNN")
                optional["inconsistency"] = attention_consistency(*both.class_maps.chunk(2))
                heads = Heads(both.class_logits.chunk(2)[0])
            else:
                heads = forward(batch.crops)
        loss = supervised = cross_entropy(
            heads.class_logits,
            targets,
            logit_adjustment=self.logit_adjustment,
            label_smoothing=config.label_smoothing,
        )
        distillation = torch.zeros_like(supervised)
        if teacher_logits is not None:
            weight = self.recipe.distillation.weight
            distillation = distillation_loss(heads, teacher_logits, self.recipe.distillation)
            loss = (1 - weight) * supervised + weight * distillation
        known = targets.sum(dim=1) > 0
        right = known & (heads.class_logits.detach().argmax(dim=1) == targets.argmax(dim=1))
        return {
            "loss": loss + config.attention_consistency * optional.get("inconsistency", 0.0),
            "supervised": supervised,
            "distillation": distillation,
            "right": right.float().mean(),
            "known": known.float().mean(),
            **optional,
        }

    def summary(self, means: dict[str, float]) -> dict[str, float]:
        """Replace the shares `right` and `known` by the accuracy on the labeled part of the batch."""
        named = {name: value for name, value in means.items() if name not in ("right", "known")}
        return named | ({"accuracy": means["right"] / means["known"]} if means["known"] else {})

    def end_epoch(self, session: Session, epoch: int) -> None:
        """Validate the weights, and save them if they are the best so far."""
        if not session.world.writes:
            return
        heads = predict(
            session.averaged, self.valid.crops, heads=self.recipe.distillation.trained_heads, machine=self.machine
        )
        scores = {head: _score(logits, self.valid.labels) for head, logits in heads.items()}
        head = max(scores, key=lambda name: scores[name][self.recipe.select])
        score = scores[head]
        session.log({"epoch": epoch, "head": head, **{f"valid_{name}": value for name, value in score.items()}})
        logger.info(
            "epoch %d: validation accuracy %.2f %%, mean class %.2f %% (%s head)",
            epoch + 1, 100 * score["accuracy"], 100 * score["mean_class_accuracy"], head,
        )  # fmt: skip
        if score[self.recipe.select] > self.best_score:
            self.best_score, self.best_epoch = score[self.recipe.select], epoch
            about = {"head": head, "epoch": epoch, "labels": list(self.labels), "contract_id": contract_id()}
            state = {"weights": session.averaged.state_dict(), **score, **about}
            checkpoint.save(self.out / checkpoint.BEST, state)

    def state(self) -> dict[str, Any]:
        """The best score so far, its epoch, and the labels."""
        return {"best": self.best_score, "best_epoch": self.best_epoch, "labels": list(self.labels)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`."""
        self.best_score, self.best_epoch = state["best"], state["best_epoch"]


def predict(network: nn.Module, crops: Array, *, heads: tuple[Head, ...], machine: Machine = _CPU) -> dict[Head, Array]:
    """Logits of the heads that a network has of `heads`, (N, 7) each; leaves the network in eval mode.

    Default: fp32 on the CPU.
    """
    network.eval()
    logits: dict[Head, list[Array]] = {}
    for start in range(0, len(crops), _BATCH):
        pixels = torch.from_numpy(np.array(crops[start : start + _BATCH])).to(machine.device)
        with torch.no_grad(), machine.autocast:
            output: Heads = network(pixels)
        for name in heads if output.distillation_logits is not None else ("class",):
            logits.setdefault(name, []).append(select_head(output, name).cpu().numpy())
    return {name: np.concatenate(parts) for name, parts in logits.items()}


def _score(logits: Array, labels: Array) -> dict[str, float]:
    counts = metrics.confusion(logits.argmax(axis=1), labels)
    return {"accuracy": metrics.accuracy(counts), "mean_class_accuracy": metrics.mean_class_accuracy(counts)}
