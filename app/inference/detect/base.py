"""Interface of detectors, and checks of what they find."""

import math
from typing import Protocol

import numpy as np

from mien.app.inference.records import Box, Detection
from mien.data.contract import Array, DegenerateLandmarks
from mien.data.contract.align import similarity

MIN_EYE_DISTANCE_PX = 1.0


class Detector(Protocol):
    """Finds faces; thread-safe."""

    name: str

    def detect(self, image: Array) -> list[Detection]:
        """Find faces in (H, W, 3) uint8 RGB, largest first; empty if there are none."""
        ...


def plausible(face: Detection, *, width: int, height: int) -> bool:
    """Whether a detection can be a face in an image of this size.

    It must be finite, overlap the image, be at most three times its size, and have landmarks that define a crop. On
    images unlike its training data, a network can return boxes of 1e12 px with a score of 1.0.
    """
    x, y, box_width, box_height = face.box
    eyes = face.landmarks_px[1].astype(np.float64) - face.landmarks_px[0]
    return bool(
        all(map(math.isfinite, face.box))
        and np.isfinite(face.landmarks_px).all()
        and box_width > 0
        and box_height > 0
        and max(box_width, box_height) <= 3 * max(width, height)
        and min(x + box_width, width) > max(x, 0.0)
        and min(y + box_height, height) > max(y, 0.0)
        and np.hypot(*eyes) >= MIN_EYE_DISTANCE_PX
        and _can_be_framed(face)
    )


def _can_be_framed(face: Detection) -> bool:
    try:
        similarity(face.landmarks_px)
    except DegenerateLandmarks:
        return False
    return True


def largest_first(faces: list[Detection]) -> list[Detection]:
    """Sort by area, then by position, for a stable order."""
    return sorted(faces, key=lambda face: (-face.box.width * face.box.height, face.box.x, face.box.y))


def iou(a: Box, b: Box) -> float:
    """Intersection over union of two boxes, 0 to 1."""
    width = min(a.x + a.width, b.x + b.width) - max(a.x, b.x)
    height = min(a.y + a.height, b.y + b.height) - max(a.y, b.y)
    if width <= 0 or height <= 0:
        return 0.0
    common = width * height
    return common / (a.width * a.height + b.width * b.height - common)
