"""Single-threaded inference of detector graphs (YuNet or a release) with ONNX Runtime."""

from pathlib import Path

import numpy as np

from mien.data.contract import Array
from mien.models.detector.decode import OUTPUTS, STRIDES, decode, to_blob
from mien.training.evaluate import open_graph


class Network:
    """Detector for single images in their original size."""

    def __init__(self, graph: Path | bytes) -> None:
        self._session = open_graph(graph, threads=1)

    def __call__(self, image: Array, *, threshold: float) -> Array:
        """Faces of (H, W, 3) uint8 BGR, (N, 15) float32, best first: box, landmarks, score."""
        blob = to_blob(image)
        grids = dict(zip(OUTPUTS, self._session.run(list(OUTPUTS), {"input": blob}), strict=True))
        return decode(grids, cells_across=blob.shape[3] // np.array(STRIDES), threshold=threshold)
