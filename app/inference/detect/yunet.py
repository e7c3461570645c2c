"""YuNet, the detector of choice: boxes and five landmarks from a 230 kB network (Wu, Peng, Yu 2023).

It runs in ONNX Runtime, two to four times as fast as in OpenCV's own runner, and its outputs are decoded here; boxes
equal those of `cv2.FaceDetectorYN` (docs/decisions/0003-yunet-in-onnxruntime.md).
"""

from pathlib import Path
from typing import Final

import cv2
import numpy as np

from app.inference.detect.base import Face
from app.inference.detect.onnx_shape import with_free_dimensions
from app.inference.detect.search import Plan, find_faces
from app.inference.detect.weights import find_yunet, require_yunet
from app.inference.runtime.sessions import Session, open_session
from app.settings import Device, Settings
from data.contract import Array

STRIDES: Final = (8, 16, 32)
NMS_IOU: Final = 0.3
TOP_K: Final = 5000
_GRID_PX: Final = 32
_KINDS: Final = ("cls", "obj", "bbox", "kps")
OUTPUTS: Final = tuple(f"{kind}_{stride}" for kind in _KINDS for stride in STRIDES)
# 640 and the numbers of cells of its three grids: what the published file declares as fixed.
_FIXED: Final = frozenset({640, 6400, 1600, 400})


class YuNet:
    """YuNet over a search plan (app/inference/detect/search.py); safe to call from several threads at once."""

    name = "yunet"

    def __init__(self, path: Path, *, threshold: float, plan: Plan, device: Device = "cpu", threads: int = 0) -> None:
        """Load a verified file; `threshold` is the least score of a face. Raises: ProviderUnavailable."""
        graph = with_free_dimensions(path.read_bytes(), _FIXED)
        warm_up = {"input": np.zeros((1, 3, 64, 96), np.float32)}
        self._session: Session = open_session(graph, device, threads=threads, warm_up=warm_up)
        self.provider = self._session.provider
        self._threshold = threshold
        self._plan = plan

    def detect(self, image: Array) -> list[Face]:
        return find_faces(image, self.rows, self._plan)

    def rows(self, image: Array) -> Array:
        """Run the network once, at the picture's own size.

        Args:
            image: (H, W, 3) uint8, RGB.
        Returns: (N, 15) float32, best first: x, y, width, height, five landmarks (x, y), score.
        """
        height, width = image.shape[:2]
        below, right = -height % _GRID_PX, -width % _GRID_PX
        padded = cv2.copyMakeBorder(image, 0, below, 0, right, cv2.BORDER_CONSTANT) if below or right else image
        # (1, 3, H, W) float32, BGR, 0 to 255; cv2.dnn.blobFromImage takes ten times as long
        blob = np.stack(cv2.split(padded)[::-1])[None].astype(np.float32)
        outputs = self._session.inference.run(list(OUTPUTS), {"input": blob})
        grids = dict(zip(OUTPUTS, outputs, strict=True))
        return decode(grids, cells_across=padded.shape[1] // np.array(STRIDES), threshold=self._threshold)


def decode(grids: dict[str, Array], *, cells_across: Array, threshold: float) -> Array:
    """Turn the network's twelve outputs into faces.

    A cell predicts its box's center as an offset in cells, its size as a logarithm in cells, its landmarks as offsets.

    Args:
        grids: per stride, `cls` and `obj` (1, cells, 1), `bbox` (1, cells, 4), `kps` (1, cells, 10), row by row.
        cells_across: (3,) cells in a row of each grid.
        threshold: least score, the geometric mean of class and objectness.
    Returns: (N, 15) float32, best first.
    Source: OpenCV 4.14, modules/objdetect/src/face_detect.cpp.
    """
    parts = [
        _cells(*(grids[f"{kind}_{stride}"][0] for kind in _KINDS), stride=stride, across=int(across), least=threshold)
        for stride, across in zip(STRIDES, cells_across, strict=True)
    ]
    rows = np.concatenate(parts)
    if len(rows) == 0:
        return rows
    # Whole pixels, as OpenCV suppresses: the same boxes survive.
    kept = cv2.dnn.NMSBoxes(
        rows[:, :4].astype(np.int32).tolist(), rows[:, 14].tolist(), threshold, NMS_IOU, top_k=TOP_K
    )
    best: Array = rows[np.asarray(kept, dtype=np.intp).ravel()]
    return best


def _cells(cls: Array, obj: Array, bbox: Array, kps: Array, *, stride: int, across: int, least: float) -> Array:
    """Faces of one grid that reach the threshold, (N, 15) float32."""
    scores = np.sqrt(np.clip(cls[:, 0], 0, 1) * np.clip(obj[:, 0], 0, 1))
    found = np.flatnonzero(scores >= least)
    origin = np.stack([found % across, found // across], axis=1).astype(np.float32)
    sizes = np.exp(bbox[found, 2:]) * stride
    corners = (origin + bbox[found, :2]) * stride - sizes / 2
    landmarks = (kps[found].reshape(-1, 5, 2) + origin[:, None]) * stride
    columns = [corners, sizes, landmarks.reshape(-1, 10), scores[found, None]]
    return np.concatenate(columns, axis=1).astype(np.float32)


def create(settings: Settings) -> YuNet:
    """Build from settings. Raises: DetectorUnavailable, where the file is missing or damaged."""
    plan = Plan(settings.detection_px, settings.detection_max_px, settings.find_turned)
    return YuNet(
        require_yunet(settings.models_dir),
        threshold=settings.detection_threshold,
        plan=plan,
        # Pictures come in any size, and TensorRT would build an engine for each.
        device="cuda" if settings.device == "tensorrt" else settings.device,
        threads=settings.threads or 1,  # photos run side by side; more threads for each would fight over the cores
    )


def source(settings: Settings) -> str:
    """The verified file, or how to get it. Raises: DetectorUnavailable, if the file is damaged."""
    path = find_yunet(settings.models_dir)
    return f"verified file {path}" if path else "not found: run `mien models pull`, or set MIEN_MODELS_DIR"
