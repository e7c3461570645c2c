"""Copies of photos whose faces cannot be recognized: each head becomes a few cells of its mean colors.

    MIEN_PHOTOS_DIR=photos MIEN_MOBILEFACENET=path/to/mobilefacenet.pt pytest tests/inference/test_anonymized.py

The cells, not a blur that could be reversed, remove what identifies a person.
"""

from collections.abc import Iterable
from typing import Final

import cv2
import numpy as np

from mien.app.inference.detect.base import iou
from mien.app.inference.records import Box, Detection
from mien.data.contract import Array

_CELLS: Final = 4  # across and down
_GROWN: Final = 1.5  # side of the covered ellipse, in sides of the box: hair, ears and chin, too
_SAME: Final = 0.3  # IoU of two boxes of one face


def anonymize(image: Array, boxes: Iterable[Box]) -> Array:
    """Cover faces, with hair and chin.

    Args:
        image: (H, W, 3) uint8 RGB.
        boxes: of faces, in its pixels.
    Returns: (H, W, 3) uint8 RGB.
    """
    covered = image.copy()
    height, width = image.shape[:2]
    for box in boxes:
        center_x, center_y = box.x + box.width / 2, box.y + box.height / 2
        half_x, half_y = _GROWN * box.width / 2, _GROWN * box.height / 2
        left, right = max(0, round(center_x - half_x)), min(width, round(center_x + half_x) + 1)
        top, bottom = max(0, round(center_y - half_y)), min(height, round(center_y + half_y) + 1)
        if right <= left or bottom <= top:
            continue
        region = image[top:bottom, left:right]
        cells = cv2.resize(region, (_CELLS, _CELLS), interpolation=cv2.INTER_AREA)
        coarse = cv2.resize(cells, (right - left, bottom - top), interpolation=cv2.INTER_NEAREST)
        rows, columns = np.ogrid[top:bottom, left:right]
        inside = ((columns - center_x) / half_x) ** 2 + ((rows - center_y) / half_y) ** 2 <= 1
        covered[top:bottom, left:right][inside] = coarse[inside]
    return covered


def without(candidates: Iterable[Detection], boxes: Iterable[Box]) -> list[Box]:
    """Boxes of the candidates that are not those of known faces."""
    boxes = list(boxes)
    return [face.box for face in candidates if all(iou(face.box, box) < _SAME for box in boxes)]
