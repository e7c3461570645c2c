"""Face detection networks with YuNet's outputs, in ONNX Runtime on the CPU.

A GPU takes longer: it prepares every convolution again for each size of image (decision record 0003).
"""

from pathlib import Path

import cv2
import numpy as np

from mien.app.inference.classifier import open_session
from mien.app.inference.detect.search import find_faces
from mien.app.inference.records import Detection
from mien.app.settings import InferenceSettings
from mien.data.contract import Array
from mien.models.detector.decode import SCORE_THRESHOLD, detect_rows


class NetworkDetector:
    """Detector with one network and the passes of search.py; thread-safe.

    Attributes:
        sha256: of the verified file.
        threshold: minimum score of a face.
    """

    def __init__(
        self, name: str, graph: Path | bytes, settings: InferenceSettings, *, sha256: str, threshold: float
    ) -> None:
        """Open a verified graph. Raises: ProviderUnavailable."""
        self.name, self.sha256, self.threshold = name, sha256, threshold
        self._settings = settings
        session = open_session(
            graph,
            "cpu",
            threads=settings.threads or 1,  # photos are processed in parallel
            warm_up={"input": np.zeros((1, 3, 64, 96), np.float32)},
        )
        optional = {value.name for value in session.inference.get_overridable_initializers()}
        # YuNet's graph does not have this input
        limits = {SCORE_THRESHOLD: np.array(threshold, np.float32)} if SCORE_THRESHOLD in optional else {}
        self._run = lambda outputs, feed: session.inference.run(outputs, feed | limits)

    def detect(self, image: Array) -> list[Detection]:
        return find_faces(image, self.rows, self._settings)

    def rows(self, image: Array) -> Array:
        """Run the network once, at the original size of the image.

        Args:
            image: (H, W, 3) uint8, RGB.
        Returns: (N, 15) float32, best first: x, y, width, height, five landmarks (x, y), score.
        """
        return detect_rows(self._run, cv2.cvtColor(image, cv2.COLOR_RGB2BGR), threshold=self.threshold)
