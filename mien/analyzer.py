"""Analyzer of photos with typed results."""

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mien.app.errors import InvalidRequest
from mien.app.inference.detect import Box
from mien.app.inference.pipeline import Analysis, LabeledFace, build_pipeline
from mien.app.settings import Device, load_settings
from mien.data.contract import LANDMARKS, Array, by_label

Image = str | os.PathLike[str] | bytes | Array


@dataclass(frozen=True, slots=True)
class Face:
    """One face.

    Attributes:
        landmarks: (x, y) in pixels of the photo, by name; left and right as seen in the photo.
        label: the most probable of the seven expressions.
        confidence: the calibrated probability of the label.
        uncertain: whether the confidence is below the model's abstain threshold.
        probabilities: all seven probabilities, by label; they sum to 1.
    """

    box: Box
    landmarks: dict[str, tuple[float, float]]
    label: str
    confidence: float
    uncertain: bool
    probabilities: dict[str, float]
    detection_score: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain dictionaries and numbers, for JSON."""
        return {**asdict(self), "box": self.box._asdict()}


class Analyzer:
    """Finds faces in photos and labels their expressions; thread-safe."""

    def __init__(
        self, *, model: str | os.PathLike[str] | None = None, device: Device | None = None, **settings: Any
    ) -> None:
        """Open, verify and warm up the detector and the model.

        Arguments take precedence over environment variables (`MIEN_*`).

        Args:
            model: fast (the default), accurate, the name of a released artifact, or the folder of one.
            device: auto (the default), cpu, cuda or tensorrt; auto may fall back to the CPU.
            settings: other fields of `app.settings.Settings`, such as detector="builtin" or min_face_px=24.
        Raises: MienError, if a setting is wrong, a file is missing or damaged, or the device cannot run the model.
        """
        self._pipeline = build_pipeline(load_settings(model=model, device=device, **settings))

    def analyze(self, image: Image) -> list[Face]:
        """Label the faces of one photo, largest first; the list is empty if there are none.

        Args:
            image: a path, the bytes of an image file, or pixels (H, W, 3) uint8 in RGB.
        Raises: OSError, for a path that cannot be read; MienError, for bytes or pixels that are not an image.
        """
        return [_face(face) for face in self._analysis(image).faces]

    def analyze_batch(self, images: Iterable[Image]) -> list[list[Face]]:
        """Label several photos, in order. Raises: see `analyze`, at the first image that cannot be read."""
        return [self.analyze(image) for image in images]

    def _analysis(self, image: Image) -> Analysis:
        if isinstance(image, np.ndarray):
            return self._pipeline.analyze_pixels(_checked(image))
        return self._pipeline.analyze(image if isinstance(image, bytes) else Path(image).read_bytes())


def _checked(pixels: Array) -> Array:
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8 or 0 in pixels.shape:
        raise InvalidRequest(f"pixels {pixels.shape} {pixels.dtype}: expected (H, W, 3) uint8 in RGB")
    return pixels


def _face(face: LabeledFace) -> Face:
    points = ((float(x), float(y)) for x, y in face.landmarks_px)
    return Face(
        box=Box(*(float(value) for value in face.box_px)),
        landmarks=dict(zip(LANDMARKS, points, strict=True)),
        label=face.label,
        confidence=face.confidence,
        uncertain=face.uncertain,
        probabilities=by_label(face.probabilities),
        detection_score=float(face.score),
    )
