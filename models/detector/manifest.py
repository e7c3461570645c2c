"""Manifest of a released face detector: files, inputs and outputs; its report.json has metrics and provenance."""

from pathlib import Path
from typing import Final, Literal

from pydantic import Field

from mien.models.manifest import (
    ARTIFACTS_DIR,
    GraphFile,
    Sha256,
    parse_manifest,
    resolve_pointer,
    verify_files,
)
from mien.models.strict import StrictModel

STRIDES: Final = (8, 16, 32)
KINDS: Final = ("cls", "obj", "bbox", "kps")
OUTPUTS: Final = tuple(f"{kind}_{stride}" for kind in KINDS for stride in STRIDES)
POINTER: Final = "DEFAULT_DETECTOR"
LANDMARKS: Final = ("image-left eye", "image-right eye", "nose", "image-left mouth corner", "image-right mouth corner")


class DetectorInput(StrictModel):
    """The image; -1 is dynamic, sides are multiples of 32. The graph's other input, a score, is optional."""

    name: str = "input"
    shape: tuple[int, int, int, int] = (-1, 3, -1, -1)
    dtype: Literal["float32"] = "float32"
    color: Literal["BGR"] = "BGR"
    range: tuple[float, float] = (0.0, 255.0)


class DetectorManifest(StrictModel):
    """`manifest.json` of a detector."""

    name: str = Field(description="folder name: <arch>.<tag>")
    kind: Literal["face_detector"] = "face_detector"
    graph: GraphFile
    input: DetectorInput = DetectorInput()
    strides: tuple[int, ...] = STRIDES
    landmarks: tuple[str, ...] = LANDMARKS
    opset: int
    parameters: int
    score_threshold: float = Field(gt=0, lt=1, description="score threshold for serving and for the metrics")
    commit: str = Field(description="commit that trained it")
    training_code: str = Field(description="last commit of this project with the code that trains such detectors")
    license: str
    files: dict[str, Sha256] = Field(description="all other files except manifest.json")


def default_detector_dir(artifacts_dir: Path = ARTIFACTS_DIR) -> Path:
    """Folder of the detector that `models/artifacts/DEFAULT_DETECTOR` names. Raises: ArtifactError."""
    return resolve_pointer(artifacts_dir / POINTER)


def load_detector(folder: Path) -> DetectorManifest:
    """Read a detector's manifest and verify all files. Raises: ArtifactError, naming the file."""
    manifest = parse_manifest(folder, DetectorManifest)
    verify_files(folder, {**manifest.files, manifest.graph.file: manifest.graph.sha256})
    return manifest
