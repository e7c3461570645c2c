"""Recipe of a face detector: images, teacher, network, loss and training steps."""

import os
from pathlib import Path
from typing import Final, Self

from pydantic import Field, model_validator

from mien.models.strict import LocalPath, StrictModel
from mien.training.config import DATA_DIR_VARIABLE, OptimConfig, RecipeError, RunRecipe, WeightsPath, default_root

MODELS_DIR_VARIABLE: Final = "MIEN_MODELS_DIR"
TEACHER_FILE: Final = "face_detection_yunet_2023mar.onnx"


class ImageFolder(StrictModel):
    """One folder of images, with subfolders."""

    name: str
    root: LocalPath | None = Field(None, description=f"folder; default: ${DATA_DIR_VARIABLE}/<name>")
    weight: float = Field(1.0, ge=0, description="sampling weight of the folder")
    limit: int | None = Field(
        None,
        ge=1,
        description="maximum number of training images, by hash; a twentieth of it for validation, and for the test",
    )

    def resolved_root(self) -> Path:
        """Folder of the images. Raises: RecipeError, if neither the recipe nor the environment sets it."""
        return self.root or default_root(self.name)


class DetectorData(StrictModel):
    """Training images; a twentieth of each folder, selected by file hash, is for validation, another for the test."""

    folders: tuple[ImageFolder, ...] = Field(min_length=1)
    teacher: LocalPath | None = Field(None, description=f"YuNet's file; default: ${MODELS_DIR_VARIABLE}/{TEACHER_FILE}")
    cache_dir: LocalPath = Path("cache")
    in_memory: bool = Field(False, description="each worker keeps the decoded images")

    def resolved_teacher(self) -> Path:
        """YuNet's file. Raises: RecipeError, if it is missing."""
        path = self.teacher or Path(os.environ.get(MODELS_DIR_VARIABLE, ".")) / TEACHER_FILE
        if not path.is_file():
            raise RecipeError(f"teacher {path}: not found. Run `mien models pull`, then set {MODELS_DIR_VARIABLE}")
        return path


class DetectorModel(StrictModel):
    """Arguments of `FaceFPN`."""

    arch: str = Field("face_fpn_micro", pattern=r"^[a-z0-9_]+$", description="first part of the artifact's name")
    widths: tuple[int, int, int, int, int] = (16, 32, 48, 96, 128)
    depths: tuple[int, int, int, int] = (1, 2, 4, 3)
    neck_width: int = Field(32, ge=8)
    heads: tuple[int, int] = (1, 3)
    centered: bool = Field(False, description="center pixels first; the first BatchNorm can do it at no cost")
    init_from: WeightsPath | None = Field(
        None, description="artifact of the same network, or one with fewer blocks, whose weights training starts with"
    )


class DetectorLoss(StrictModel):
    """Weights of the losses, each a mean over the positive cells of a batch, or of a part with `runtime.accumulate`."""

    scores: float = Field(1.0, ge=0, description="focal loss of class and objectness")
    boxes: float = Field(2.0, ge=0, description="GIoU")
    landmarks: float = Field(20.0, ge=0, description="smooth L1, relative to the size of the face")
    cells: bool = Field(
        False, description="also learn YuNet's outputs in each cell of a sample to which no face is assigned"
    )


class SceneConfig(StrictModel):
    """Composition of samples."""

    img_size: int = Field(256, ge=64, multiple_of=32)
    min_face_px: float = Field(9.0, gt=0)
    hard_share: float = Field(0.0, ge=0, lt=1, description="share of parts around false positives of hard_from")
    hard_from: WeightsPath | None = Field(
        None, description="artifact whose false positives are shown; default: model.init_from"
    )


class DetectorOptim(OptimConfig):
    """Optimizer as in training; the whole run is one epoch."""

    warmup_epochs: float = Field(0.02, ge=0, description="share of the steps")


class DetectorRecipe(RunRecipe):
    """All options of a training run."""

    steps: int = Field(ge=1)
    batch_size: int = Field(32, ge=2)
    optim: DetectorOptim = DetectorOptim()
    data: DetectorData
    model: DetectorModel = DetectorModel()
    scenes: SceneConfig = SceneConfig()
    loss: DetectorLoss = DetectorLoss()

    @model_validator(mode="after")
    def _hard_parts_need_a_detector(self) -> Self:
        if self.scenes.hard_share and self.hard_from is None:
            raise ValueError(
                "scenes.hard_share needs scenes.hard_from or model.init_from, whose false positives are used"
            )
        return self

    @property
    def hard_from(self) -> Path | None:
        """Artifact whose false positives are shown."""
        return (self.scenes.hard_from or self.model.init_from) if self.scenes.hard_share else None
