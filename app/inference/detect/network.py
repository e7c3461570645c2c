"""Face detection networks with YuNet's outputs, in ONNX Runtime."""

from pathlib import Path
from typing import TypedDict

import cv2
import numpy as np

from mien.app.inference.detect.base import Face
from mien.app.inference.detect.search import Plan, find_faces
from mien.app.inference.runtime.sessions import Session, open_session
from mien.app.settings import Device, Settings
from mien.data.contract import Array
from mien.models.detector.decode import OUTPUTS, STRIDES, decode, to_blob


class Options(TypedDict):
    """Arguments that all networks take from the settings."""

    plan: Plan
    device: Device
    threads: int


class FaceNetwork:
    """Detector with one network and the passes of a plan (search.py); thread-safe."""

    name: str
    sha256: str  # of the verified file

    def __init__(
        self, graph: Path | bytes, *, threshold: float, plan: Plan, device: Device = "cpu", threads: int = 0
    ) -> None:
        """Open a verified graph; `threshold` is the score threshold. Raises: ProviderUnavailable."""
        warm_up = {"input": np.zeros((1, 3, 64, 96), np.float32)}
        self._session: Session = open_session(graph, device, threads=threads, warm_up=warm_up)
        self.provider = self._session.provider
        self.threshold = threshold
        self._plan = plan

    def detect(self, image: Array) -> list[Face]:
        return find_faces(image, self.rows, self._plan)

    def rows(self, image: Array) -> Array:
        """Run the network once, at the original size of the image.

        Args:
            image: (H, W, 3) uint8, RGB.
        Returns: (N, 15) float32, best first: x, y, width, height, five landmarks (x, y), score.
        """
        blob = to_blob(cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
        outputs = self._session.inference.run(list(OUTPUTS), {"input": blob})
        grids = dict(zip(OUTPUTS, outputs, strict=True))
        return decode(grids, cells_across=blob.shape[3] // np.array(STRIDES), threshold=self.threshold)


def options_of(settings: Settings) -> Options:
    """Plan, device and threads from the settings."""
    return Options(
        plan=Plan(settings.detection_px, settings.detection_max_px, settings.detect_rotated),
        # TensorRT would build an engine for every image size.
        device="cuda" if settings.device == "tensorrt" else settings.device,
        threads=settings.threads or 1,  # photos are processed in parallel
    )
