"""The files of the detectors: the built-in one is used if that of YuNet is missing.

YuNet is published in the OpenCV Zoo under the MIT license. The file is pinned by its sha256: any other file of this
name is an error. The built-in detector is an artifact of this repository, trained with YuNet as its teacher and
verified like the classifier's (docs/decisions/0009-own-detector.md).
"""

import logging
import os
from pathlib import Path
from typing import Final

import platformdirs

from mien.app.errors import DetectorUnavailable, DownloadError
from mien.app.inference.detector import NetworkDetector
from mien.app.settings import Device, InferenceSettings
from mien.models.manifest import ArtifactError, DetectorManifest, default_detector_dir, difference, load_detector

DETECTORS: Final = ("builtin", "yunet")
YUNET_FILE: Final = "face_detection_yunet_2023mar.onnx"
YUNET_SHA256: Final = "8f2383e4dd3cfbb4553ea8718107fc0423210dc964f9f4280604804ed2552fa4"
_COMMIT: Final = "82b38c8f98e7b52aa171400f3e4c722352d0669f"  # The file may move on the main branch.
# The repository keeps the file in Git LFS: the `raw` address returns a pointer of three lines.
YUNET_URL: Final = (
    f"https://media.githubusercontent.com/media/opencv/opencv_zoo/{_COMMIT}/models/face_detection_yunet/{YUNET_FILE}"
)
TIMEOUT_S: Final = 10.0
_SIZES: Final = (1, 20, 40, 80, 160, 320, 640, 400, 1600, 6400)  # declared batch, heights, widths and numbers of cells
_DIM, _VALUE, _DENOTATION = 0x0A, 0x08, 0x1A  # protobuf tags of a dimension, of its size, and of its comment


def detector_name(settings: InferenceSettings) -> str:
    """The detector of the settings; `auto` is YuNet if its file exists, otherwise the built-in one.

    Raises: DetectorUnavailable, if YuNet's file is damaged.
    """
    if settings.detector != "auto":
        return settings.detector
    return "builtin" if find_yunet(settings.models_dir) is None else "yunet"


def create_detector(settings: InferenceSettings, device: Device = "cpu") -> NetworkDetector:
    """Open the detector named in the settings.

    Raises: DetectorUnavailable, if its file is missing or damaged; ProviderUnavailable.
    """
    graph: Path | bytes
    name, threshold = detector_name(settings), settings.detection_threshold
    if name == "builtin":
        folder, manifest = _verified_builtin()
        graph, sha256 = folder / manifest.graph.file, manifest.graph.sha256
        if "detection_threshold" not in settings.model_fields_set:
            threshold = manifest.score_threshold
    else:
        path = find_yunet(settings.models_dir)
        if path is None:
            folders = ", ".join(str(folder) for folder in (settings.models_dir, cache_dir()) if folder)
            raise DetectorUnavailable(
                f"detector yunet: {YUNET_FILE} not found in {folders or 'a cache: HOME is unset'}. Run `mien models "
                "pull`, set MIEN_MODELS_DIR to the folder that contains it, or choose MIEN_DETECTOR=builtin."
            )
        graph, sha256 = dynamic_graph(path), YUNET_SHA256
    return NetworkDetector(name, graph, settings, sha256, threshold=threshold, device=device)


def detector_source(name: str, settings: InferenceSettings) -> str:
    """Where the verified file of a detector is, or how to get it. Raises: DetectorUnavailable, if it is damaged."""
    if name == "builtin":
        folder, manifest = _verified_builtin()
        return f"{manifest.name}, all hashes match; {folder}"
    path = find_yunet(settings.models_dir)
    return f"verified file {path}" if path else "not found: run `mien models pull`, or set MIEN_MODELS_DIR"


def _verified_builtin() -> tuple[Path, DetectorManifest]:
    """The folder and the manifest of the released detector. Raises: DetectorUnavailable."""
    try:
        folder = default_detector_dir()
        return folder, load_detector(folder)
    except ArtifactError as error:
        raise DetectorUnavailable(f"detector builtin: {error}") from error


def dynamic_graph(path: Path) -> bytes:
    """YuNet's model with unknown sizes instead of the declared ones: one image of 640x640 px.

    Only the declared shapes require that size. They are edited in the serialized model, because serving does not need
    the `onnx` package otherwise; the file is pinned by its hash.
    """
    model = path.read_bytes()
    for size in _SIZES:
        varint = bytes([size]) if size < 0x80 else bytes([size & 0x7F | 0x80, size >> 7])
        comment = b"-" * (len(varint) - 1)  # Messages contain their lengths: they stay the same.
        head = bytes([_DIM, 1 + len(varint)])
        model = model.replace(head + bytes([_VALUE]) + varint, head + bytes([_DENOTATION, len(comment)]) + comment)
    return model


def cache_dir() -> Path | None:
    """User cache folder for downloaded files; not created here. None for a user without a home."""
    try:
        return platformdirs.user_cache_path("mien", appauthor=False)
    except RuntimeError:  # HOME is unset, and the user is a number without a name.
        return None


def find_yunet(models_dir: Path | None) -> Path | None:
    """Find YuNet's verified file from `models_dir`, else from the user cache, else None.

    Raises: DetectorUnavailable, if the file has another hash.
    """
    for folder in filter(None, (models_dir, cache_dir())):
        path = folder / YUNET_FILE
        # is_file would raise in a folder that this user may not read, such as the home of another one.
        if not os.access(path, os.F_OK):
            continue
        if found := difference(path, YUNET_SHA256):
            raise DetectorUnavailable(f"detector yunet: {found}. Delete it and run `mien models pull`.")
        return path
    return None


def fetch_yunet(folder: Path | None = None, *, url: str | None = None) -> Path:
    """Download YuNet to `folder` (default: the user cache) unless it exists, atomically.

    Raises: DownloadError.
    """
    import pooch  # Importing it takes as long as the rest of a command.

    parent = folder or cache_dir()
    if parent is None:
        raise DownloadError("no folder for the file, because HOME is unset: give one with --to")
    pooch.get_logger().setLevel(logging.WARNING)
    url, loader = url or YUNET_URL, pooch.HTTPDownloader(timeout=TIMEOUT_S)
    try:
        path = Path(pooch.retrieve(url, f"sha256:{YUNET_SHA256}", YUNET_FILE, parent, downloader=loader))
        path.chmod(0o644)  # A service may run as another user.
    except ValueError as error:
        raise DownloadError(
            f"{url} returned a file with another sha256 than {YUNET_SHA256[:12]}...: the page of a proxy, or another "
            "version. Nothing was written."
        ) from error
    except OSError as error:  # The errors of requests are OSErrors, too.
        raise DownloadError(
            f"cannot download {url} to {parent} ({error}). Copy {YUNET_FILE} from the OpenCV Zoo to a folder and set "
            "MIEN_MODELS_DIR to it; until then, MIEN_DETECTOR=auto uses the built-in detector."
        ) from error
    return path
