"""Faces at places that the caller gives instead of a detector: boxes, landmarks, or images that are one face each.

A box has no framing of its own: detectors, people and data sets draw it around the chin, the hair or the whole head.
Therefore the detector looks for the landmarks of each face near its box, and the crop is cut by the box itself only
where it finds none.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from mien.app.errors import InvalidFace
from mien.app.inference.detector import Detector
from mien.app.inference.records import Box, Detection
from mien.app.inference.search import iou
from mien.data.contract import CROP_PX, Array, DegenerateLandmarks
from mien.data.contract.align import TEMPLATE_PX, similarity

# Box that detectors draw around a face, in pixels of its crop: the mean of the medians of both, over 150 faces.
_BOX_PX: Final = Box(11.0, -3.5, 89.5, 118.0)
# The face of a box is searched in the box with this share of its size added on each side.
_MARGIN: Final = 0.4
_MIN_IOU: Final = 0.3  # Given and detected boxes may be drawn by different rules.


def detection_of(landmarks_px: Array) -> Detection:
    """A face from its five landmarks, (5, 2), with the box that a detector would draw; not finite without a face."""
    points = np.asarray(landmarks_px, np.float32)
    try:
        matrix = similarity(points)
    except DegenerateLandmarks:
        return Detection(Box(*[math.nan] * 4), points, 1.0)
    scale = math.hypot(matrix[0, 0], matrix[1, 0])
    center = np.linalg.solve(matrix[:, :2], np.array(_center(_BOX_PX)) - matrix[:, 2])
    width, height = _BOX_PX.width / scale, _BOX_PX.height / scale
    box = Box(float(center[0]) - width / 2, float(center[1]) - height / 2, width, height)
    return Detection(box, points, 1.0)


def whole_face(image: Array) -> Detection:
    """The face of an image that is one face, as `fit` frames it."""
    height, width = image.shape[:2]
    scale = max(height, width) / CROP_PX
    margin = (CROP_PX - np.array([width, height]) / scale) / 2
    landmarks = ((np.array(TEMPLATE_PX) - margin) * scale).astype(np.float32)
    return Detection(Box(0.0, 0.0, float(width), float(height)), landmarks, 1.0)


def detections_at(image: Array, boxes: Sequence[Box | Detection], detector: Detector) -> tuple[Detection, ...]:
    """One face for each given box, in order: where the detector finds one near it, else cut by the box itself.

    Args:
        image: (H, W, 3) uint8 RGB.
        boxes: in pixels of the image; of a Detection, the landmarks are used as they are.
    Raises: InvalidFace, naming every one that cannot be used.
    """
    problems = {index: text for index, box in enumerate(boxes) if (text := _problem(box, image))}
    if problems:
        texts = [f"boxes[{index}]: {text}" for index, text in problems.items()]
        raise InvalidFace("; ".join(texts[:5] + (["..."] if len(texts) > 5 else [])), tuple(problems))
    return tuple(box if isinstance(box, Detection) else _at_box(image, box, detector) for box in boxes)


def _problem(face: Box | Detection, image: Array) -> str:
    """Why a face cannot be used; empty if it can."""
    box = face.box if isinstance(face, Detection) else face
    height, width = image.shape[:2]
    values = ", ".join(f"{value:g}" for value in box)
    if isinstance(face, Detection):
        try:
            similarity(face.landmarks_px)
        except DegenerateLandmarks as error:
            return str(error)
    if not all(map(math.isfinite, box)):
        return f"{values} has a value that is not finite; expected x, y, width and height in pixels"
    if box.short_side_px < 1:
        return f"{values} is less than a pixel wide or high; expected x, y, width and height in pixels"
    if min(box.x + box.width, width) <= max(box.x, 0) or min(box.y + box.height, height) <= max(box.y, 0):
        return f"{values} is outside the image of {width}x{height} px"
    if max(box.width, box.height) > 3 * max(width, height):
        return f"{values} is more than three times as large as the image of {width}x{height} px"
    return ""


def _at_box(image: Array, box: Box, detector: Detector) -> Detection:
    """The face that is detected near a box, with the box as it was given; else one that the box itself frames."""
    x, y, width, height = box
    left, top = max(0, math.floor(x - _MARGIN * width)), max(0, math.floor(y - _MARGIN * height))
    right, bottom = math.ceil(x + (1 + _MARGIN) * width), math.ceil(y + (1 + _MARGIN) * height)
    near = np.ascontiguousarray(image[top:bottom, left:right])
    moved = Box(x - left, y - top, width, height)
    nearest = max(detector.detect(near), key=lambda face: iou(face.box, moved), default=None)
    if nearest is not None and iou(nearest.box, moved) >= _MIN_IOU:
        return Detection(box, nearest.landmarks_px + np.array([left, top], np.float32), nearest.score)
    scale = math.sqrt(width * height / (_BOX_PX.width * _BOX_PX.height))
    landmarks = np.array(_center(box)) + (np.array(TEMPLATE_PX) - _center(_BOX_PX)) * scale
    return Detection(box, landmarks.astype(np.float32), 0.0)


def _center(box: Box) -> tuple[float, float]:
    return box.x + box.width / 2, box.y + box.height / 2
