"""Helpers for detector tests: drawn faces with known positions, a teacher that finds them, and a small recipe."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from mien.data.contract import Array
from mien.training.detector import images
from mien.training.detector.config import DetectorRecipe
from mien.training.detector.teacher import FIELDS
from tests.support.training import RUNTIME

SMALL_MODEL: dict[str, object] = {"widths": [4, 8, 8, 8, 8], "depths": [1, 1, 1, 1], "neck_width": 8, "heads": [1, 1]}
SMALL_MODEL["centered"] = False  # as the recipes of released detectors
_POINTS = np.array([[-0.4, -0.3], [0.4, -0.3], [0.0, 0.1], [-0.3, 0.5], [0.3, 0.5]])
_DISC = (180, 200, 230)


def drawn_face(side: int, center: tuple[float, float], radius: float) -> tuple[Array, Array]:
    """A disc with five dots, (side, side, 3) uint8 BGR, and its face, (1, 16), as the teacher returns it."""
    image = np.full((side, side, 3), 40, np.uint8)
    points = np.array(center) + radius * _POINTS
    cv2.circle(image, (round(center[0]), round(center[1])), round(radius), _DISC, -1)
    for x, y in points:
        cv2.circle(image, (round(x), round(y)), max(1, round(radius / 8)), (20, 20, 20), -1)
    box = [center[0] - radius, center[1] - radius, 2 * radius, 2 * radius]
    return image, np.array([[*box, *points.ravel(), 0.95, 1.0]], np.float32)


class DrawnTeacher:
    """Finds drawn discs by their color, as `mien.training.detector.teacher.Teacher` finds faces."""

    def __init__(self, path: Path) -> None:
        assert path.is_file()

    def faces(self, image: Array) -> Array:
        found = cv2.findNonZero((np.abs(image.astype(int) - _DISC).max(axis=2) < 30).astype(np.uint8))
        if found is None:
            return np.empty((0, len(FIELDS)), np.float32)
        x, y, width, height = cv2.boundingRect(found)
        radius = max(width, height) / 2
        return drawn_face(8, (x + width / 2, y + height / 2), radius)[1]


def drawn_images(root: Path) -> Path:
    """Write 40 images, three of four with a drawn face. Returns `root`."""
    rng = np.random.default_rng(0)
    root.mkdir(parents=True)
    for number in range(40):
        image, _ = drawn_face(96, (rng.uniform(36, 60), rng.uniform(36, 60)), rng.uniform(14, 28))
        if number % 4 == 3:
            image = rng.integers(0, 100, image.shape, dtype=np.uint8)
        cv2.imwrite(str(root / f"{number:03}.png"), image)
    return root


def small_detector_recipe(folder: Path, monkeypatch: pytest.MonkeyPatch, *, steps: int = 6) -> DetectorRecipe:
    """A recipe over drawn images below `folder`, with a teacher that finds drawn faces."""
    monkeypatch.setattr(images, "Teacher", DrawnTeacher)
    root = drawn_images(folder / "drawn")
    teacher = folder / "teacher.onnx"
    teacher.write_bytes(b"the drawn teacher reads no file")
    values = {
        "name": "small",
        "steps": steps,
        "batch_size": 4,
        "data": {
            "folders": [{"name": "drawn", "root": str(root)}],
            "teacher": str(teacher),
            "cache_dir": str(folder / "cache"),
        },
        "model": {"arch": "tiny", **SMALL_MODEL},
        "scenes": {"img_size": 64},
        "optim": {"learning_rate": 3e-3, "warmup_epochs": 0.1, "ema_decay": 0.5},
        "runtime": RUNTIME,
    }
    return DetectorRecipe.model_validate(values)
