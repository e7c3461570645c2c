"""Decoding of a face detector's twelve outputs into boxes, landmarks and scores; torch-free.

The format is YuNet's (Wu, Peng, Yu 2023). In units of cells, a cell predicts the offset of the center of its box, the
logarithm of the size, and the offsets of the landmarks.
"""

from collections.abc import Callable
from typing import Any, Final

import cv2
import numpy as np

from mien.data.contract import Array

STRIDES: Final = (8, 16, 32)
GRID_PX: Final = 32
NMS_IOU: Final = 0.3
TOP_K: Final = 5000
KINDS: Final = ("cls", "obj", "bbox", "kps")
OUTPUTS: Final = tuple(f"{kind}_{stride}" for kind in KINDS for stride in STRIDES)
SCORE_THRESHOLD: Final = "score_threshold"  # optional input: boxes and landmarks of a grid below it are not computed


def to_blob(image: Array) -> Array:
    """Convert (H, W, 3) uint8 BGR to (1, 3, H', W') float32, 0 to 255, padded to multiples of 32."""
    below, right = -image.shape[0] % GRID_PX, -image.shape[1] % GRID_PX
    height, width = image.shape[:2]
    blob: Array = np.zeros((1, 3, height + below, width + right), np.float32)
    for channel in range(3):  # a plane after the other, which stays in the cache: half the time of a whole image
        blob[0, channel, :height, :width] = cv2.extractChannel(image, channel)
    return blob


def detect_rows(run: Callable[..., Any], image: Array, *, threshold: float) -> Array:
    """Faces of (H, W, 3) uint8 BGR at its original size, as `decode` returns them.

    Args:
        run: `InferenceSession.run` of the network's graph.
    """
    blob = to_blob(image)
    grids = dict(zip(OUTPUTS, run(list(OUTPUTS), {"input": blob}), strict=True))
    return decode_grids(grids, cells_across=blob.shape[3] // np.array(STRIDES), threshold=threshold)


def decode_grids(grids: dict[str, Array], *, cells_across: Array, threshold: float) -> Array:
    """Convert the network's outputs to faces.

    Args:
        grids: per stride, `cls` and `obj` (1, cells, 1), `bbox` (1, cells, 4), `kps` (1, cells, 10), row by row.
        cells_across: (3,) cells per row of each grid.
        threshold: minimum score, the geometric mean of class and objectness.
    Returns: (N, 15) float32, best first: x, y, width, height, five landmarks (x, y), score.
    Source: OpenCV 4.14, modules/objdetect/src/face_detect.cpp.
    """
    parts = [
        _cells(
            *(grids[f"{kind}_{stride}"][0] for kind in KINDS), stride=stride, columns=int(columns), threshold=threshold
        )
        for stride, columns in zip(STRIDES, cells_across, strict=True)
    ]
    rows = np.concatenate(parts)
    if len(rows) == 0:
        return rows
    # Whole pixels, to keep the same boxes as OpenCV.
    kept = cv2.dnn.NMSBoxes(
        rows[:, :4].astype(np.int32).tolist(), rows[:, 14].tolist(), threshold, NMS_IOU, top_k=TOP_K
    )
    best: Array = rows[np.asarray(kept, dtype=np.intp).ravel()]
    return best


def _cells(cls: Array, obj: Array, bbox: Array, kps: Array, *, stride: int, columns: int, threshold: float) -> Array:
    """Faces of one grid above the threshold, (N, 15) float32."""
    likely = np.flatnonzero(cls[:, 0] * obj[:, 0] >= 0.999 * threshold**2)  # few cells, of which scores are computed
    if not len(likely):  # most grids of most images
        return np.empty((0, 15), np.float32)
    scores = np.sqrt(np.clip(cls[likely, 0], 0, 1) * np.clip(obj[likely, 0], 0, 1))
    chosen, scores = likely[scores >= threshold], scores[scores >= threshold]
    origin = np.stack([chosen % columns, chosen // columns], axis=1).astype(np.float32)
    sizes = np.exp(bbox[chosen, 2:]) * stride
    corners = (origin + bbox[chosen, :2]) * stride - sizes / 2
    landmarks = (kps[chosen].reshape(-1, 5, 2) + origin[:, None]) * stride
    fields = [corners, sizes, landmarks.reshape(-1, 10), scores[:, None]]
    return np.concatenate(fields, axis=1).astype(np.float32)


def turned_back(points: Array, turns: int, *, width: int, height: int) -> Array:
    """Points (..., 2) of an image that was rotated clockwise by `turns` quarter turns, in the image itself.

    Args:
        width, height: size of the image before it was rotated.
    """
    x, y = points[..., 0], points[..., 1]
    back = ((x, y), (y, height - x), (width - x, height - y), (width - y, x))[turns]
    return np.stack(back, axis=-1)
