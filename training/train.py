"""Training of one network from a recipe.

    mien train training/recipes/ferplus_teacher.yaml [key=value ...] [--out runs/NAME]

`train` is the whole of it. Validation selects the best weights; test splits are never read. Rerun the same command to
resume; the losses are those of an uninterrupted run.
"""

import logging
import timeit
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timm.layers import set_fused_attn
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.scheduler.scheduler import Scheduler
from timm.utils.model_ema import ModelEmaV3
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mien.data.quality import softmax
from mien.models.backbones import Heads
from mien.models.network import FaceNetwork
from mien.training.config import ModelConfig, OptimConfig, Recipe, RecipeError, RuntimeConfig
from mien.training.data import FaceBatches, Split, log_frequencies, mix, read_faces
from mien.training.evaluate import predict, scores
from mien.training.losses import distillation_loss, supervised_loss
from mien.training.run import LAST, TrainingDiverged, open_run, provenance
from mien.training.weights import Teachers, load_initial

logger = logging.getLogger("mien.training")


def train(recipe: Recipe, out: Path) -> Path:
    """Run a recipe to its end and return the run folder.

    Raises: RecipeError, RunError, TrainingDiverged; DatasetError, for missing or damaged data.
    """
    optim, teachers = recipe.optim, recipe.distillation.teachers
    check_names(recipe)
    device, dtype = choose_device(recipe.runtime)
    autocast = torch.autocast(device.type, dtype, enabled=dtype != torch.float32)
    torch.manual_seed(recipe.seed)
    faces, valid, run_info = read_faces(recipe)
    network = build_network(recipe.model, faces.classes, resumed=(out / LAST).exists())
    network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    teach = torch.no_grad()(autocast(Teachers(recipe.distillation, faces.classes).to(device))) if teachers else None
    forward: Any = autocast(torch.compile(network) if recipe.runtime.compile else network)
    batches = FaceBatches(faces, recipe)
    log_prior = torch.from_numpy(log_frequencies(batches.frequencies)).to(device)
    optimizer = build_optimizer(network.backbone, optim)
    scheduler = build_scheduler(optimizer, optim, epochs=recipe.epochs, steps_per_epoch=batches.steps_per_epoch)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
    ema = None if optim.ema_decay is None else ModelEmaV3(network, decay=optim.ema_decay, use_warmup=True)
    averaged: nn.Module = network if ema is None else ema.module
    run_info |= provenance(recipe, run_info["learned_from"])
    run_info |= {"parameters": sum(weight.numel() for weight in network.parameters()), "precision": str(dtype)}
    state = {"network": network, "ema": averaged, "optimizer": optimizer, "scaler": scaler}
    with open_run(recipe, out, run_info, state, device=device, batches=batches) as run:
        for _epoch in run.epochs():
            network.train()
            for batch in run.batches():
                scheduler.step_update(run.step)
                optimizer.zero_grad(set_to_none=True)
                crops, targets = mix(batch.crops, batch.targets, recipe.mix)
                taught = teach(crops) if teach else None
                parts = losses(forward(crops), targets, taught, recipe, log_prior=log_prior)
                scaler.scale(parts["loss"]).backward()  # type: ignore[no-untyped-call]
                if optim.sam_rho is not None:
                    with perturbed_weights(network, optim.sam_rho):
                        again = losses(forward(crops), targets, taught, recipe, log_prior=log_prior)
                        scaler.scale(again["loss"]).backward()  # type: ignore[no-untyped-call]
                scaler.unscale_(optimizer)
                grad_norm = nn.utils.clip_grad_norm_(network.parameters(), optim.clip_grad_norm or float("inf"))
                scaler.step(optimizer)
                scaler.update()
                if ema is not None:
                    ema.update(network, step=run.step + 1)
                if scaler.is_enabled():  # it skips a step whose gradients are not finite, and scales less
                    grad_norm = torch.zeros_like(grad_norm)
                rate = max(group["lr"] for group in optimizer.param_groups)
                run.step_done(parts, grad_norm=grad_norm, learning_rate=rate)
            score = {} if valid is None else validate(averaged, valid, recipe, device)
            run.epoch_done(averaged, score, faces.classes)
    if recipe.select != "last":
        logger.info("best: epoch %d, validation %s %.4f", run.best_epoch + 1, recipe.select, abs(run.best_score))
    return out


def losses(
    heads: Heads, targets: Tensor, taught: Tensor | None, recipe: Recipe, *, log_prior: Tensor
) -> dict[str, Tensor]:
    """Loss of a batch and its parts, scalars.

    Args:
        heads: of the student.
        targets: (B, K) class shares; rows sum to 1, or are 0 without a label.
        taught: (B, K) logits of the teachers, if there are any.
        log_prior: (K,) log of the frequency of each class in the training faces, for `loss.logit_adjustment`.
    Returns: `loss`, which is minimized, and its parts `supervised` and `distillation`.
    """
    # The prior is added in training only, so that serving does not suppress rare classes: Menon et al. 2021, eq. 10.
    logits = heads.class_logits.float() + recipe.loss.logit_adjustment * log_prior
    supervised = supervised_loss(recipe.loss.name)(logits, targets, recipe.loss)
    loss, distillation = supervised, torch.zeros_like(supervised)
    if taught is not None:
        weight = recipe.distillation.weight
        distillation = distillation_loss(heads, taught, recipe.distillation)
        loss = (1 - weight) * supervised + weight * distillation
    return {"supervised": supervised, "distillation": distillation, "loss": loss}


def check_names(recipe: Recipe) -> None:
    """Check that a loss and folders with weights exist, before minutes of reading data. Raises: RecipeError."""
    supervised_loss(recipe.loss.name)
    for folder in (*recipe.distillation.teachers, recipe.model.init_from):
        if folder is not None and not folder.exists():
            raise RecipeError(f"{folder}: not found. A relative path starts at the current folder, {Path.cwd()}")


def choose_device(runtime: RuntimeConfig) -> tuple[torch.device, torch.dtype]:
    """Choose device and precision; also sets the number of threads and the attention kernel.

    `auto` is bf16 where the device computes it, else fp16 on a GPU, else fp32. Raises: RecipeError.
    """
    wanted = ("cuda" if torch.cuda.is_available() else "cpu") if runtime.device == "auto" else runtime.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise RecipeError("runtime.device cuda: torch finds no GPU; use auto or cpu")
    if runtime.precision == "fp16" and wanted == "cpu":
        raise RecipeError("runtime.precision fp16 requires a GPU; use bf16 or fp32 on a CPU")
    if runtime.threads:
        torch.set_num_threads(runtime.threads)
    # torch's fused attention is slow for 50 tokens on a CPU: the tiny hybrid takes 0.65 s per step, 0.46 s without it
    set_fused_attn(wanted == "cuda")
    precision: str = runtime.precision
    if precision == "auto" and wanted == "cuda":
        precision = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    elif precision == "auto":
        precision = "bf16" if _multiplies_faster_in_bf16() else "fp32"
    return torch.device(wanted), {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def _multiplies_faster_in_bf16() -> bool:
    """Whether this processor multiplies matrices faster in bf16 than in fp32, as those with AMX or AVX512-BF16.

    The matrices are small: others emulate bf16, and take 10 s for four products of a thousand rows.
    """
    matrices = (torch.ones(256, 256, dtype=dtype) for dtype in (torch.bfloat16, torch.float32))
    bf16_s, fp32_s = (min(timeit.repeat(partial(torch.mm, matrix, matrix), number=1, repeat=4)) for matrix in matrices)
    return bf16_s < fp32_s


def build_network(model: ModelConfig, classes: tuple[str, ...], *, resumed: bool) -> FaceNetwork:
    """Build a network with its initial weights, which the checkpoint of a resumed run replaces."""
    if resumed:
        model = model.model_copy(update={"pretrained": False, "init_from": None})
    network = FaceNetwork(model, len(classes))
    if model.init_from is not None:
        load_initial(network, model.init_from, classes)
    return network


def validate(network: nn.Module, valid: Split, recipe: Recipe, device: torch.device) -> dict[str, float]:
    """Values of `recipe.select` on validation in fp32, like the release. Raises: TrainingDiverged."""
    logits = predict(network, valid.crops, head=recipe.distillation.head, device=device)
    if not np.isfinite(logits).all():
        raise TrainingDiverged("the logits on validation are not finite. Reduce optim.learning_rate.")
    found = scores(valid, softmax(logits))
    names = {"accuracy": "accuracy", "mean_class_accuracy": "mean_class_accuracy", "negative_log_likelihood": "nll"}
    return {name: found[key].value for name, key in names.items()}


def build_optimizer(backbone: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """Build the optimizer of a recipe; timm leaves biases, norms, tokens and positions out of the weight decay.

    Raises: RecipeError, for what timm rejects: its name, options, or `layer_decay` of a network without layer groups.
    """
    try:
        return create_optimizer_v2(
            backbone,
            opt=config.name,
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            layer_decay=config.layer_decay,
            **config.options,
        )
    except (ValueError, TypeError, AssertionError) as error:
        raise RecipeError(f"optim {config.model_dump(exclude_defaults=True)}: timm says: {error!r}") from error


def build_scheduler(
    optimizer: torch.optim.Optimizer, config: OptimConfig, *, epochs: int, steps_per_epoch: int
) -> Scheduler:
    """Build a cosine schedule over all steps with a linear warm-up; call `step_update(step)` before each step."""
    lowest = min(config.min_learning_rate, config.learning_rate)
    warmup_epochs = min(1, epochs / 10) if config.warmup_epochs is None else config.warmup_epochs
    steps, warmup = epochs * steps_per_epoch, round(warmup_epochs * steps_per_epoch)
    scheduler: Scheduler | None
    scheduler, _ = create_scheduler_v2(
        optimizer,
        num_epochs=max(1, steps - warmup),  # epochs of one step, as the warm-up may last a part of an epoch
        updates_per_epoch=1,
        step_on_epochs=False,
        warmup_epochs=warmup,
        warmup_prefix=True,  # the cosine starts at the end of the warm-up, not below its peak
        warmup_lr=lowest,
        min_lr=lowest,
    )
    assert scheduler is not None  # noqa: S101
    return scheduler


@contextmanager
def perturbed_weights(network: nn.Module, rho: float) -> Iterator[None]:
    """Move the weights by `rho` along their gradient during a block, then restore them and keep the new gradients.

    In the block, gradients start at zero, and running statistics of BatchNorm are frozen: the first pass updated them.
    """
    moved = [
        (weight, weight.grad, weight.detach().clone()) for weight in network.parameters() if weight.grad is not None
    ]
    scale = rho / (nn.utils.get_total_norm([gradient for _, gradient, _ in moved]) + 1e-12)
    norms = [(module, module.momentum) for module in network.modules() if isinstance(module, _BatchNorm)]
    with torch.no_grad():
        for weight, gradient, _ in moved:
            weight.add_(gradient * scale)
            weight.grad = None
    for module, _ in norms:
        module.momentum = 0.0
    yield
    for module, momentum in norms:
        module.momentum = momentum
    with torch.no_grad():
        for weight, _, before in moved:
            weight.copy_(before)
