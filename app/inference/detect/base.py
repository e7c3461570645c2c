"""Detected face, and the interface of detectors."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from mien.data.contract import Array, DegenerateLandmarks
from mien.data.contract.align import similarity

MIN_EYE_DISTANCE_PX = 1.0


class Box(NamedTuple):
    """A rectangle in pixels of the upright image; it may extend beyond the edge."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True, eq=False)
class Face:
    """One detected face.

    landmarks_px: (5, 2) float32, x then y: image-left eye, image-right eye, nose, image-left mouth corner,
        image-right mouth corner. "Image-left" refers to an upright head: in an upside-down face, this eye is on
        the right.
    score: confidence of the detector, 0 to 1; not comparable between detectors.
    """

    box_px: Box
    landmarks_px: Array
    score: float

    @property
    def short_side_px(self) -> float:
        """Shorter side of the box."""
        return min(self.box_px[2:])


class Detector(Protocol):
    """Finds faces; thread-safe."""

    name: str

    def detect(self, image: Array) -> list[Face]:
        """Find faces in (H, W, 3) uint8 RGB, largest first; empty if there are none."""
        ...


def scaled(face: Face, scale_x: float, scale_y: float) -> Face:
    """Scale box and landmarks to an image that is `scale_x` times as wide and `scale_y` times as high."""
    x, y, width, height = face.box_px
    landmarks = (face.landmarks_px * np.array([scale_x, scale_y])).astype(np.float32)
    return Face(Box(x * scale_x, y * scale_y, width * scale_x, height * scale_y), landmarks, face.score)


def plausible(face: Face, *, width: int, height: int) -> bool:
    """Whether a detection can be a face in an image of this size.

    It must be finite, overlap the image, be at most three times its size, and have landmarks that define a crop. On
    images unlike its training data, a network can return boxes of 1e12 px with a score of 1.0.
    """
    x, y, box_width, box_height = face.box_px
    eyes = face.landmarks_px[1].astype(np.float64) - face.landmarks_px[0]
    return bool(
        np.isfinite(face.box_px).all()
        and np.isfinite(face.landmarks_px).all()
        and box_width > 0
        and box_height > 0
        and max(box_width, box_height) <= 3 * max(width, height)
        and min(x + box_width, width) > max(x, 0.0)
        and min(y + box_height, height) > max(y, 0.0)
        and np.hypot(*eyes) >= MIN_EYE_DISTANCE_PX
        and _can_be_framed(face)
    )


def _can_be_framed(face: Face) -> bool:
    try:
        similarity(face.landmarks_px)
    except DegenerateLandmarks:
        return False
    return True


def largest_first(faces: list[Face]) -> list[Face]:
    """Sort by area, then by position, for a stable order."""
    return sorted(faces, key=lambda face: (-face.box_px[2] * face.box_px[3], face.box_px[0], face.box_px[1]))


def iou(a: Box, b: Box) -> float:
    """Intersection over union of two boxes, 0 to 1."""
    width = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    height = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    common = width * height
    return common / (a[2] * a[3] + b[2] * b[3] - common)
