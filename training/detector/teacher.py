"""Labels of the teacher, YuNet: means of its detections in eleven views of an image.

Landmarks of a single view differ from the mean by 5 % of the distance between the eyes. Views differ in scale,
mirroring, rotation by 90 degrees, and position relative to the network's grid. What only few of them show is learned
neither as a face nor as background.
"""

from pathlib import Path
from typing import Final

import cv2
import numpy as np

from mien.data.contract import Array
from mien.models.detector.decode import OUTPUTS, STRIDES, detect_rows, to_blob, turned_back
from mien.models.detector.yunet import dynamic_graph
from mien.training.evaluate import open_graph

# x, y, width, height, five landmarks, best score, share of the views with the face
FIELDS: Final = ("x", "y", "w", "h", *(f"{axis}{point}" for point in range(5) for axis in "xy"), "score", "seen")
SCORE, VIEW_SHARE = 14, 15
VERSION: Final = 2  # of the labels; invalidates caches
_MIRRORED: Final = (1, 0, 2, 4, 3)  # order of the landmarks in a mirror image
# Scale, mirrored, counterclockwise turns of 90 degrees, and shift in px. If the first four have no face, the others
# are skipped.
_VIEWS: Final = (
    (1.0, False, 0, (0, 0)),
    (1.4, True, 0, (13, 3)),
    (1.0, False, 1, (5, 11)),
    (1.0, True, 3, (8, 8)),
    (1.4, False, 0, (3, 14)),
    (1.0, True, 0, (11, 6)),
    (2.0, False, 0, (7, 5)),
    (0.7, False, 0, (2, 2)),
    (0.7, True, 0, (14, 9)),
    (0.5, False, 0, (4, 12)),
    (0.5, True, 0, (9, 1)),
)
_FIRST_VIEWS: Final = 4
_MIN_SIDE_PX, _MAX_SIDE_PX = 96, 640
_TINY_PX: Final = 144  # smaller images are enlarged to this side
_MIN_SCORE: Final = 0.3
_SURE_SCORE: Final = 0.6  # views above it are averaged, if there are any
_DOUBTFUL_SCORE: Final = 0.59
_SAME_IOU: Final = 0.4


class Teacher:
    """YuNet in ONNX Runtime, on one thread."""

    def __init__(self, path: Path) -> None:
        self._run = open_graph(dynamic_graph(path), threads=1).run

    def detect(self, image: Array) -> Array:
        """Detect faces in one view, (H, W, 3) uint8 BGR: (N, 15) float32, best first: box, landmarks, score."""
        rows = detect_rows(self._run, image, threshold=_MIN_SCORE)
        sane = np.isfinite(rows).all(axis=1) & (np.abs(rows[:, :4]).max(axis=1, initial=0) < 3 * max(image.shape))
        return rows[sane]  # type: ignore[no-any-return]

    def cells(self, image: Array) -> Array:
        """Outputs of all cells for (H, W, 3) uint8 BGR, sides multiples of 32: (cells, 16) float32, kind by kind."""
        outputs, strides = self._run(list(OUTPUTS), {"input": to_blob(image)}), len(STRIDES)
        starts = range(0, len(OUTPUTS), strides)
        kinds = [np.concatenate(outputs[start : start + strides], axis=1)[0] for start in starts]
        return np.concatenate(kinds, axis=1, dtype=np.float32)

    def faces(self, image: Array) -> Array:
        """Faces of (H, W, 3) uint8 BGR found in at least one view, (N, 16) float32, columns `FIELDS`."""
        views = [self._view(image, *view) for view in _VIEWS[:_FIRST_VIEWS]]
        if sum(map(len, views)):
            views += [self._view(image, *view) for view in _VIEWS[_FIRST_VIEWS:]]
        return merge_views(views)

    def _view(self, image: Array, scale: float, mirror: bool, turns: int, shift: tuple[int, int]) -> Array:
        height, width = image.shape[:2]
        side = max(height, width)
        scale = min(max(max(side, _TINY_PX) * scale, _MIN_SIDE_PX), _MAX_SIDE_PX) / side
        kind = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
        size = (round(width * scale), round(height * scale))
        seen = cv2.resize(image[:, ::-1] if mirror else image, size, interpolation=kind)
        seen = np.rot90(seen, turns)
        seen = cv2.copyMakeBorder(np.ascontiguousarray(seen), shift[1], 16, shift[0], 16, cv2.BORDER_CONSTANT)
        rows = self.detect(seen).copy()
        rows[:, :14] -= [*shift, 0, 0, *shift * 5]
        if turns:  # YuNet takes turned faces for upright ones: enough to doubt a place, not to label a face
            rows[:, SCORE] = rows[:, SCORE].clip(max=_DOUBTFUL_SCORE)
        rows = rows_turned_back(rows, turns, size) / [*[size[0] / width, size[1] / height] * 7, 1]
        return mirrored(rows, width) if mirror else rows


def rows_turned_back(rows: Array, turns: int, size: tuple[int, int]) -> Array:
    """Faces (N, 15) of an image that was turned by `turns` times 90 degrees counterclockwise, in the image itself.

    Args:
        size: width and height of the image before it was turned.
    """
    corners = np.concatenate([rows[:, :2], rows[:, :2] + rows[:, 2:4]], axis=1)
    points = np.concatenate([corners, rows[:, 4:14]], axis=1).reshape(-1, 7, 2)
    points = turned_back(points, -turns % 4, width=size[0], height=size[1])
    low, high = points[:, :2].min(axis=1), points[:, :2].max(axis=1)
    return np.concatenate([low, high - low, points[:, 2:].reshape(-1, 10), rows[:, 14:]], axis=1, dtype=np.float32)


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
