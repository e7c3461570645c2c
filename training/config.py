"""Recipes: all options of a run with their defaults, and reading of YAML files with overrides."""

import difflib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar, get_args

import yaml
from pydantic import AfterValidator, BaseModel, Field, PlainSerializer, TypeAdapter, ValidationError, model_validator

from mien.data.augment import AugmentConfig
from mien.data.errors import MienError
from mien.data.folds import Grouping
from mien.data.readers.base import Names
from mien.models.backbones import BackboneConfig
from mien.models.manifest import ARTIFACTS_DIR, REPORT_NAME, ArtifactError, artifact_dir
from mien.models.network import Head
from mien.models.strict import StrictModel

DistillationMode = Literal["none", "soft", "hard", "token-soft", "token-hard"]
DATA_DIR_VARIABLE: Final = "MIEN_DATA_DIR"
# Values of a recipe that are of this computer alone, to exclude them from a dump.
LOCAL: Final[Any] = {
    "runtime": True, "data": {"cache_dir": True, "train": {"__all__": {"root"}}, "valid": {"root"}},
}  # fmt: skip
_SYNONYMS: Final = {"lr": "learning_rate", "min_lr": "min_learning_rate", "wd": "weight_decay", "bs": "batch_size"}
_EXPONENT: Final = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")


S = TypeVar("S", bound=BaseModel)


class RecipeError(MienError, ValueError):
    """An invalid recipe."""


def _released(path: Path) -> Path:
    """Folder of the released artifact of that name, unless the current folder has a run or file of that name."""
    if len(path.parts) != 1 or path.exists():
        return path
    try:
        return artifact_dir(str(path))
    except ArtifactError:  # It is a run that does not exist yet.
        return path


# Neither YAML nor every shell replaces `~`; Path's own method raises for the name of an unknown user.
LocalPath = Annotated[Path, AfterValidator(lambda path: Path(os.path.expanduser(path)))]  # noqa: PTH111
_Portable = PlainSerializer(lambda path: path.name if path.parent == ARTIFACTS_DIR else str(path), when_used="json")
WeightsPath = Annotated[LocalPath, AfterValidator(_released), _Portable]


class FoldConfig(StrictModel):
    """A part of a split for cross-validation: one fold, or all others."""

    of: int = Field(description="number of folds")
    index: int = Field(description="number of the fold, from 0")
    take: Literal["fold", "others"]
    group_by: Grouping = Field("none", description="what stays in one fold: a person, a photo, near-duplicates")


class DataSource(StrictModel):
    """One split of one data set."""

    kind: str
    split: str
    root: LocalPath | None = Field(None, description=f"folder or zip; default: ${DATA_DIR_VARIABLE}/<kind>")
    options: dict[str, Any] = Field(default_factory=dict, description="options of the reader")
    # Target of the loss: vote shares, one class, or only the output of the teacher.
    target: Literal["votes", "label", "teacher"] = "label"
    fraction: float = Field(1.0, gt=0, le=1, description="share of each class; smaller ones are subsets of larger ones")
    share: float | None = Field(None, gt=0, lt=1, description="of the faces in each epoch; default: by its size")
    fold: FoldConfig | None = Field(None, description="part of the split for cross-validation")

    def resolved_root(self) -> Path:
        """Folder of the set. Raises: RecipeError, if there is neither a root nor the environment variable."""
        folder = os.environ.get(DATA_DIR_VARIABLE)
        if self.root is None and not folder:
            raise RecipeError(
                f"data set {self.kind}: no root in the recipe and ${DATA_DIR_VARIABLE} is not set. Set "
                f"{DATA_DIR_VARIABLE} to the folder with {self.kind}/; data/README.md describes how to get it."
            )
        return self.root or Path(str(folder)) / self.kind


class DataConfig(StrictModel):
    """Training splits, and the split that selects the best epoch; test splits are rejected.

    Without `valid`, as with `select: last`, all labeled faces of a set can be trained on.
    """

    train: tuple[DataSource, ...] = Field(min_length=1)
    valid: DataSource | None = None
    cache_dir: LocalPath = Path("cache")
    classes: tuple[str, ...] | None = Field(None, description="names, in order; default: the seven expressions")

    @property
    def sources(self) -> tuple[DataSource, ...]:
        return self.train if self.valid is None else (*self.train, self.valid)

    @property
    def held_out(self) -> DataSource:
        """The validation split. Raises: RecipeError, without one."""
        if self.valid is None:
            raise RecipeError("data.valid: this recipe has no validation split, which this command needs; add one")
        return self.valid

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        """Give each reader the classes, so that evaluation and the card know them, too."""
        if self.valid is not None and self.valid.target == "teacher":
            raise ValueError(f"{self.valid.kind}: validation needs labels, found target teacher")
        shares = [source.share for source in self.train if source.share is not None]
        if sum(shares) >= 1 or len(shares) == len(self.train):
            raise ValueError(f"shares {shares}: expected a sum below 1, and a source without one that has the rest")
        for source in self.sources:
            if source.split == "test":
                raise ValueError(
                    f"{source.kind}: the test split is for the final evaluation only, not for training or selection"
                )
            classes = None if self.classes is None else list(self.classes)
            if classes is not None and source.options.setdefault("classes", classes) != classes:
                raise ValueError(f"classes and the option classes of {source.kind} differ: leave out one of them")
            if classes is not None and source.target == "teacher":
                del source.options["classes"]
        return self


class ModelConfig(BackboneConfig):
    """Configuration of the network and of its initial weights."""

    arch: str | None = Field(None, pattern=r"^[a-z0-9_]+$", description="first part of the artifact's name")
    init_from: WeightsPath | None = Field(None, description="folder of a run or artifact, or a released name")

    @model_validator(mode="before")
    @classmethod
    def _model_of_the_start(cls, values: Any) -> Any:
        """Without `family`, the network is the one of an artifact or run that it is initialized from."""
        if not isinstance(values, dict) or "family" in values or not isinstance(values.get("init_from"), str | Path):
            return values
        folder = TypeAdapter(WeightsPath).validate_python(values["init_from"])
        file = folder / (REPORT_NAME if (folder / REPORT_NAME).exists() else "recipe.yaml")
        try:
            recipe = yaml.safe_load(file.read_text(encoding="utf-8"))
            started: dict[str, Any] = recipe.get("recipe", recipe)["model"]
        except (OSError, KeyError, yaml.YAMLError) as error:
            raise ValueError(f"init_from {folder}: not the folder of a run or an artifact") from error
        own = ("pretrained", "frozen", "init_from")
        return {key: value for key, value in started.items() if key not in own} | values

    @model_validator(mode="after")
    def _one_start(self) -> Self:
        if self.pretrained and self.init_from is not None:
            raise ValueError("pretrained and init_from both set the initial weights: choose one")
        return self


class OptimConfig(StrictModel):
    """Optimizer, cosine schedule with warm-up, and moving average of the weights for validation and export."""

    name: str = Field(
        "adamw", description="any of timm's optimizers, e.g. adamw, sgd (Nesterov), momentum (SGD), lamb, muon, adamp"
    )
    options: dict[str, Any] = Field(default_factory=dict, description="optimizer options, e.g. {betas: [0.9, 0.95]}")
    learning_rate: float = Field(1e-3, gt=0)
    min_learning_rate: float = Field(1e-5, ge=0)
    weight_decay: float = Field(0.05, ge=0)
    warmup_epochs: float | None = Field(None, ge=0, description="default: one epoch, but at most a tenth of all")
    clip_grad_norm: float | None = Field(1.0, gt=0)
    # Radius of sharpness-aware minimization (Foret et al. 2021); it doubles the time per step.
    sam_rho: float | None = Field(None, gt=0, description="such as 0.05")
    # At step t, the decay is at most 1 - t^(-2/3).
    ema_decay: float | None = Field(0.998, ge=0, lt=1, description="of the average of the weights; null: no average")
    layer_decay: float | None = Field(None, gt=0, le=1, description="learning rate of a layer over that of the next")


class RuntimeConfig(StrictModel):
    """Device and speed; the result changes only by rounding."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    # auto: bf16 where the device computes it, else fp16 on a GPU, else fp32
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    compile: bool = Field(False, description="torch.compile: slow start, faster steps; requires a C compiler")
    workers: int = Field(1, ge=0)
    threads: int | None = Field(None, ge=1)
    checkpoint_every_steps: int = Field(200, ge=1)
    log_every_steps: int = Field(10, ge=1)


class DistillationConfig(StrictModel):
    """Distillation as in DeiT (Touvron et al. 2021, section 4)."""

    mode: DistillationMode = "none"
    # Folders of runs or artifacts, or names of released ones; several form an ensemble by mean probability.
    teachers: tuple[WeightsPath, ...] = ()
    weight: float = Field(0.5, ge=0, le=1, description="lambda, weight of the distillation loss")
    temperature: float = Field(3.0, gt=0, description="tau of the soft modes")

    @property
    def head(self) -> Head:
        """The head that is validated and released: the mean of both, if both get a gradient."""
        if not self.mode.startswith("token-") or self.weight == 0:
            return "class"
        return "distillation" if self.weight == 1 else "mean"

    @model_validator(mode="after")
    def _teacher_fits_mode(self) -> Self:
        if (self.mode == "none") != (not self.teachers):
            raise ValueError(
                f"mode {self.mode!r} with {len(self.teachers)} teachers: every mode except none requires a teacher"
            )
        return self


class LossConfig(StrictModel):
    """Supervised loss."""

    name: str = Field("cross_entropy", description="file in training/losses")
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    logit_adjustment: float = Field(0.0, ge=0, description="tau of Menon et al. 2021, weight of the log prior")


class MixConfig(StrictModel):
    """Mixup and CutMix by batch, as in timm.data.Mixup; with both, half of the mixed batches are CutMix."""

    mixup: float = Field(0.0, ge=0, description="alpha of its Beta distribution; 0 is off")
    cutmix: float = Field(0.0, ge=0, description="alpha of its Beta distribution; 0 is off")
    probability: float = Field(1.0, ge=0, le=1, description="probability that a batch is mixed")


class Recipe(StrictModel):
    """Recipe of a training run."""

    name: str = Field(pattern=r"^[a-z0-9_]+$")
    seed: int = Field(0, ge=0, lt=2**63)
    batch_size: int = Field(128, ge=2, description="batch normalization requires two faces")
    optim: OptimConfig = OptimConfig()
    runtime: RuntimeConfig = RuntimeConfig()
    epochs: int = Field(ge=1)
    data: DataConfig
    model: ModelConfig
    augment: AugmentConfig = AugmentConfig()
    distillation: DistillationConfig = DistillationConfig()
    loss: LossConfig = LossConfig()
    mix: MixConfig = MixConfig()
    # Metric on validation that selects the epoch.
    select: Literal["accuracy", "mean_class_accuracy", "negative_log_likelihood", "last"] = "accuracy"

    @model_validator(mode="after")
    def _check_parts_together(self) -> Self:
        if (self.optim.warmup_epochs or 0) >= self.epochs:
            raise ValueError(
                f"optim.warmup_epochs {self.optim.warmup_epochs:g} of epochs {self.epochs}: the training would end in "
                "its warm-up. Reduce optim.warmup_epochs."
            )
        distillation, unlabeled = self.distillation, any(source.target == "teacher" for source in self.data.train)
        if self.data.valid is None and self.select != "last":
            raise ValueError(f"select {self.select} needs data.valid; set it, or select: last")
        if self.augment.color_jitter > 0 and self.model.color != "RGB":
            raise ValueError(f"augment.color_jitter changes colors, model.color is {self.model.color}: leave it out")
        if unlabeled and (distillation.mode == "none" or self.loss.label_smoothing > 0):
            raise ValueError(
                "target teacher requires a distillation mode and label_smoothing 0: smoothing would create labels"
            )
        return self


def with_all_faces(recipe: Recipe) -> Recipe:
    """The recipe with its validation faces among the training faces, named `<name>_all`; the last epoch is kept.

    Near-duplicates of validation are not left out of train any more. Raises: RecipeError, without a validation split.
    """
    held_out, near = recipe.data.held_out, "exclude_near_duplicates_of"
    values = recipe.model_dump() | {"name": f"{recipe.name}_all", "select": "last"}
    train = values["data"]["train"]
    for source in train:
        if near in source["options"]:
            splits = TypeAdapter(Names).validate_python(source["options"][near])
            source["options"][near] = [split for split in splits if split != held_out.split]
    target = next((source.target for source in recipe.data.train if source.target != "teacher"), held_out.target)
    values["data"] |= {"train": [*train, held_out.model_dump() | {"target": target}], "valid": None}
    return parse_as(Recipe, values, origin=f"{recipe.name} --all")


def shareable(recipe: Recipe) -> dict[str, Any]:
    """Values of a recipe without runtime options and local paths; of runs and artifacts, the last two parts stay."""

    def short(path: str | None) -> str | None:
        return path and "/".join(Path(path).parts[-2:])

    files = {"weights", "pretrained_cfg_overlay"}  # The artifact has its own weights.
    values = recipe.model_dump(mode="json", exclude=LOCAL | {"model": {"options": files}})
    values["model"]["init_from"] = short(values["model"]["init_from"])
    values["distillation"]["teachers"] = [short(path) for path in values["distillation"]["teachers"]]
    return values


class _Yaml12(yaml.SafeLoader):
    """Reads 1e-3 as a number, not as text, and rejects a key that a mapping has twice, not dropping the first one."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys = [str(key.value) for key, _ in node.value]
        if repeated := [key for key in keys if keys.count(key) > 1]:
            raise yaml.MarkedYAMLError(problem=f"found {repeated[0]} twice", problem_mark=node.start_mark)
        return node


_Yaml12.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, [*"+-.0123456789"])


def read_as(schema: type[S], path: Path, overrides: Sequence[str] = ()) -> S:
    """Read a YAML file, such as a recipe, and apply `key.sub=value` overrides. Raises: RecipeError."""
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _Yaml12)  # noqa: S506 (a SafeLoader)
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(f"recipe {path}: cannot be read ({error})") from error
    if not isinstance(values, dict):
        raise RecipeError(f"recipe {path}: expected keys and values, found {type(values).__name__}")
    for override in overrides:
        apply_override(values, override)
    return parse_as(schema, values, origin=str(path))


def apply_override(values: dict[str, Any], override: str) -> None:
    """Apply a `key.sub=value` override in place; in a list, a key is an index. Raises: RecipeError."""
    key, _, text = override.partition("=")
    if not (key and text):
        raise RecipeError(f"override {override!r}: expected key=value, such as optim.learning_rate=3e-4; null for none")
    *parents, last = key.split(".")
    try:
        parent: Any = values
        for part in parents:
            parent = parent[int(part)] if isinstance(parent, list) else parent.setdefault(part, {})
        parent[int(last) if isinstance(parent, list) else last] = yaml.load(text, _Yaml12)  # noqa: S506 (a SafeLoader)
    except (AttributeError, IndexError, TypeError, ValueError, yaml.YAMLError) as error:
        raise RecipeError(f"override {override!r}: not a key of the recipe and a YAML value ({error})") from error


def parse_as(schema: type[S], values: dict[str, Any], *, origin: str) -> S:
    """Validate a recipe. Raises: RecipeError; for an unknown key, it suggests a known one."""
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        problems = error.errors()
        # A list whose item is invalid is also reported as too short.
        containers = [problem["loc"][:length] for problem in problems for length in range(len(problem["loc"]))]
        lines = [_explain(schema, problem) for problem in problems if problem["loc"] not in containers]
        raise RecipeError(f"recipe {origin}: " + "; ".join(lines)) from error


def _explain(schema: type[BaseModel], problem: Any) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] != "extra_forbidden":
        message = problem["msg"].removeprefix("Value error, ").replace("valid tuple", "list such as [a, b]")
        return ": ".join(filter(None, (where, message)))
    *parents, name = [part for part in problem["loc"] if isinstance(part, str)]
    known = _keys(schema)
    nearest = difflib.get_close_matches(".".join([*parents, _SYNONYMS.get(name, name)]), known, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(known)}"
    return f"unknown key {where!r}: {hint}"


def _keys(schema: type[BaseModel], parent: str = "") -> list[str]:
    """Dotted keys of a schema and its parts."""
    keys = []
    for name, field in schema.model_fields.items():
        # of an item of a list, or of what may be null
        part: Any = next(iter(get_args(field.annotation)), field.annotation)
        is_model = isinstance(part, type) and issubclass(part, BaseModel)
        keys += [f"{parent}{name}", *(_keys(part, f"{parent}{name}.") if is_model else ())]
    return keys
