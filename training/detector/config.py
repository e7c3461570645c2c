"""The recipe of a face detector: pictures, teacher, network, loss and steps."""

import os
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from training.config import DATA_DIR_VARIABLE, OptimConfig, RecipeError, RuntimeConfig, read_as

MODELS_DIR_VARIABLE: Final = "MIEN_MODELS_DIR"
TEACHER_FILE: Final = "face_detection_yunet_2023mar.onnx"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PictureFolder(_Strict):
    """One folder of pictures, with subfolders."""

    name: str
    root: Path | None = Field(None, description=f"folder; without it ${DATA_DIR_VARIABLE}/<name>")
    weight: float = Field(1.0, ge=0, description="how often its pictures are drawn, as a share of all weights")
    limit: int | None = Field(
        None, ge=1, description="at most so many pictures to train on, those of the smallest hash, and a tenth held out"
    )

    def resolved_root(self) -> Path:
        """Folder of the pictures. Raises: RecipeError, if neither root nor the environment names it."""
        if self.root is not None:
            return self.root
        folder = os.environ.get(DATA_DIR_VARIABLE)
        if not folder:
            raise RecipeError(f"pictures {self.name}: no root in the recipe and ${DATA_DIR_VARIABLE} is not set")
        return Path(folder) / self.name


class DetectorData(_Strict):
    """Pictures to learn from; a tenth of each folder, by the hash of its files, is validation."""

    folders: tuple[PictureFolder, ...] = Field(min_length=1)
    teacher: Path | None = Field(None, description=f"YuNet's file; without it ${MODELS_DIR_VARIABLE}/{TEACHER_FILE}")
    cache_dir: Path = Path("cache")

    def resolved_teacher(self) -> Path:
        """YuNet's file. Raises: RecipeError, if it is missing."""
        path = self.teacher or Path(os.environ.get(MODELS_DIR_VARIABLE, ".")) / TEACHER_FILE
        if not path.is_file():
            raise RecipeError(f"teacher {path}: not found. Run `mien models pull`, then set {MODELS_DIR_VARIABLE}")
        return path


class DetectorModel(_Strict):
    """The network, models/detector/network.py."""

    arch: str = Field("face_fpn_tiny", pattern=r"^[a-z0-9_]+$", description="artifact's first name")
    widths: tuple[int, int, int, int, int] = (16, 32, 64, 112, 176)
    depths: tuple[int, int, int, int] = (1, 2, 3, 3)
    neck_width: int = Field(64, ge=8)


class DetectorLoss(_Strict):
    """Weights of the parts, each a mean over positive cells."""

    scores: float = Field(1.0, ge=0, description="focal loss of class and objectness")
    boxes: float = Field(2.0, ge=0, description="GIoU")
    landmarks: float = Field(20.0, ge=0, description="smooth L1, in sizes of the face")


class SceneConfig(_Strict):
    """How samples are composed, training/detector/scenes.py."""

    img_size: int = Field(256, ge=64, multiple_of=32)
    min_face_px: float = Field(9.0, gt=0)
    max_face_px: float = Field(280.0, gt=0)


class DetectorRecipe(_Strict):
    """Everything a detector's run depends on."""

    name: str = Field(pattern=r"^[a-z0-9_]+$")
    seed: int = Field(0, ge=0)
    steps: int = Field(ge=1)
    batch_size: int = Field(32, ge=1)
    data: DetectorData
    model: DetectorModel = DetectorModel()
    scenes: SceneConfig = SceneConfig()
    loss: DetectorLoss = DetectorLoss()
    optim: OptimConfig = OptimConfig()
    runtime: RuntimeConfig = RuntimeConfig()


def read_detector_recipe(path: Path, overrides: list[str]) -> DetectorRecipe:
    """Read a YAML recipe and apply `key.sub=value` overrides. Raises: RecipeError."""
    return read_as(DetectorRecipe, path, overrides)


def shareable(recipe: DetectorRecipe) -> dict[str, Any]:
    """A recipe's values without runtime and without paths of the machine that ran it."""
    values = recipe.model_dump(mode="json", exclude={"runtime"})
    values["data"] |= {"teacher": None, "cache_dir": "cache"}
    for folder in values["data"]["folders"]:
        folder["root"] = None
    return values
