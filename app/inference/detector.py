"""Face detectors: YuNet, and the built-in one, which is used if YuNet's file is missing.

YuNet (Wu, Peng, Yu 2023, "YuNet: A Tiny Millisecond-level Face Detector") is published in the OpenCV Zoo under the MIT
license. The file is pinned by its sha256: any other file of this name is an error. The built-in detector is an artifact
of this repository, trained with YuNet as its teacher and verified like the classifier's
(docs/decisions/0009-own-detector.md).

Both have YuNet's outputs and run in ONNX Runtime, which is two to four times as fast as OpenCV's `cv2.FaceDetectorYN`,
with the same boxes, on the CPU: a GPU prepares every convolution again for each size of image
(docs/decisions/0003-yunet-in-onnxruntime.md).
"""

import logging
import os
from pathlib import Path
from typing import Final, Protocol

import cv2
import numpy as np
import platformdirs

from mien.app.errors import DetectorUnavailable, DownloadError
from mien.app.inference.classifier import open_session
from mien.app.inference.records import Detection
from mien.app.inference.search import find_faces
from mien.app.settings import InferenceSettings
from mien.data.contract import Array
from mien.models.detector.decode import SCORE_THRESHOLD, detect_rows
from mien.models.detector.manifest import DetectorManifest, default_detector_dir, load_detector
from mien.models.detector.yunet import dynamic_graph
from mien.models.manifest import ArtifactError, sha256_of

YUNET_FILE: Final = "face_detection_yunet_2023mar.onnx"
YUNET_SHA256: Final = "8f2383e4dd3cfbb4553ea8718107fc0423210dc964f9f4280604804ed2552fa4"
_COMMIT: Final = "82b38c8f98e7b52aa171400f3e4c722352d0669f"  # the file may move on the main branch
# The repository keeps the file in Git LFS: the `raw` address returns a pointer of three lines.
YUNET_URL: Final = (
    f"https://media.githubusercontent.com/media/opencv/opencv_zoo/{_COMMIT}/models/face_detection_yunet/{YUNET_FILE}"
)
TIMEOUT_S: Final = 10.0
OPTIONAL_TIMEOUT_S: Final = 3.0


class Detector(Protocol):
    """Finds faces; thread-safe."""

    name: str

    def detect(self, image: Array) -> list[Detection]:
        """Find faces in (H, W, 3) uint8 RGB, largest first; empty if there are none."""
        ...


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


def create_detector(settings: InferenceSettings) -> NetworkDetector:
    """Open the detector named in the settings.

    Raises: DetectorUnavailable, if its file is missing or damaged; ProviderUnavailable.
    """
    create, _ = DETECTORS[detector_name(settings)]
    return create(settings)


def detector_name(settings: InferenceSettings) -> str:
    """The detector of the settings; `auto` is YuNet if its file exists, otherwise the built-in one.

    Raises: DetectorUnavailable, if YuNet's file is damaged.
    """
    if settings.detector != "auto":
        return settings.detector
    return "builtin" if find_yunet(settings.models_dir) is None else "yunet"


def detector_source(name: str, settings: InferenceSettings) -> str:
    """Where the verified file of a detector is, or how to get it. Raises: DetectorUnavailable, if it is damaged."""
    _, source = DETECTORS[name]
    return source(settings)


def _create_yunet(settings: InferenceSettings) -> NetworkDetector:
    path = find_yunet(settings.models_dir)
    if path is None:
        folders = ", ".join(str(folder) for folder in (settings.models_dir, cache_dir()) if folder)
        raise DetectorUnavailable(
            f"detector yunet: {YUNET_FILE} not found in {folders or 'a cache: HOME is unset'}. Run `mien models pull`, "
            "set MIEN_MODELS_DIR to the folder that contains it, or choose MIEN_DETECTOR=builtin."
        )
    threshold = settings.detection_threshold
    return NetworkDetector("yunet", dynamic_graph(path), settings, sha256=YUNET_SHA256, threshold=threshold)


def _yunet_source(settings: InferenceSettings) -> str:
    path = find_yunet(settings.models_dir)
    return f"verified file {path}" if path else "not found: run `mien models pull`, or set MIEN_MODELS_DIR"


def _create_builtin(settings: InferenceSettings) -> NetworkDetector:
    folder, manifest = _verified_builtin()
    threshold, sha256 = score_threshold(manifest, settings), manifest.graph.sha256
    return NetworkDetector("builtin", folder / manifest.graph.file, settings, sha256=sha256, threshold=threshold)


def _builtin_source(_settings: InferenceSettings) -> str:
    folder, manifest = _verified_builtin()
    return f"{manifest.name}, all hashes match; {folder}"


def _verified_builtin() -> tuple[Path, DetectorManifest]:
    """The folder of the artifact named in `models/artifacts/DEFAULT_DETECTOR`. Raises: DetectorUnavailable."""
    try:
        folder = default_detector_dir()
        return folder, load_detector(folder)
    except ArtifactError as error:
        raise DetectorUnavailable(f"detector builtin: {error}") from error


def score_threshold(manifest: DetectorManifest, settings: InferenceSettings) -> float:
    """Minimum score of a face: of the artifact, unless it is set in the settings."""
    chosen = "detection_threshold" in settings.model_fields_set
    return settings.detection_threshold if chosen else manifest.score_threshold


DETECTORS: Final = {"builtin": (_create_builtin, _builtin_source), "yunet": (_create_yunet, _yunet_source)}


def cache_dir() -> Path | None:
    """User cache folder for downloaded files; not created here. None for a user without a home."""
    try:
        return platformdirs.user_cache_path("mien", appauthor=False)
    except RuntimeError:  # HOME is unset, and the user is a number without a name
        return None


def find_yunet(models_dir: Path | None) -> Path | None:
    """Return YuNet's verified file from `models_dir`, else from the user cache, else None.

    Raises: DetectorUnavailable, if the file has another hash.
    """
    for folder in filter(None, (models_dir, cache_dir())):
        path = folder / YUNET_FILE
        # not is_file, which raises in a folder that this user may not read, such as the home of another one
        if not os.access(path, os.F_OK):
            continue
        try:
            actual = sha256_of(path)
        except OSError as error:
            raise DetectorUnavailable(f"detector yunet: cannot read {path} ({error.strerror})") from error
        if actual != YUNET_SHA256:
            raise DetectorUnavailable(
                f"detector yunet: {path} has sha256 {actual[:12]}..., expected {YUNET_SHA256[:12]}.... The file is "
                "damaged or another version: delete it and run `mien models pull`."
            )
        return path
    return None


def fetch_yunet(folder: Path | None = None, *, url: str | None = None, timeout_s: float = TIMEOUT_S) -> Path:
    """Download YuNet to `folder` (default: the user cache) unless it exists, atomically.

    Raises: DownloadError.
    """
    import pooch  # importing it takes as long as the rest of a command

    parent = folder or cache_dir()
    if parent is None:
        raise DownloadError("no folder for the file, because HOME is unset: give one with --to")
    pooch.get_logger().setLevel(logging.WARNING)
    url, loader = url or YUNET_URL, pooch.HTTPDownloader(timeout=timeout_s)
    try:
        path = Path(pooch.retrieve(url, f"sha256:{YUNET_SHA256}", YUNET_FILE, parent, downloader=loader))
        path.chmod(0o644)  # a service may run as another user
    except ValueError as error:
        raise DownloadError(
            f"{url} returned a file with another sha256 than {YUNET_SHA256[:12]}...: the page of a proxy, or another "
            "version. Nothing was written."
        ) from error
    except OSError as error:  # the errors of requests are OSErrors, too
        raise DownloadError(
            f"cannot download {url} to {parent} ({error}). Copy {YUNET_FILE} from the OpenCV Zoo to a folder and set "
            "MIEN_MODELS_DIR to it; until then, MIEN_DETECTOR=auto uses the built-in detector."
        ) from error
    return path
