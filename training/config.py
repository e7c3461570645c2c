"""Schema of recipes, the YAML files that configure runs. An unknown key is an error that suggests a known one."""

import difflib
import os
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from data.augment import AugmentConfig
from data.errors import MienError
from data.folds import Grouping

Sampler = Literal["instance", "class", "square_root"]
DistillationMode = Literal["none", "soft", "hard", "token-soft", "token-hard"]
S = TypeVar("S", bound=BaseModel)
WEIGHT_SUFFIXES: Final = (".safetensors", ".pth", ".pt", ".bin")
DATA_DIR_VARIABLE: Final = "MIEN_DATA_DIR"


class RecipeError(MienError, ValueError):
    """An invalid recipe."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FoldConfig(_Strict):
    """A part of a split for cross-validation: one fold, or all others."""

    of: int = Field(ge=2, description="number of folds")
    index: int = Field(ge=0, description="number of the fold, from 0")
    take: Literal["fold", "others"]
    group_by: Grouping = Field("none", description="what stays in one fold: a person, a photo, near-duplicates")

    @model_validator(mode="after")
    def _within(self) -> Self:
        if self.index >= self.of:
            raise ValueError(f"index {self.index}: expected 0 to {self.of - 1}")
        return self


class DataSource(_Strict):
    """One split of one data set."""

    kind: str
    split: str
    root: Path | None = Field(None, description=f"folder or zip; default: ${DATA_DIR_VARIABLE}/<kind>")
    options: dict[str, Any] = Field(default_factory=dict, description="options of the reader")
    target: Literal["votes", "label", "teacher"] = Field(
        "label", description="target of the loss: vote shares, one class, or only the output of the teacher"
    )
    fraction: float = Field(
        1.0, gt=0, le=1, description="share of each class; smaller shares are subsets of larger ones"
    )
    fold: FoldConfig | None = Field(None, description="part of the split for cross-validation")

    def resolved_root(self) -> Path:
        """Folder of the set. Raises: RecipeError, if there is neither a root nor the environment variable."""
        if self.root is not None:
            return self.root
        folder = os.environ.get(DATA_DIR_VARIABLE)
        if not folder:
            raise RecipeError(
                f"data set {self.kind}: no root in the recipe and ${DATA_DIR_VARIABLE} is not set. "
                f"Set {DATA_DIR_VARIABLE} to the folder with {self.kind}/; data/README.md describes how to get it."
            )
        return Path(folder) / self.kind


class DataConfig(_Strict):
    """Training splits, and the split that selects the best epoch; test splits are rejected."""

    train: tuple[DataSource, ...] = Field(min_length=1)
    valid: DataSource
    cache_dir: Path = Path("cache")
    sampler: Sampler = Field(
        "instance",
        description="instance: every face once per epoch; class, square_root: sampling by class (Kang et al. 2020)",
    )
    allow_missing_classes: bool = Field(False, description="train even if a class has no faces")

    @model_validator(mode="after")
    def _no_test_split(self) -> "DataConfig":
        for source in (*self.train, self.valid):
            if source.split == "test":
                raise ValueError(
                    f"{source.kind}: the test split is for the final evaluation only, not for training or selection"
                )
        return self


class ModelConfig(_Strict):
    """Configuration of the network; see models/backbones."""

    family: str
    name: str = Field(description="timm's name")
    arch: str | None = Field(
        None, pattern=r"^[a-z0-9_]+$", description="first part of the artifact's name; default: name"
    )
    color: Literal["luminance", "RGB"] = "luminance"
    normalization: Literal["per_image", "imagenet", "fixed"] = "per_image"
    img_size: int = Field(112, ge=16, le=224, description="side of the network's input; 112-pixel crops are resized")
    drop_rate: float = Field(0.0, ge=0, lt=1)
    drop_path_rate: float = Field(0.0, ge=0, lt=1)
    pretrained: bool = False
    scratch_if_unavailable: bool = False
    init_from: Path | None = Field(
        None, description="initial weights: run folder, artifact folder, or state dict (.safetensors, .pth)"
    )
    init_terms: str | None = Field(None, description="license of a weights file; the release inherits it")
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_start(self) -> "ModelConfig":
        if self.pretrained and self.init_from is not None:
            raise ValueError("pretrained and init_from both set the initial weights: choose one")
        if self.init_from is not None and self.init_from.suffix in WEIGHT_SUFFIXES and not self.init_terms:
            raise ValueError(
                f"init_from {self.init_from} is a file of third-party weights: name their publisher and license in "
                "init_terms, as the release inherits the license"
            )
        return self


class DistillationConfig(_Strict):
    """Distillation as in DeiT (Touvron et al. 2021, section 4)."""

    mode: DistillationMode = "none"
    teachers: tuple[Path, ...] = Field(
        (), description="run or artifact folders; several form an ensemble by mean probability"
    )
    weight: float = Field(0.5, ge=0, le=1, description="lambda, weight of the distillation loss")
    temperature: float = Field(3.0, gt=0, description="tau of the soft modes")

    @model_validator(mode="after")
    def _teacher_fits_mode(self) -> "DistillationConfig":
        if (self.mode == "none") != (not self.teachers):
            raise ValueError(
                f"mode {self.mode!r} with {len(self.teachers)} teachers: every mode except none requires a teacher"
            )
        return self


class RelabelConfig(_Strict):
    """Relabeling of faces that the network contradicts, as in SCN (Wang et al. 2020, section 3.4)."""

    margin: float = Field(0.2, ge=0, lt=1, description="minimum lead of another class over the label")
    from_epoch: int = Field(10, ge=1, description="number of epochs with the original labels")


class LossConfig(_Strict):
    """Supervised loss."""

    label_smoothing: float = Field(0.0, ge=0, lt=1)
    logit_adjustment: float = Field(0.0, ge=0, description="tau of Menon et al. 2021, weight of the log prior")
    class_balance: float | None = Field(
        None, gt=0, lt=1, description="beta of Cui et al. 2019: class weights by effective number of faces"
    )

    relabel: RelabelConfig | None = Field(None, description="relabeling against label noise; null: off")

    @model_validator(mode="after")
    def _one_remedy(self) -> "LossConfig":
        if self.logit_adjustment and self.class_balance is not None:
            raise ValueError("logit_adjustment and class_balance both correct for rare classes: choose one")
        return self


class MixConfig(_Strict):
    """Mixup and CutMix by batch, as in timm.data.Mixup; teachers get the mixed faces too."""

    mixup: float = Field(0.0, ge=0, description="alpha of its Beta distribution; 0 is off")
    cutmix: float = Field(0.0, ge=0, description="alpha of its Beta distribution; 0 is off")
    probability: float = Field(1.0, ge=0, le=1, description="probability that a batch is mixed")
    switch_probability: float = Field(0.5, ge=0, le=1, description="probability of CutMix if both are on")


class OptimConfig(_Strict):
    """Optimizer, cosine schedule with warm-up, and moving average of the weights for validation and export."""

    name: str = Field("adamw", description="any of timm's optimizers, e.g. adamw, sgd, lamb, muon, adamp")
    options: dict[str, Any] = Field(default_factory=dict, description="optimizer options, e.g. {betas: [0.9, 0.95]}")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of sgd")
    nesterov: bool = Field(True, description="Nesterov momentum for sgd (Sutskever et al. 2013)")
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
        description="decay of the moving average of the weights; null: no average",
    )
    ema_warmup: bool = Field(
        True,
        description="limit the decay at step t to 1 - t^(-2/3), which is 0.9957 at 3,500",
    )
    layer_decay: float | None = Field(
        None, gt=0, le=1, description="factor of the learning rate of each layer relative to the next one"
    )


class RuntimeConfig(_Strict):
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


class RunRecipe(_Strict):
    """Base of all recipes."""

    name: str = Field(pattern=r"^[a-z0-9_]+$")
    seed: int = Field(0, ge=0)
    epochs: int = Field(ge=1)
    batch_size: int = Field(128, ge=2)
    model: ModelConfig
    optim: OptimConfig = OptimConfig()
    augment: AugmentConfig = AugmentConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    @property
    def sampler(self) -> Sampler:
        """Sampling of the faces of an epoch."""
        return "instance"

    @model_validator(mode="after")
    def _parts_are_not_empty(self) -> Self:
        if self.runtime.accumulate > self.batch_size:
            raise ValueError(f"runtime.accumulate {self.runtime.accumulate} is above batch_size {self.batch_size}")
        return self


class Recipe(RunRecipe):
    """Recipe of a training run."""

    data: DataConfig
    distillation: DistillationConfig = DistillationConfig()
    loss: LossConfig = LossConfig()
    mix: MixConfig = MixConfig()

    @property
    def sampler(self) -> Sampler:
        """Sampling of the faces of an epoch."""
        return self.data.sampler

    select: Literal["accuracy", "mean_class_accuracy"] = "accuracy"
    patience_epochs: int | None = Field(None, ge=1, description="stop after so many epochs without improvement")

    @model_validator(mode="after")
    def _unlabeled_faces_have_a_teacher(self) -> "Recipe":
        if self.loss.relabel is not None and (self.mix.mixup or self.mix.cutmix):
            raise ValueError("loss.relabel with mix: predictions for mixed faces cannot contradict a label")
        if all(source.target != "teacher" for source in self.data.train):
            return self
        if self.distillation.mode == "none" or self.loss.label_smoothing > 0:
            raise ValueError(
                "target teacher requires a distillation mode and label_smoothing 0: smoothing would create labels"
            )
        return self


def read_recipe(path: Path, overrides: list[str] | None = None) -> Recipe:
    """Read a YAML recipe and apply `key.sub=value` overrides. Raises: RecipeError."""
    return read_as(Recipe, path, overrides or [])


def read_as(schema: type[S], path: Path, overrides: list[str]) -> S:
    """Read a YAML recipe with any schema, like `read_recipe`. Raises: RecipeError."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(f"recipe {path}: cannot be read ({error.strerror})") from error
    except yaml.YAMLError as error:
        raise RecipeError(f"recipe {path}: not YAML ({error})") from error
    if not isinstance(values, dict):
        raise RecipeError(f"recipe {path}: expected keys and values, found {type(values).__name__}")
    for override in overrides:
        apply_override(values, override)
    return _parse_as(schema, values, origin=str(path))


def parse_recipe(values: dict[str, Any], *, origin: str) -> Recipe:
    """Validate a recipe. Raises: RecipeError; for an unknown key, it suggests a known one."""
    return _parse_as(Recipe, values, origin=origin)


def _parse_as(schema: type[S], values: dict[str, Any], *, origin: str) -> S:
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        lines = [_explain(schema, problem) for problem in error.errors()]
        raise RecipeError(f"recipe {origin}: " + "; ".join(lines)) from error


def apply_override(values: dict[str, Any], override: str) -> None:
    """Apply a `key.sub=value` override in place. Raises: RecipeError."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise RecipeError(f"override {override!r}: expected key=value, for example optim.learning_rate=3e-4")
    if not text:
        raise RecipeError(f"override {override!r}: no value after the equals sign; use null for none")
    *parents, last = key.split(".")
    place: Any = values
    for parent in parents:
        place = place[_index(place, parent, override)] if isinstance(place, list) else place.setdefault(parent, {})
        if not isinstance(place, dict | list):
            raise RecipeError(f"override {override!r}: {parent} is {place!r} in the recipe and has no {last}")
    place[_index(place, last, override) if isinstance(place, list) else last] = _scalar(text)


def _index(items: list[Any], text: str, override: str) -> int:
    if text.isdecimal() and int(text) < len(items):
        return int(text)
    raise RecipeError(f"override {override!r}: {text!r} is not an index of this list, expected 0 to {len(items) - 1}")


def _scalar(text: str) -> Any:
    try:
        return float(text) if "e" in text.lower() else yaml.safe_load(text)
    except ValueError:
        return yaml.safe_load(text)


def _explain(schema: type[BaseModel], problem: Any) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] not in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{where}: {problem['msg']}"
    known = _known_keys(schema, problem["loc"][:-1])
    nearest = difflib.get_close_matches(str(problem["loc"][-1]), known, n=1, cutoff=0.4)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(known)}"
    return f"unknown key {where!r}: {hint}"


def _known_keys(schema: Any, path: tuple[Any, ...]) -> list[str]:
    """Field names at a path in a schema of models, dataclasses or tuples of them."""
    for part in path:
        if isinstance(part, str):
            annotation: Any = schema.model_fields[part].annotation
            schema = next(iter(get_args(annotation)), annotation)
    return sorted(schema.model_fields if hasattr(schema, "model_fields") else schema.__dataclass_fields__)
