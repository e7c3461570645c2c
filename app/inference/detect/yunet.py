"""YuNet, the detector of choice: boxes and five landmarks from a 230 kB network (Wu, Peng, Yu 2023).

It runs in ONNX Runtime, two to four times as fast as in OpenCV's own runner; boxes equal those of `cv2.FaceDetectorYN`
(docs/decisions/0003-yunet-in-onnxruntime.md).
"""

from pathlib import Path
from typing import Final

from app.inference.detect.network import FaceNetwork, options_of
from app.inference.detect.onnx_shape import with_free_dimensions
from app.inference.detect.search import Plan
from app.inference.detect.weights import YUNET_SHA256, find_yunet, require_yunet
from app.settings import Device, Settings

# 640 and the numbers of cells of its three grids: what the published file declares as fixed.
_FIXED: Final = frozenset({640, 6400, 1600, 400})


class YuNet(FaceNetwork):
    """YuNet, with its declared sizes made free."""

    name = "yunet"
    sha256 = YUNET_SHA256

    def __init__(self, path: Path, *, threshold: float, plan: Plan, device: Device = "cpu", threads: int = 0) -> None:
        """Load a verified file; see `FaceNetwork`."""
        graph = with_free_dimensions(path.read_bytes(), _FIXED)
        super().__init__(graph, threshold=threshold, plan=plan, device=device, threads=threads)


def create(settings: Settings) -> YuNet:
    """Build from settings. Raises: DetectorUnavailable, where the file is missing or damaged."""
    return YuNet(
        require_yunet(settings.models_dir),
        threshold=settings.detection_threshold,
        **options_of(settings),
    )


def source(settings: Settings) -> str:
    """The verified file, or how to get it. Raises: DetectorUnavailable, if the file is damaged."""
    path = find_yunet(settings.models_dir)
    return f"verified file {path}" if path else "not found: run `mien models pull`, or set MIEN_MODELS_DIR"
