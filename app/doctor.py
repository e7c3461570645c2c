"""Is this installation sound? Versions, providers that really run a node, detector, model: proven, not assumed.

python -m app doctor
"""

import importlib.metadata
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console

from app import VERSION
from app.classify import Classifier, create_classifier
from app.detect import create_detector, detector_names
from app.detect.weights import find_yunet
from app.errors import MienError
from app.providers import CPU, CUDA, cuda_obstacle
from app.service import fallback
from app.settings import Settings, load_settings
from data.contract import CROP_PX, contract_id
from models.manifest import ARTEFACTS_DIR, ArtefactError, default_artefact_dir, load_artefact

_PACKAGES: Final = ("numpy", "opencv-python", "pillow", "onnxruntime-gpu", "onnxruntime", "fastapi", "pydantic")
_EXPECTED: Final = (MienError, ArtefactError, OSError)


class _Sheet:
    """Lines of the examination; remembers whether any was bad."""

    def __init__(self) -> None:
        self.sound = True
        self._console = Console()

    def line(self, name: str, text: str, *, good: bool | None = None) -> None:
        """Print one finding: good, bad, or (None) a mere fact."""
        self.sound = self.sound and good is not False
        mark = {True: "[green]ok[/]  ", False: "[red]bad[/] ", None: "    "}[good]
        self._console.print(mark, end="")
        self._console.print(f"{name:<12} {text}", highlight=False, markup=False, soft_wrap=True)

    def attempt(self, name: str, find_out: Callable[[], str]) -> None:
        """Print what a check says, or why it failed."""
        try:
            self.line(name, find_out(), good=True)
        except _EXPECTED as error:
            self.line(name, str(error), good=False)


def examine(overrides: dict[str, Any]) -> bool:
    """Print the examination; returns whether all is sound."""
    sheet = _Sheet()
    sheet.line("mien", f"{VERSION}, crop contract {contract_id()}")
    sheet.line("python", f"{platform.python_version()} on {platform.platform()}")
    sheet.line("packages", ", ".join(_versions()))
    try:
        settings = load_settings(**overrides)
    except MienError as error:
        sheet.line("settings", str(error), good=False)
        return False
    sheet.attempt("detector", lambda: _detector(settings))
    sheet.attempt("model", lambda: _model(settings))
    sheet.attempt("device", lambda: _device(settings))
    return sheet.sound


def _versions() -> list[str]:
    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _detector(settings: Settings) -> str:
    """Build the detector and let it look at a picture."""
    detector = create_detector(settings)
    detector.detect(np.zeros((120, 160, 3), np.uint8))
    if detector.name == "yunet":
        return f"yunet, verified file {find_yunet(settings.models_dir)}"
    fallback = settings.detector == "auto"
    return f"{detector.name}, which comes with OpenCV" + (
        "; YuNet is better: run `mien models pull`, or set MIEN_MODELS_DIR" if fallback else ""
    )


def _model(settings: Settings) -> str:
    folder = settings.model or default_artefact_dir()
    manifest = load_artefact(folder)
    kind = "given" if settings.model else "released default"
    return f"{manifest.name} ({kind}), every file has its sha256; {manifest.parameters:,} parameters; {folder}"


def _device(settings: Settings) -> str:
    """Run the model; say which providers ran nodes, and why CUDA did not if it did not."""
    classifier: Classifier = create_classifier(settings)
    rows = classifier.classify(np.zeros((2, CROP_PX, CROP_PX, 3), np.uint8))
    if rows.shape != (2, 7) or not np.allclose(rows.sum(axis=1), 1.0, atol=1e-4):
        raise ArtefactError(f"the model answered {rows.shape} with sums {rows.sum(axis=1)}: expected (2, 7), each 1")
    text = f"{classifier.provider} runs the model in {classifier.precision}"
    if classifier.provider == CPU:
        obstacle = fallback(classifier, settings) or cuda_obstacle()
        text += f"; {CUDA}: {obstacle}" if obstacle else f"; {CUDA} was not asked for"
    return text


def list_models() -> None:
    """Print the released artefacts, with the default marked, and the detectors."""
    console = Console()
    default = _default_name()
    folders = sorted(path.parent for path in ARTEFACTS_DIR.glob("*/manifest.json"))
    if not folders:
        console.print(f"no artefact in {ARTEFACTS_DIR}", highlight=False)
    for folder in folders:
        mark = "* " if folder.name == default else "  "
        console.print(f"{mark}{folder.name:<40} {_about(folder)}", highlight=False, markup=False, soft_wrap=True)
    yunet = find_yunet(load_settings().models_dir)
    for name in detector_names():
        where = "comes with OpenCV" if name != "yunet" else str(yunet or "not here: run `mien models pull`")
        console.print(f"  {'detector ' + name:<40} {where}", highlight=False, markup=False, soft_wrap=True)


def _default_name() -> str:
    try:
        return default_artefact_dir().name
    except ArtefactError:
        return ""


def _about(folder: Path) -> str:
    try:
        manifest = load_artefact(folder)
    except ArtefactError as error:
        return str(error)
    scores = ", ".join(f"{one.accuracy.value:.1%} on {one.data} {one.split}" for one in manifest.metrics)
    return f"{', '.join(manifest.graphs)}; {scores or 'no metrics'}"


def verify_models(folder: Path | None) -> bool:
    """Verify one artefact, or all and the detector; prints a line each; returns whether all are sound."""
    sheet = _Sheet()
    folders = [folder] if folder else sorted(path.parent for path in ARTEFACTS_DIR.glob("*/manifest.json"))
    if not folders:
        sheet.line("artefacts", f"none in {ARTEFACTS_DIR}", good=False)
    for one in folders:
        sheet.attempt("artefact", lambda one=one: _verified(one))  # type: ignore[misc]  # bound at once
    if folder is None:
        sheet.attempt("yunet", _verified_yunet)
    return sheet.sound


def _verified(folder: Path) -> str:
    manifest = load_artefact(folder)
    return f"{manifest.name}: {len(manifest.files) + len(manifest.graphs)} files have their sha256"


def _verified_yunet() -> str:
    path = find_yunet(load_settings().models_dir)
    return f"{path} has its sha256" if path else "not here; Haar cascades stand in. Run `mien models pull`"
