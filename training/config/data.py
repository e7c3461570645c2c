"""Data of a recipe: sources, splits and folds."""

import os
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator

from mien.data.folds import Grouping
from mien.models.strict import StrictModel
from mien.training.config.errors import RecipeError

Sampler = Literal["instance", "class", "square_root"]
DATA_DIR_VARIABLE: Final = "MIEN_DATA_DIR"


def default_root(name: str) -> Path:
    """Folder of a data set in $MIEN_DATA_DIR. Raises: RecipeError, if it is not set."""
    folder = os.environ.get(DATA_DIR_VARIABLE)
    if not folder:
        raise RecipeError(
            f"data set {name}: no root in the recipe and ${DATA_DIR_VARIABLE} is not set. "
            f"Set {DATA_DIR_VARIABLE} to the folder with {name}/; data/README.md describes how to get it."
        )
    return Path(folder) / name


class FoldConfig(StrictModel):
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


class DataSource(StrictModel):
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
        return self.root or default_root(self.kind)


class DataConfig(StrictModel):
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
    def _no_test_split(self) -> Self:
        for source in (*self.train, self.valid):
            if source.split == "test":
                raise ValueError(
                    f"{source.kind}: the test split is for the final evaluation only, not for training or selection"
                )
        return self
