"""What a released artefact says of itself, and the check that every word of it is true.

An artefact is a folder `models/artefacts/<arch>.<tag>/` with ONNX graphs, `manifest.json` and `card.md`. Serving loads
nothing before `load_artefact` has compared every file with its sha256 and the contract with this build's.
"""

import hashlib
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from data.contract import CROP_PX, LABELS, contract_id

ARTEFACTS_DIR: Final = Path(__file__).parent / "artefacts"
MANIFEST_NAME: Final = "manifest.json"

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class ArtefactError(Exception):
    """An artefact that cannot be trusted: missing, damaged, or made for another contract."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class GraphInput(_Strict):
    """The graph's only input; the batch dimension is dynamic and written -1."""

    name: str = "crops"
    shape: tuple[int, int, int, int] = (-1, CROP_PX, CROP_PX, 3)
    dtype: Literal["uint8"] = "uint8"
    colour: Literal["RGB"] = "RGB"


class GraphOutput(_Strict):
    """The graph's output: logits before temperature, in the order of `labels`."""

    name: str = "logits"
    shape: tuple[int, int] = (-1, len(LABELS))
    dtype: Literal["float32"] = "float32"


class Relevance(_Strict):
    """The graph's optional second output: where in the crop the answer came from, each map summing to 1."""

    name: str = "relevance"
    shape: tuple[int, int, int]
    dtype: Literal["float32"] = "float32"


class Interval(_Strict):
    """A measured figure with its 95 % interval; fractions from 0 to 1."""

    value: float
    low: float
    high: float


class SplitMetrics(_Strict):
    """What the released graph scored on one split of one data set."""

    data: str
    split: str
    faces: int
    accuracy: Interval
    mean_class_accuracy: Interval
    macro_f1: Interval
    ece: Interval
    recall: dict[str, Interval]


class GraphFile(_Strict):
    """One ONNX graph of the artefact, and what proves its bytes."""

    file: str = Field(pattern=r"^[A-Za-z0-9._-]+\.onnx$")
    sha256: Sha256
    metrics: tuple[SplitMetrics, ...] = Field((), description="what this graph scored, where it is not fp32's score")


class Manifest(_Strict):
    """`manifest.json`; see the field descriptions."""

    name: str = Field(description="folder name: <arch>.<tag>")
    labels: tuple[str, ...] = Field(description="ordered classes of the logits")
    contract_id: str = Field(description="id of the crop and label contract it was trained under")
    input: GraphInput
    output: GraphOutput
    explain: Relevance | None = Field(None, description="attention rollout over the patch grid, where the graph has it")
    graphs: dict[Literal["fp32", "fp16", "int8"], GraphFile]
    opset: int
    head: Literal["class", "distillation", "mean"] = Field(description="which head's logits the graph returns")
    colour: Literal["luminance", "RGB"] = Field(description="what the graph reduces its RGB input to, inside itself")
    parameters: int = Field(description="number of trained parameters")
    temperature: float = Field(gt=0, description="logits are divided by this before softmax; fitted on validation")
    abstain_threshold: float = Field(
        ge=0, le=1, description="top probability below which the label is uncertain; chosen on validation"
    )
    metrics: tuple[SplitMetrics, ...]
    recipe: dict[str, object] = Field(description="the resolved training recipe")
    commit: str = Field(description="commit of this project that trained it")
    data_index_sha256: dict[str, Sha256] = Field(description="hash of each data set's index, by kind")
    teacher_sha256: Sha256 | None = Field(description="hash of the teacher's weights; null without a teacher")
    licence: str = Field(description="terms of the weights, with those of the data they learned from")
    files: dict[str, Sha256] = Field(description="every file of the folder but manifest.json")

    def graph(self, precision: Literal["fp32", "fp16", "int8"]) -> GraphFile:
        """Return the graph of one precision. Raises: ArtefactError, naming those there are."""
        try:
            return self.graphs[precision]
        except KeyError:
            have = ", ".join(sorted(self.graphs))
            raise ArtefactError(f"artefact {self.name}: no {precision} graph, it has {have}") from None


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def default_artefact_dir(artefacts_dir: Path = ARTEFACTS_DIR) -> Path:
    """Folder of the artefact that `models/artefacts/DEFAULT` names. Raises: ArtefactError."""
    pointer = artefacts_dir / "DEFAULT"
    try:
        name = pointer.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ArtefactError(f"no default model: cannot read {pointer} ({error.strerror})") from error
    return artefacts_dir / name


def read_manifest(folder: Path) -> Manifest:
    """Parse `manifest.json` and check that this build can serve it. Raises: ArtefactError."""
    path = folder / MANIFEST_NAME
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ArtefactError(f"artefact {folder.name}: cannot read {path} ({error.strerror})") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ArtefactError(f"artefact {folder.name}: {path} is no manifest: {where}: {first['msg']}") from error
    _check_contract(manifest)
    return manifest


def _check_contract(manifest: Manifest) -> None:
    if manifest.contract_id != contract_id():
        raise ArtefactError(
            f"artefact {manifest.name}: contract {manifest.contract_id}, this build {contract_id()}. "
            f"Export it again with this build, or check out commit {manifest.commit}."
        )
    if manifest.labels != LABELS:
        raise ArtefactError(f"artefact {manifest.name}: labels {manifest.labels}, expected {LABELS}")


def load_artefact(folder: Path) -> Manifest:
    """Read the manifest and compare every file with its sha256. Raises: ArtefactError, naming the file that differs."""
    manifest = read_manifest(folder)
    expected = dict(manifest.files) | {graph.file: graph.sha256 for graph in manifest.graphs.values()}
    for name, sha256 in sorted(expected.items()):
        path = folder / name
        if Path(name).name != name:
            raise ArtefactError(f"artefact {manifest.name}: file name {name!r} leaves its folder")
        try:
            found = sha256_of(path)
        except OSError as error:
            raise ArtefactError(f"artefact {manifest.name}: cannot read {path} ({error.strerror})") from error
        if found != sha256:
            raise ArtefactError(
                f"artefact {manifest.name}: {name} has sha256 {found[:12]}..., the manifest says {sha256[:12]}.... "
                "The file is damaged or was replaced: restore it from the repository."
            )
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `manifest.json`, atomically."""
    temporary = folder / f".{MANIFEST_NAME}.part"
    temporary.write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
    temporary.replace(folder / MANIFEST_NAME)
