"""YuNet, the detector of choice: boxes and five landmarks from a 230 kB network (Wu, Peng, Yu 2023)."""

import threading
from pathlib import Path
from typing import Final

import cv2
import numpy as np

from app.detect.base import Face
from app.detect.search import Plan, find_faces
from app.detect.weights import require_yunet
from app.settings import Settings
from data.contract import Array

NMS_OVERLAP: Final = 0.3
TOP_K: Final = 5000


class YuNet:
    """YuNet over a search plan; see app/detect/search.py for the passes."""

    name = "yunet"

    def __init__(self, path: Path, *, threshold: float, plan: Plan) -> None:
        """Load a verified file; `threshold` is the least score of a face."""
        self._network = cv2.FaceDetectorYN.create(str(path), "", (320, 320), threshold, NMS_OVERLAP, TOP_K)
        self._lock = threading.Lock()  # the input size is state of the network
        self._plan = plan

    def detect(self, image: Array) -> list[Face]:
        """Find faces in (H, W, 3) uint8 RGB, largest first."""
        return find_faces(image, self._rows, self._plan)

    def _rows(self, image: Array) -> Array:
        height, width = image.shape[:2]
        bgr = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
        with self._lock:
            self._network.setInputSize((width, height))
            _, rows = self._network.detect(bgr)
        found: Array | None = rows  # OpenCV's stub leaves the None out
        return np.empty((0, 15), np.float32) if found is None else found


def create(settings: Settings) -> YuNet:
    """Build from settings. Raises: DetectorUnavailable, where the file is missing or damaged."""
    plan = Plan(settings.detection_px, settings.detection_max_px, settings.find_turned)
    return YuNet(require_yunet(settings.models_dir), threshold=settings.detection_threshold, plan=plan)
