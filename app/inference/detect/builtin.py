"""The detector that is part of the repository, trained with YuNet as its teacher; used if YuNet's file is missing.

Its artifact is verified like the classifier's (docs/decisions/0009-own-detector.md).
"""

from pathlib import Path

from mien.app.errors import DetectorUnavailable
from mien.app.inference.detect.network import NetworkDetector
from mien.app.settings import InferenceSettings
from mien.models.detector.manifest import DetectorManifest, default_detector_dir, load_detector
from mien.models.manifest import ArtifactError


def score_threshold(manifest: DetectorManifest, settings: InferenceSettings) -> float:
    """Minimum score of a face: of the artifact, unless it is set in the settings."""
    chosen = "detection_threshold" in settings.model_fields_set
    return settings.detection_threshold if chosen else manifest.score_threshold


def _verified() -> tuple[Path, DetectorManifest]:
    """The folder of the artifact named in `models/artifacts/DEFAULT_DETECTOR`. Raises: DetectorUnavailable."""
    try:
        folder = default_detector_dir()
        return folder, load_detector(folder)
    except ArtifactError as error:
        raise DetectorUnavailable(f"detector builtin: {error}") from error


def create(settings: InferenceSettings) -> NetworkDetector:
    """Build from the verified artifact. Raises: DetectorUnavailable; ProviderUnavailable."""
    return open_artifact("builtin", *_verified(), settings)


def open_artifact(name: str, folder: Path, manifest: DetectorManifest, settings: InferenceSettings) -> NetworkDetector:
    """Open the graph of a verified artifact. Raises: ProviderUnavailable."""
    threshold, sha256 = score_threshold(manifest, settings), manifest.graph.sha256
    return NetworkDetector(name, folder / manifest.graph.file, settings, sha256=sha256, threshold=threshold)


def source(_settings: InferenceSettings) -> str:
    """The verified artifact. Raises: DetectorUnavailable, if it is missing or damaged."""
    folder, manifest = _verified()
    return f"{manifest.name}, all hashes match; {folder}"
