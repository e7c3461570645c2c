"""Optimizer and runtime of a recipe."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from mien.models.strict import StrictModel


class OptimConfig(StrictModel):
    """Optimizer, cosine schedule with warm-up, and moving average of the weights for validation and export."""

    removed: ClassVar[Mapping[str, object]] = {"momentum": 0.9, "nesterov": True, "ema_warmup": True}

    name: str = Field(
        "adamw", description="any of timm's optimizers, e.g. adamw, sgd (Nesterov), momentum (SGD), lamb, muon, adamp"
    )
    options: dict[str, Any] = Field(default_factory=dict, description="optimizer options, e.g. {betas: [0.9, 0.95]}")
    learning_rate: float = Field(1e-3, gt=0)
    min_learning_rate: float = Field(1e-5, ge=0)
    weight_decay: float = Field(0.05, ge=0)
    warmup_epochs: float = Field(1.0, ge=0)
    clip_grad_norm: float | None = Field(1.0, gt=0)
    sam_rho: float | None = Field(
        None,
        gt=0,
        description="radius of sharpness-aware minimization (Foret et al. 2021), e.g. 0.05; doubles the time per step",
    )
    ema_decay: float | None = Field(
        0.998,
        ge=0,
        lt=1,
        description="decay of the moving average of the weights, at step t at most 1 - t^(-2/3); null: no average",
    )
    layer_decay: float | None = Field(
        None, gt=0, le=1, description="factor of the learning rate of each layer relative to the next one"
    )


class RuntimeConfig(StrictModel):
    """Device and speed. The result changes only by rounding, and by `accumulate` in networks with BatchNorm."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["fp32", "bf16", "fp16"] = Field("bf16", description="fp16 uses loss scaling and requires cuda")
    compile: bool = Field(False, description="torch.compile: slow start, faster steps; requires a C compiler")
    accumulate: int = Field(
        1,
        ge=1,
        description="parts per batch; gradients are the same, but BatchNorm normalizes each part separately",
    )
    workers: int = Field(1, ge=0)
    threads: int | None = Field(None, ge=1)
    checkpoint_every_steps: int = Field(200, ge=1)
    log_every_steps: int = Field(10, ge=1)
    tensorboard: bool = Field(False, description="also log to TensorBoard; requires pip install tensorboardX")
    wandb: bool = Field(False, description="also log to Weights & Biases; requires pip install wandb")
    mlflow: bool = Field(False, description="also log to MLflow at MLFLOW_TRACKING_URI; requires pip install mlflow")
