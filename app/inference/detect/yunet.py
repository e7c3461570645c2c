"""YuNet, the preferred detector: boxes and five landmarks from a 230 kB network (Wu, Peng, Yu 2023).

ONNX Runtime is two to four times as fast as OpenCV's `cv2.FaceDetectorYN`, with the same boxes
(docs/decisions/0003-yunet-in-onnxruntime.md).
"""

from mien.app.errors import DetectorUnavailable
from mien.app.inference.detect.network import NetworkDetector
from mien.app.inference.detect.weights import YUNET_FILE, YUNET_SHA256, cache_dir, find_yunet
from mien.app.settings import InferenceSettings
from mien.models.detector.yunet import dynamic_graph


def create(settings: InferenceSettings) -> NetworkDetector:
    """Build from settings. Raises: DetectorUnavailable, if the file is missing or damaged; ProviderUnavailable."""
    path = find_yunet(settings.models_dir)
    if path is None:
        places = ", ".join(str(folder) for folder in (settings.models_dir, cache_dir()) if folder)
        raise DetectorUnavailable(
            f"detector yunet: {YUNET_FILE} not found in {places or 'a cache: HOME is unset'}. Run `mien models pull`, "
            "set MIEN_MODELS_DIR to the folder that contains it, or choose MIEN_DETECTOR=builtin."
        )
    return NetworkDetector(
        "yunet", dynamic_graph(path), settings, sha256=YUNET_SHA256, threshold=settings.detection_threshold
    )


def source(settings: InferenceSettings) -> str:
    """The verified file, or how to get it. Raises: DetectorUnavailable, if the file is damaged."""
    path = find_yunet(settings.models_dir)
    return f"verified file {path}" if path else "not found: run `mien models pull`, or set MIEN_MODELS_DIR"
