"""Checks of an installation: versions, settings, detector, model and device.

mien doctor
"""

import contextlib
import importlib.metadata
import importlib.util
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import typer

from mien.app import VERSION
from mien.app.errors import ProviderUnavailable
from mien.app.inference.classifier import CPU, CUDA, Classifier, both_wheels, cuda_unavailable_reason
from mien.app.inference.detector_files import DETECTORS, create_detector, detector_source
from mien.app.service.api import fallback
from mien.app.settings import Settings, load_settings
from mien.data.contract import CROP_PX, contract_id
from mien.data.contract.pixels import formats
from mien.data.errors import MienError
from mien.models.manifest import (
    ARTIFACTS_DIR,
    DEFAULT_NAME,
    ArtifactError,
    artifact_dir,
    classifier_dirs,
    load_artifact,
    scores_of,
)

_PACKAGES: Final = ("numpy", "opencv-python", "pillow", "onnxruntime-gpu", "onnxruntime", "fastapi", "pydantic")


def _line(name: str, text: str, *, good: bool | None = None) -> bool:
    """Print one line: passed, failed, or (None) information; returns False if it failed."""
    mark = {True: typer.style("ok    ", "green"), False: typer.style("failed", "red"), None: "      "}[good]
    typer.echo(f"{mark} {name:<15} {text}")
    return good is not False


def _check(name: str, run: Callable[..., str], *arguments: object) -> bool:
    """Print the result of a check, or its error; returns whether it passed."""
    try:
        return _line(name, run(*arguments), good=True)
    except MienError as error:
        return _line(name, str(error), good=False)


def examine(overrides: dict[str, Any]) -> bool:
    """Run all checks; returns whether all passed."""
    _line("mien", f"{VERSION}, crop contract {contract_id()}")
    _line("python", f"{platform.python_version()} on {platform.platform()}")
    passed = [_check("packages", _packages)]
    missing = importlib.util.find_spec("pillow_heif") is None
    _line("formats", ", ".join(formats()) + ("; HEIC: `pip install pillow-heif`" if missing else ""))
    try:
        settings = load_settings(**overrides)
    except MienError as error:
        return _line("settings", str(error), good=False)
    passed += [_check(check.__name__.strip("_"), check, settings) for check in (_detector, _model, _device)]
    return all(passed)


def _packages() -> str:
    """Versions of packages. Raises: ProviderUnavailable, if two wheels of ONNX Runtime are installed."""
    if reason := both_wheels():
        raise ProviderUnavailable(reason)
    versions = []
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{name} {importlib.metadata.version(name)}")
    return ", ".join(versions)


def _detector(settings: Settings) -> str:
    """Build the detector and run it once."""
    detector = create_detector(settings)
    detector.detect(np.zeros((120, 160, 3), np.uint8))
    others = [name for name in DETECTORS if name != detector.name and settings.detector == "auto"]
    sources = (f"{name}: {detector_source(name, settings)}" for name in (detector.name, *others))
    return "; ".join(sources)


def _model(settings: Settings) -> str:
    folder = artifact_dir(settings.model)
    manifest = load_artifact(folder)
    kind = "chosen" if settings.model else "default"
    return f"{manifest.name} ({kind}), all hashes match; {manifest.parameters:,} parameters; {folder}"


def _device(settings: Settings) -> str:
    """Run the model; returns its provider, and the reason if CUDA is not used."""
    classifier = Classifier(settings)
    rows = classifier.classify(np.zeros((2, CROP_PX, CROP_PX, 3), np.uint8))
    expected = (2, len(classifier.manifest.labels))
    if rows.shape != expected or not np.allclose(rows.sum(axis=1), 1.0, atol=1e-4):
        raise ArtifactError(
            f"the model returned {rows.shape} with sums {rows.sum(axis=1)}: expected {expected} with sums of 1"
        )
    text = f"the model runs on {classifier.provider} in {classifier.precision}"
    if classifier.provider == CPU:
        reason = fallback(classifier, settings) or cuda_unavailable_reason()
        text += f"; {CUDA}: {reason}" if reason else f"; {CUDA} was not requested"
    return text


def list_models() -> bool:
    """Print the released artifacts, with their short names, and the detectors; returns whether all hashes match."""
    names: dict[str, str] = {}
    with contextlib.suppress(ArtifactError):
        names[artifact_dir(None).name] = DEFAULT_NAME
    folders = classifier_dirs(ARTIFACTS_DIR)
    passed = [_check(names.get(folder.name, "-"), _about, folder) for folder in folders]
    if not folders:
        passed.append(_line("artifacts", f"none in {ARTIFACTS_DIR}", good=False))
    settings = load_settings()
    passed += [_check(f"detector {name}", detector_source, name, settings) for name in DETECTORS]
    return all(passed)


def _about(folder: Path) -> str:
    manifest = load_artifact(folder)
    scores = ", ".join(
        f"{score['accuracy']['value']:.1%} on {score['data']} {score['split']} ({score['prior']})"
        for score in scores_of(folder)
    )
    return f"{folder.name}: {', '.join(manifest.graphs)}; {scores or 'no metrics'}"
