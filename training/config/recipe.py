"""Recipes: all options of a run."""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from mien.data.augment import AugmentConfig
from mien.models.strict import StrictModel
from mien.training.config.data import DataConfig
from mien.training.config.losses import DistillationConfig, LossConfig, MixConfig
from mien.training.config.model import ModelConfig
from mien.training.config.optim import OptimConfig, RuntimeConfig


class RunRecipe(StrictModel):
    """Base of all recipes."""

    name: str = Field(pattern=r"^[a-z0-9_]+$")
    seed: int = Field(0, ge=0)
    batch_size: int = Field(128, ge=2)
    optim: OptimConfig = OptimConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    @model_validator(mode="after")
    def _parts_are_not_empty(self) -> Self:
        if self.runtime.accumulate > self.batch_size:
            raise ValueError(f"runtime.accumulate {self.runtime.accumulate} is above batch_size {self.batch_size}")
        return self


class FaceRecipe(RunRecipe):
    """Base of the recipes for networks on crops of faces."""

    epochs: int = Field(ge=1)
    model: ModelConfig
    augment: AugmentConfig = AugmentConfig()

    @model_validator(mode="after")
    def _warm_up_ends(self) -> Self:
        if self.optim.warmup_epochs > self.epochs:
            raise ValueError(
                f"optim.warmup_epochs {self.optim.warmup_epochs:g} is more than epochs {self.epochs}: the learning "
                "rate would never reach its value. Reduce optim.warmup_epochs."
            )
        return self


class Recipe(FaceRecipe):
    """Recipe of a training run."""

    removed: ClassVar[Mapping[str, object]] = {"patience_epochs": None}

    data: DataConfig
    distillation: DistillationConfig = DistillationConfig()
    loss: LossConfig = LossConfig()
    mix: MixConfig = MixConfig()
    select: Literal["accuracy", "mean_class_accuracy"] = "accuracy"

    @model_validator(mode="after")
    def _one_remedy_for_rare_classes(self) -> Self:
        if self.data.sampler != "instance" and (self.loss.logit_adjustment or self.loss.class_balance is not None):
            remedy = "logit_adjustment" if self.loss.logit_adjustment else "class_balance"
            raise ValueError(
                f"data.sampler {self.data.sampler} and loss.{remedy} both correct for rare classes: choose one"
            )
        return self

    @model_validator(mode="after")
    def _targets_exist(self) -> Self:
        if self.loss.relabel is not None and (self.mix.mixup or self.mix.cutmix):
            raise ValueError("loss.relabel with mix: predictions for mixed faces cannot contradict a label")
        if self.distillation.views == "fixed" and (self.mix.mixup or self.mix.cutmix):
            raise ValueError("distillation.views fixed with mix: the teachers see no mixed faces; use views augmented")
        if all(source.target != "teacher" for source in self.data.train):
            return self
        if self.distillation.mode == "none" or self.loss.label_smoothing > 0:
            raise ValueError(
                "target teacher requires a distillation mode and label_smoothing 0: smoothing would create labels"
            )
        return self
