"""Manifests of released artifacts, and their verification.

An artifact is a folder `models/artifacts/<arch>.<tag>/` with ONNX graphs, `manifest.json`, `report.json` and `card.md`.
The manifest has what serving reads, the report everything else: where the weights come from, and what was measured.
Before serving, `load_artifact` verifies the sha256 of every file and the contract id, and `load_detector` the files of
a face detector.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field, ValidationError, model_validator

from mien.data.atomic import write_atomic
from mien.data.contract import LABELS, Array, contract_id, labels_of
from mien.data.errors import MienError
from mien.data.quality import expected_votes, softmax
from mien.models.strict import StrictModel

ARTIFACTS_DIR: Final = Path(__file__).parent / "artifacts"
MANIFEST_NAME: Final = "manifest.json"
REPORT_NAME: Final = "report.json"
DEFAULT_NAME: Final = "fast"
POINTER: Final = "DEFAULT"  # file with the name of the default model's folder
_DETECTOR_POINTER: Final = "DEFAULT_DETECTOR"
CROPS, LOGITS, RELEVANCE = "crops", "logits", "relevance"  # input and outputs of the graphs
DETECTOR_STRIDES: Final = (8, 16, 32)
DETECTOR_OUTPUTS: Final = tuple(f"{kind}_{px}" for kind in ("cls", "obj", "bbox", "kps") for px in DETECTOR_STRIDES)

M = TypeVar("M", bound=StrictModel)
Prior = Literal["natural", "balanced"]
Precision = Literal["fp32", "fp16", "int8"]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
FileName = Annotated[str, Field(pattern="^[A-Za-z0-9._-]+$")]


class ArtifactError(MienError):
    """An artifact that is missing, damaged, or made for another contract."""


class Agreement(StrictModel):
    """Conversion of probabilities to the shares of people who would choose each expression."""

    temperature: float = Field(gt=0, description="log probabilities, natural, are divided by this before softmax")
    offsets: tuple[float, ...] = Field(description="added to them, in the order of the labels")


class GraphFile(StrictModel):
    """One ONNX graph of the artifact, with its hash."""

    file: str = Field(pattern=r"^[A-Za-z0-9._-]+\.onnx$")
    sha256: Sha256


class Manifest(StrictModel):
    """`manifest.json`; see the field descriptions."""

    name: str = Field(description="folder name: <arch>.<tag>")
    labels: Annotated[tuple[str, ...], AfterValidator(labels_of)] = Field(description="ordered classes of the logits")
    contract_id: str = Field(description="id of the crop and label contract used in training")
    explain: tuple[int, int] | None = Field(None, description="rows and columns of the attention maps, if it has some")
    graphs: dict[Precision, GraphFile] = Field(
        description="crops (N, 112, 112, 3) uint8 RGB to logits (N, K), and relevance (N, rows, columns), maps of sum 1"
    )
    photo_graphs: dict[Precision, GraphFile] = Field(
        {}, description="from an upright photo to its labeled faces, with the built-in detector (docs/models.md)"
    )
    parameters: int = Field(description="number of trained parameters")
    temperature: float = Field(gt=0, description="logits are divided by this before softmax; fitted on validation")
    prior_correction: tuple[float, ...] = Field(
        (0.0,) * len(LABELS),
        description="added to the scaled logits if prior is balanced; fitted on validation",
    )
    confidence_threshold: float = Field(
        ge=0, le=1, description="top probability below which the label is uncertain; chosen on validation"
    )
    agreement: Agreement | None = Field(None, description="what people would say, if the split has votes")
    commit: str = Field(description="commit of this project that trained it")
    license: str = Field(description="terms of the weights, and of the data they were trained on")
    files: dict[FileName, Sha256] = Field(description="every other file of the folder except manifest.json")

    @model_validator(mode="after")
    def _one_per_label(self) -> Self:
        if len(self.prior_correction) != len(self.labels):
            raise ValueError(f"prior_correction {self.prior_correction}: not one per label")
        if self.agreement is not None and len(self.agreement.offsets) != len(self.labels):
            raise ValueError(f"agreement.offsets {self.agreement.offsets}: not one per label")
        return self

    def offsets(self, prior: Prior) -> tuple[float, ...]:
        """Numbers added to the scaled logits, by label."""
        return self.prior_correction if prior == "balanced" else (0.0,) * len(self.labels)

    def hashes(self) -> dict[str, Sha256]:
        """Hash of every file of the folder except manifest.json, by name."""
        graphs = (*self.graphs.values(), *self.photo_graphs.values())
        return self.files | {graph.file: graph.sha256 for graph in graphs}

    def probabilities(self, logits: Array, prior: Prior) -> Array:
        """Calibrated probabilities (N, K) float32 of a graph's logits; balanced corrects for rare classes."""
        return np.asarray(softmax(logits, self.temperature, self.offsets(prior)), np.float32)

    def votes(self, probabilities: Array, prior: Prior) -> Array:
        """Expected shares of votes (N, K) float32 of calibrated probabilities; (N, 0) without `agreement`."""
        if self.agreement is None:
            return np.empty((len(probabilities), 0), np.float32)
        return expected_votes(probabilities, self.offsets(prior), self.agreement.temperature, self.agreement.offsets)

    def graph(self, precision: Precision) -> GraphFile:
        """Return the graph of one precision. Raises: ArtifactError, listing the graphs."""
        try:
            return self.graphs[precision]
        except KeyError:
            have = ", ".join(sorted(self.graphs))
            raise ArtifactError(f"artifact {self.name}: no {precision} graph, it has {have}") from None


class DetectorManifest(StrictModel):
    """What serving reads of the `manifest.json` of a face detector; the rest is for people."""

    model_config = ConfigDict(extra="ignore")

    name: str = Field(description="folder name: <arch>.<tag>")
    kind: Literal["face_detector"]
    graph: GraphFile
    score_threshold: float = Field(gt=0, lt=1, description="minimum score of a face")
    files: dict[FileName, Sha256] = Field(description="all other files except manifest.json")


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def difference(path: Path, sha256: str) -> str:
    """Why a file is not the one with this hash; empty if it is."""
    try:
        actual = sha256_of(path)
    except OSError as error:
        return f"cannot read {path} ({error.strerror})"
    if actual == sha256:
        return ""
    return f"{path} has sha256 {actual[:12]}..., expected {sha256[:12]}.... The file is damaged or was replaced"


def artifact_dir(model: str | os.PathLike[str] | None) -> Path:
    """Folder of a model.

    A string is `fast` (the default), the name of a released artifact or the end of only one (`v3`), or else a folder.
    So a folder `fast` in the current one needs `./fast`. A path is a folder.
    Raises: ArtifactError, listing the names.
    """
    name = DEFAULT_NAME if model is None else model
    if not isinstance(name, str):
        return Path(name)
    if name == DEFAULT_NAME:
        return _pointed(POINTER, f"model {name!r}")
    names = [folder.name for folder in classifier_dirs(ARTIFACTS_DIR)]
    ends = [known for known in names if known.endswith((f".{name}", f"_{name}"))]
    if name in names or len(ends) == 1:
        return ARTIFACTS_DIR / (name if name in names else ends[0])
    folder = Path(name)
    if len(folder.parts) > 1 or folder.is_dir():
        return folder
    raise ArtifactError(f"model {name!r}: not an artifact folder, and not one of {', '.join([DEFAULT_NAME, *names])}")


def default_detector_dir() -> Path:
    """Folder of the built-in detector. Raises: ArtifactError."""
    return _pointed(_DETECTOR_POINTER, "built-in detector")


def _pointed(pointer: str, what: str) -> Path:
    """Folder of the artifact that a file beside the artifacts names. Raises: ArtifactError."""
    try:
        return ARTIFACTS_DIR / (ARTIFACTS_DIR / pointer).read_text(encoding="utf-8").strip()
    except OSError as error:
        names = ", ".join(folder.name for folder in classifier_dirs(ARTIFACTS_DIR))
        raise ArtifactError(
            f"{what}: not in this release, cannot read {ARTIFACTS_DIR / pointer} ({error.strerror}). It has: {names}"
        ) from error


def classifier_dirs(artifacts_dir: Path) -> list[Path]:
    """Folders of the artifacts that classify, by name; the manifest of a detector states its kind."""
    manifests = sorted(artifacts_dir.glob(f"*/{MANIFEST_NAME}"))
    return [path.parent for path in manifests if b'"kind": "face_detector"' not in path.read_bytes()]


def read_manifest(folder: Path) -> Manifest:
    """Parse `manifest.json` and check that this build can serve it. Raises: ArtifactError."""
    manifest = _parse(folder, Manifest)
    if manifest.contract_id != contract_id():
        raise ArtifactError(
            f"artifact {manifest.name}: contract {manifest.contract_id}, this build {contract_id()}. "
            f"Re-export it, or check out commit {manifest.commit}."
        )
    return manifest


def _parse(folder: Path, schema: type[M]) -> M:
    """Parse `manifest.json` of a classifier or a detector. Raises: ArtifactError."""
    path = folder / MANIFEST_NAME
    try:
        return schema.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ArtifactError(
            f"artifact {folder.name}: cannot read {path} ({error.strerror}). If it is a training run, export it first."
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        where, problem = ".".join(str(part) for part in first["loc"]), first["msg"]
        if first["type"] == "extra_forbidden":
            problem = "not known to this version. Export the model again, or use the version that wrote it"
        raise ArtifactError(f"artifact {folder.name}: invalid manifest {path}: {where}: {problem}") from error


def read_report(folder: Path) -> dict[str, Any]:
    """Origin and measurements of an artifact, for people and training; empty without a report. Raises: ArtifactError.

    Keys: head, recipe; data, learned_from, weights_from, weight_terms; scores by precision, one per split and prior;
    agreement, if the split has votes.
    """
    path = folder / REPORT_NAME
    try:
        report: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}
    except (OSError, ValueError) as error:
        raise ArtifactError(f"artifact {folder.name}: cannot read {path} ({error})") from error
    return report


def scores_of(folder: Path, precision: str = "fp32") -> list[dict[str, Any]]:
    """Scores of the graph of one precision by split and prior, or else of the fp32 graph. Raises: ArtifactError."""
    by_precision: dict[str, list[dict[str, Any]]] = read_report(folder).get("scores", {})
    return by_precision.get(precision) or by_precision.get("fp32", [])


def load_artifact(folder: Path) -> Manifest:
    """Read the manifest and verify all files. Raises: ArtifactError, naming the file that differs."""
    manifest = read_manifest(folder)
    verify_files(folder, manifest.hashes())
    return manifest


def load_detector(folder: Path) -> DetectorManifest:
    """Read a detector's manifest and verify all files. Raises: ArtifactError, naming the file that differs."""
    manifest = _parse(folder, DetectorManifest)
    verify_files(folder, manifest.files | {manifest.graph.file: manifest.graph.sha256})
    return manifest


def verify_files(folder: Path, expected: dict[str, str]) -> None:
    """Compare an artifact's files with their sha256. Raises: ArtifactError, naming the file that differs."""
    for name, sha256 in sorted(expected.items()):
        if found := difference(folder / name, sha256):
            raise ArtifactError(f"artifact {folder.name}: {found}: restore it, or export the model again.")


def write_manifest(folder: Path, manifest: StrictModel) -> None:
    """Write `manifest.json`, atomically."""
    write_atomic(folder / MANIFEST_NAME, manifest.model_dump_json(indent=2) + "\n")
