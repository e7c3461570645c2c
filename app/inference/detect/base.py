"""The types of detection: a face, and the interface of a detector."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from data.contract import Array, DegenerateLandmarks
from data.contract.align import similarity

Box = tuple[float, float, float, float]
_MIN_EYE_DISTANCE_PX = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Face:
    """One face in a picture.

    box_px: x, y, width, height in pixels of the upright picture; may reach over its edges.
    landmarks_px: (5, 2) float32, x then y: image-left eye, image-right eye, nose, image-left mouth corner,
        image-right mouth corner. "Image-left" is meant for an upright head: a head turned upside down has that eye
        on the right.
    score: the detector's confidence, 0 to 1; comparable within one detector only.
    """

    box_px: Box
    landmarks_px: Array
    score: float


class Detector(Protocol):
    """Finds faces; safe to call from several threads at once."""

    name: str

    def detect(self, image: Array) -> list[Face]:
        """Find faces in (H, W, 3) uint8 RGB, largest first; an empty list where there are none."""
        ...


def scaled(face: Face, scale_x: float, scale_y: float) -> Face:
    """The same face in pixels of a picture that is `scale_x` times as wide and `scale_y` times as high."""
    x, y, width, height = face.box_px
    landmarks = (face.landmarks_px * np.array([scale_x, scale_y])).astype(np.float32)
    return Face((x * scale_x, y * scale_y, width * scale_x, height * scale_y), landmarks, face.score)


def plausible(face: Face, *, width: int, height: int) -> bool:
    """Whether a detection can be a face of a picture of this size.

    On images unlike its training data, a network may return values that are not coordinates
    (boxes of 1e12 px with a score of 1.0 have been seen on pictures of 32 px): finite, overlapping the picture, at most
    three times its size, and with eyes that are apart and landmarks that a crop can be framed by.
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
        and np.hypot(*eyes) >= _MIN_EYE_DISTANCE_PX
        and _can_be_framed(face)
    )


def _can_be_framed(face: Face) -> bool:
    try:
        similarity(face.landmarks_px)
    except DegenerateLandmarks:
        return False
    return True


def largest_first(faces: list[Face]) -> list[Face]:
    """Sort by area, then by place, so that the order never depends on chance."""
    return sorted(faces, key=lambda face: (-face.box_px[2] * face.box_px[3], face.box_px[0], face.box_px[1]))


def iou(a: Box, b: Box) -> float:
    """Intersection over union of two boxes, 0 to 1."""
    width = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    height = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    common = width * height
    return common / (a[2] * a[3] + b[2] * b[3] - common)
