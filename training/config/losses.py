"""Losses of a recipe: supervision, distillation, and mixing of faces."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from mien.models.strict import StrictModel

DistillationMode = Literal["none", "soft", "hard", "token-soft", "token-hard"]


class DistillationConfig(StrictModel):
    """Distillation as in DeiT (Touvron et al. 2021, section 4)."""

    mode: DistillationMode = "none"
    teachers: tuple[Path, ...] = Field(
        (), description="run or artifact folders; several form an ensemble by mean probability"
    )
    weight: float = Field(0.5, ge=0, le=1, description="lambda, weight of the distillation loss")
    temperature: float = Field(3.0, gt=0, description="tau of the soft modes")
    views: Literal["augmented", "fixed"] = Field(
        "augmented",
        description="what the teachers see: each augmented crop, or, once per run, each face and its mirror image",
    )

    @model_validator(mode="after")
    def _teacher_fits_mode(self) -> Self:
        if (self.mode == "none") != (not self.teachers):
            raise ValueError(
                f"mode {self.mode!r} with {len(self.teachers)} teachers: every mode except none requires a teacher"
            )
        return self


class RelabelConfig(StrictModel):
    """Relabeling of faces that the network contradicts, as in SCN (Wang et al. 2020, section 3.4)."""

    margin: float = Field(0.2, ge=0, lt=1, description="minimum lead of another class over the label")
    from_epoch: int = Field(10, ge=1, description="number of epochs with the original labels")


class LossConfig(StrictModel):
    """Supervised loss."""

    label_smoothing: float = Field(0.0, ge=0, lt=1)
    logit_adjustment: float = Field(0.0, ge=0, description="tau of Menon et al. 2021, weight of the log prior")
    class_balance: float | None = Field(
        None, gt=0, lt=1, description="beta of Cui et al. 2019: class weights by effective number of faces"
    )
    relabel: RelabelConfig | None = Field(None, description="relabeling against label noise; null: off")
    attention_consistency: float = Field(
        0.0,
        ge=0,
        description="weight of EAC's consistency loss (Zhang et al. 2022), such as 5; doubles the time per step",
    )

    @model_validator(mode="after")
    def _one_remedy(self) -> Self:
        if self.logit_adjustment and self.class_balance is not None:
            raise ValueError("logit_adjustment and class_balance both correct for rare classes: choose one")
        return self


class MixConfig(StrictModel):
    """Mixup and CutMix by batch, as in timm.data.Mixup; with both, half of the mixed batches are CutMix."""

    removed: ClassVar[Mapping[str, object]] = {"switch_probability": 0.5}

    mixup: float = Field(0.0, ge=0, description="alpha of its Beta distribution; 0 is off")
    cutmix: float = Field(0.0, ge=0, description="alpha of its Beta distribution; 0 is off")
    probability: float = Field(1.0, ge=0, le=1, description="probability that a batch is mixed")
