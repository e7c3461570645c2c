"""Training of one network from a recipe.

    mien train training/recipes/ferplus_teacher.yaml [key=value ...] [--out runs/NAME]

`train` is the whole of it: data (faces.py, batches.py), network, teachers, losses, loop. It writes a run folder
(run.py): recipe.yaml, run.json, metrics.jsonl, last.pt, best.pt. Validation selects the best weights; test splits are
never read. Rerun the same command to resume.
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timm.utils.model_ema import ModelEmaV3
from torch import Tensor, nn

from mien.data.contract import Array, contract_id, softmax
from mien.models.backbones import Heads
from mien.models.network import FaceNetwork
from mien.training import checkpoint
from mien.training.batches import FaceBatch, FaceBatches, mix
from mien.training.config import Recipe, RecipeError, check_weights
from mien.training.evaluate import evaluate, predict
from mien.training.faces import Split, join, read_split
from mien.training.initialization import load_initial
from mien.training.losses import cross_entropy, distillation_loss
from mien.training.optimizer import build_optimizer, build_scheduler, perturbed_weights
from mien.training.run import Run
from mien.training.run_folder import data_facts, parameters, provenance
from mien.training.runtime import setup_runtime
from mien.training.teachers import Teachers

logger = logging.getLogger("mien.training")


def train(recipe: Recipe, out: Path) -> Path:  # noqa: C901, PLR0912, PLR0915 (one page, from top to bottom)
    """Run a recipe to its end and return the run folder.

    Raises: RecipeError, RunError, CheckpointError, TrainingDiverged, OutOfMemory; DatasetError, for missing or damaged
        data.
    """
    optim, distillation, loss_config = recipe.optim, recipe.distillation, recipe.loss
    sign = -1 if recipe.select == "negative_log_likelihood" else 1
    check_weights("distillation.teachers", *distillation.teachers)
    model = recipe.model
    if checkpoint.exists(out):  # it replaces all initial weights
        model = model.model_copy(update={"pretrained": False, "init_from": None})
    check_weights("model.init_from", model.init_from)
    runtime = setup_runtime(recipe.runtime)
    device = runtime.device
    in_fp32 = replace(runtime, autocast=torch.autocast(device.type, enabled=False))  # as the release is evaluated
    torch.manual_seed(recipe.seed)

    # faces
    data, count = recipe.data, len(recipe.data.train)
    parts = [read_split(part, color=recipe.model.color, cache_dir=data.cache_dir) for part in data.sources]
    faces, valid = join(parts[:count]), None if data.valid is None else parts[-1]
    if valid is not None:
        _check_held_out(parts[:count], valid, recipe)
    _check_classes(faces, valid, recipe)
    labels = faces.classes
    steps_per_epoch = len(faces) // recipe.batch_size
    if steps_per_epoch == 0:
        raise RecipeError(f"batch_size {recipe.batch_size}: larger than the {len(faces)} training faces")

    # network
    network = FaceNetwork(model, len(labels))
    if model.init_from is not None:
        load_initial(network, model.init_from, labels)
    network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    _check_losses(network, recipe)

    # teachers
    teachers = Teachers(distillation, labels).to(device).eval() if distillation.teachers else None
    batches = FaceBatches(faces, recipe)  # shuffled and augmented

    # optimizer
    optimizer = build_optimizer(network, optim)
    scheduler = build_scheduler(optimizer, optim, epochs=recipe.epochs, steps_per_epoch=steps_per_epoch)
    scaler = torch.amp.GradScaler(device.type, enabled=recipe.runtime.precision == "fp16")
    ema = ModelEmaV3(network, decay=optim.ema_decay, use_warmup=True) if optim.ema_decay is not None else None
    averaged: nn.Module = network if ema is None else ema.module
    forward: Any = torch.compile(network) if recipe.runtime.compile else network
    is_distilled = bool(getattr(network.backbone, "distilled", False))
    log_frequency = np.log(np.maximum(faces.targets.mean(axis=0), 1e-6))
    logit_adjustment = torch.from_numpy(loss_config.logit_adjustment * log_frequency).float().to(device)

    def losses_of(batch: FaceBatch) -> dict[str, Tensor]:
        """Loss and its parts; shares of the faces that are predicted correctly, and that have a label."""
        with runtime.autocast:
            with torch.no_grad():
                teacher_logits = None if teachers is None else teachers(batch.crops)
            heads: Heads = forward(batch.crops)
        losses: dict[str, Tensor] = {}
        losses["supervised"] = loss = cross_entropy(
            heads.class_logits,
            batch.targets,
            logit_adjustment=logit_adjustment,
            label_smoothing=loss_config.label_smoothing,
        )
        losses["distillation"] = torch.zeros_like(loss)
        if teacher_logits is not None:
            losses["distillation"] = distillation_loss(heads, teacher_logits, distillation)
            loss = (1 - distillation.weight) * loss + distillation.weight * losses["distillation"]
        has_label = batch.targets.sum(dim=1) > 0
        correct = has_label & (heads.class_logits.detach().argmax(dim=1) == batch.targets.argmax(dim=1))
        return losses | {
            "loss": loss,
            "correct": correct.float().mean(),
            "labeled": has_label.float().mean(),
        }

    def backward(batch: FaceBatch) -> dict[str, Tensor]:
        """Compute the gradients of a batch; returns its losses by name."""
        losses = losses_of(batch)
        scaler.scale(losses["loss"]).backward()  # type: ignore[no-untyped-call]
        return losses

    facts = data_facts(data.sources, parts)
    learned = dict(list(facts["data"].items())[:count])
    facts |= provenance(recipe.model, learned, folders=(*distillation.teachers, *filter(None, [model.init_from])))
    facts["parameters"] = parameters(network)
    state: dict[str, Any] = {"network": network, "optimizer": optimizer}
    state |= {"ema": ema.module} if ema is not None else {}
    state |= {"scaler": scaler} if scaler.is_enabled() else {}
    with Run(
        recipe, out, facts, state, device=device, steps_per_epoch=steps_per_epoch, sample_names=batches.keys
    ) as run:
        for epoch in range(run.step // steps_per_epoch, recipe.epochs):
            network.train()
            for loaded in run.batches(batches):
                scheduler.step_update(run.step)
                optimizer.zero_grad(set_to_none=True)
                crops, targets = mix(loaded.crops, loaded.targets, recipe.mix, seed=recipe.seed, step=run.step)
                batch = loaded._replace(crops=crops, targets=targets)
                losses = backward(batch)
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
                run.end_step(losses, grad_norm=grad_norm, learning_rate=learning_rate)

            score: dict[str, float] = {}
            head = distillation.trained_heads[-1] if is_distilled else "class"
            if valid is not None:
                logits = predict(averaged, valid.crops, heads=distillation.trained_heads, runtime=in_fp32)
                if not all(np.isfinite(of_head).all() for of_head in logits.values()):
                    raise run.diverged(run.step - 1, "logits on validation after it are")
                scores = {head: _score(of_head, valid) for head, of_head in logits.items()}
                if recipe.select != "last":
                    head = max(scores, key=lambda name: sign * scores[name][recipe.select])
                score = scores[head]
                logger.info(
                    "epoch %d: validation accuracy %.2f %%, mean class %.2f %% (%s head)",
                    epoch + 1, 100 * score["accuracy"], 100 * score["mean_class_accuracy"], head,
                )  # fmt: skip
            run.log({"epoch": epoch, "head": head, **{f"valid_{name}": value for name, value in score.items()}})
            about = {"head": head, "epoch": epoch, "labels": list(labels), "contract_id": contract_id()}
            best = {"weights": averaged.state_dict(), **score, **about}
            run.keep_best(sign * score[recipe.select] if recipe.select in score else epoch, epoch, best)
            run.save_last()
    if recipe.select != "last":
        best_score = f"{100 * run.best_score:.2f} %" if sign > 0 else f"{-run.best_score:.3f}"
        logger.info("best: epoch %d, validation %s %s", run.best_epoch + 1, recipe.select, best_score)
    return out


def _score(logits: Array, valid: Split) -> dict[str, float]:
    """Values of `recipe.select` for logits (N, K)."""
    scores = evaluate(valid, softmax(logits))
    assert scores.nll is not None  # noqa: S101
    values = (scores.accuracy, scores.mean_class_accuracy, scores.nll)
    names = ("accuracy", "mean_class_accuracy", "negative_log_likelihood")
    return {name: figure.value for name, figure in zip(names, values, strict=True)}


def _check_losses(network: FaceNetwork, recipe: Recipe) -> None:
    name, mode = recipe.model.name, recipe.distillation.mode
    if mode.startswith("token-") and not getattr(network.backbone, "distilled", False):
        raise RecipeError(
            f"distillation.mode {mode}: {name} has no distillation token. Choose one of timm's *_distilled_* models, "
            "or mode soft or hard."
        )
    if recipe.optim.sam_rho is not None and recipe.runtime.precision == "fp16":
        raise RecipeError(
            "optim.sam_rho does not support the scaled gradients of runtime.precision fp16; use bf16 or fp32"
        )


def _check_held_out(parts: list[Split], valid: Split, recipe: Recipe) -> None:
    held_out, keys = recipe.data.held_out, set(valid.keys)
    for source, part in zip(recipe.data.train, parts, strict=True):
        same_root = source.resolved_root().resolve() == held_out.resolved_root().resolve()
        both = keys.intersection(part.keys) if same_root else ()
        if both:
            raise RecipeError(
                f"data: {len(both)} of {len(keys)} faces of valid are also in train, such as {min(both)}. Give both "
                "the same options, and different splits."
            )
    seen = {hash(crop.tobytes()) for part in parts for crop in part.crops}
    same = [key for key, crop in zip(valid.keys, valid.crops, strict=True) if hash(crop.tobytes()) in seen]
    if same:
        logger.warning(
            "data: %d of %d faces of valid have the pixels of a training face, such as %s: remove these from train",
            len(same), len(keys), same[0],
        )  # fmt: skip


def _check_classes(faces: Split, valid: Split | None, recipe: Recipe) -> None:
    classes = faces.classes
    if valid is not None and valid.classes != classes:
        raise RecipeError(
            f"data: train has the classes {', '.join(classes)}, valid {', '.join(valid.classes)}. Set data.classes."
        )
    labeled = faces.labels[faces.labels >= 0]  # the others have only a teacher
    counts = np.bincount(labeled, minlength=len(classes))
    empty = [label for label, count in zip(classes, counts, strict=True) if count == 0]
    if empty and len(labeled) and not recipe.data.allow_missing_classes:
        others = ",".join(label for label in classes if label not in empty)
        raise RecipeError(
            f"data.train: no faces of {', '.join(empty)} among {len(labeled)}. To train the others only, set "
            f"data.classes=[{others}]; or add faces, or set data.allow_missing_classes=true."
        )
