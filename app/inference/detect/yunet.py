"""YuNet, the preferred detector: boxes and five landmarks from a 230 kB network (Wu, Peng, Yu 2023).

ONNX Runtime is two to four times as fast as OpenCV's `cv2.FaceDetectorYN`, with the same boxes
(docs/decisions/0003-yunet-in-onnxruntime.md).
"""

from pathlib import Path

from mien.app.inference.detect.network import FaceNetwork, options_of
from mien.app.inference.detect.search import Plan
from mien.app.inference.detect.weights import YUNET_SHA256, find_yunet, require_yunet
from mien.app.settings import Device, Settings
from mien.models.detector.yunet import dynamic_graph


class YuNet(FaceNetwork):
    """YuNet with a dynamic input size."""

    name = "yunet"
    sha256 = YUNET_SHA256

    def __init__(self, path: Path, *, threshold: float, plan: Plan, device: Device = "cpu", threads: int = 0) -> None:
        super().__init__(dynamic_graph(path), threshold=threshold, plan=plan, device=device, threads=threads)


def create(settings: Settings) -> YuNet:
    """Build from settings. Raises: DetectorUnavailable, if the file is missing or damaged."""
    return YuNet(
        require_yunet(settings.models_dir),
        threshold=settings.detection_threshold,
        **options_of(settings),
    )


def source(settings: Settings) -> str:
    """The verified file, or how to get it. Raises: DetectorUnavailable, if the file is damaged."""
    path = find_yunet(settings.models_dir)
    return f"verified file {path}" if path else "not found: run `mien models pull`, or set MIEN_MODELS_DIR"
