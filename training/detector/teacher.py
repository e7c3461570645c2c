"""Labels of the teacher, YuNet: means of its detections in eight views of an image.

Landmarks of a single view differ from the mean by 5 % of the distance between the eyes. Views differ in scale,
mirroring, and position relative to the network's grid.
"""

from pathlib import Path
from typing import Final

import cv2
import numpy as np

from mien.data.contract import Array
from mien.models.detector.decode import detect_rows
from mien.models.detector.yunet import dynamic_graph
from mien.training.evaluate import open_graph

# x, y, width, height, five landmarks, best score, share of the views with the face
FIELDS: Final = ("x", "y", "w", "h", *(f"{axis}{point}" for point in range(5) for axis in "xy"), "score", "seen")
SCORE, VIEW_SHARE = 14, 15
VERSION: Final = 1  # of the labels; invalidates caches
_MIRRORED: Final = (1, 0, 2, 4, 3)  # order of the landmarks in a mirror image
_SCALES: Final = (1.0, 1.4, 0.7, 0.5)
_MIN_SIDE_PX, _MAX_SIDE_PX = 96, 640
_TINY_PX: Final = 144  # smaller images are enlarged to this side
_MIN_SCORE: Final = 0.3
_SURE_SCORE: Final = 0.6  # views above it are averaged, if there are any
_SAME_IOU: Final = 0.4
_SHIFTS_PX: Final = ((0, 0), (5, 11), (13, 3), (8, 8), (3, 14), (11, 6), (2, 2), (14, 9))


class Teacher:
    """YuNet in ONNX Runtime, on one thread."""

    def __init__(self, path: Path) -> None:
        self._run = open_graph(dynamic_graph(path), threads=1).run

    def detect(self, image: Array) -> Array:
        """Detect faces in one view, (H, W, 3) uint8 BGR: (N, 15) float32, best first: box, landmarks, score."""
        rows = detect_rows(self._run, image, threshold=_MIN_SCORE)
        sane = np.isfinite(rows).all(axis=1) & (np.abs(rows[:, :4]).max(axis=1, initial=0) < 3 * max(image.shape))
        return rows[sane]  # type: ignore[no-any-return]

    def faces(self, image: Array) -> Array:
        """Faces of (H, W, 3) uint8 BGR found in at least one view, (N, 16) float32, columns `FIELDS`.

        If the four largest views have no face, the others are skipped.
        """
        views: list[Array] = []
        for number, (dx, dy) in enumerate(_SHIFTS_PX):
            scale = self._scale(image, _SCALES[number // 2])
            views.append(self._view(image, scale, mirror=number % 2 == 1, shift=(dx, dy)))
            if number == 3 and not sum(map(len, views)):
                break
        return merge_views(views)

    @staticmethod
    def _scale(image: Array, scale: float) -> float:
        side = int(max(image.shape[:2]))
        wanted = max(side, _TINY_PX) * scale
        return min(max(wanted, _MIN_SIDE_PX), _MAX_SIDE_PX) / side

    def _view(self, image: Array, scale: float, *, mirror: bool, shift: tuple[int, int]) -> Array:
        seen = image[:, ::-1] if mirror else image
        kind = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
        size = (round(image.shape[1] * scale), round(image.shape[0] * scale))
        seen = cv2.copyMakeBorder(
            cv2.resize(seen, size, interpolation=kind), shift[1], 16, shift[0], 16, cv2.BORDER_CONSTANT
        )
        rows = self.detect(seen).copy()
        ratio = np.array([size[0] / image.shape[1], size[1] / image.shape[0]], np.float32)
        rows[:, :2] = (rows[:, :2] - shift) / ratio
        rows[:, 2:4] /= ratio
        points = (rows[:, 4:14].reshape(-1, 5, 2) - np.array(shift, np.float32)) / ratio
        rows[:, 4:14] = points.reshape(-1, 10)
        return mirrored(rows, image.shape[1]) if mirror else rows


def mirrored(rows: Array, width: float) -> Array:
    """Mirror faces (N, 14 or more) of an image that is `width` wide."""
    out = rows.copy()
    out[:, 0] = width - rows[:, 0] - rows[:, 2]
    points = rows[:, 4:14].reshape(-1, 5, 2)[:, _MIRRORED]
    points[..., 0] = width - points[..., 0]
    out[:, 4:14] = points.reshape(-1, 10)
    return out


def merge_views(views: list[Array]) -> Array:
    """Merge detections of the same face: mean of the confident ones, best score, and share of views."""
    rows = np.concatenate(views)
    rows = rows[np.argsort(-rows[:, 14], kind="stable")]
    faces = []
    while len(rows):
        same = box_iou(rows[:1, :4], rows[:, :4])[0] >= _SAME_IOU
        same[0] = True
        group, rows = rows[same], rows[~same]
        sure = group[group[:, 14] >= _SURE_SCORE]
        mean = (sure if len(sure) else group)[:, :14].mean(axis=0)
        faces.append([*mean, group[0, 14], min(1.0, len(sure) / len(views))])
    return np.array(faces, np.float32).reshape(-1, len(FIELDS))


def box_iou(boxes: Array, others: Array) -> Array:
    """Intersection over union of (N, 4) and (M, 4) boxes (x, y, width, height): (N, M)."""
    a, b = boxes[:, None], others[None]
    low = np.maximum(a[..., :2], b[..., :2])
    high = np.minimum(a[..., :2] + a[..., 2:4], b[..., :2] + b[..., 2:4])
    common = np.clip(high - low, 0, None).prod(axis=-1)
    union = a[..., 2:4].prod(axis=-1) + b[..., 2:4].prod(axis=-1) - common
    return common / np.maximum(union, 1e-9)  # type: ignore[no-any-return]
