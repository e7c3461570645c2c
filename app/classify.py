"""Which expression does a crop show? ONNX Runtime over a verified artefact; calibrated probabilities out.

Normalisation is inside the graph. Here the logits are divided by the manifest's temperature and go through softmax.
"""

from pathlib import Path
from typing import Final, Literal

import numpy as np

from app.buckets import BucketRunner
from app.errors import InvalidRequest, ProviderUnavailable
from app.providers import Session, open_session
from app.settings import Device, Precision, Settings
from data.contract import CROP_PX, LABELS, Array
from models.manifest import Manifest, default_artefact_dir, load_artefact

CPU_BATCH: Final = 64


class Classifier:
    """Seven calibrated probabilities per crop; safe to call from several threads at once."""

    folder: Path
    manifest: Manifest
    provider: str
    precision: str
    max_batch: int

    def __init__(self, folder: Path, *, device: Device, precision: Precision = "auto", threads: int = 0) -> None:
        """Verify the artefact in `folder` and open its graph.

        Raises: ArtefactError, where a byte of it differs or it has no such precision; ProviderUnavailable, where
            `cuda` cannot run it.
        """
        self.folder, self.manifest = folder, load_artefact(folder)
        self._session, self.precision = self._open(folder, device, precision, threads)
        self.provider = self._session.provider
        self._buckets = self._bound() if self._session.device == "cuda" else None
        self.max_batch = CPU_BATCH if self._buckets is None else self._buckets.max_batch

    def _open(self, folder: Path, device: Device, precision: Precision, threads: int) -> tuple[Session, str]:
        warm_up = {self.manifest.input.name: np.zeros((1, CROP_PX, CROP_PX, 3), np.uint8)}

        def opened(name: Literal["fp32", "fp16", "int8"], on: Device) -> Session:
            return open_session(folder / self.manifest.graph(name).file, on, threads=threads, warm_up=warm_up)

        if precision == "int8":
            if device == "cuda":
                raise ProviderUnavailable("precision int8 is for CPUs: choose MIEN_DEVICE=cpu, or MIEN_PRECISION=auto")
            device = "cpu"
        if precision != "auto":
            return opened(precision, device), precision
        if device != "cpu" and "fp16" in self.manifest.graphs:
            session = opened("fp16", device)
            if session.device == "cuda":
                return session, "fp16"
            device = "cpu"  # the fall-back has been logged; half precision is slower than fp32 on a CPU
        return opened("fp32", device), "fp32"

    def _bound(self) -> BucketRunner:
        return BucketRunner(
            self._session.inference,
            device=self._session.device,
            input_name=self.manifest.input.name,
            output_name=self.manifest.output.name,
        )

    def classify(self, crops: Array) -> Array:
        """Classify N crops.

        Args:
            crops: (N, 112, 112, 3) uint8, RGB, as `data.contract.align` or `fit` makes them; N may be 0.
        Returns: (N, 7) float32, calibrated probabilities in the order of `data.contract.LABELS`; rows sum to 1.
        Raises: ValueError, for another shape or type.
        """
        _check(crops)
        return calibrated(self._logits(crops), self.manifest.temperature)

    def explain(self, crops: Array) -> Array:
        """Where in each crop the answer came from: (N, rows, columns) float32 over the patch grid, each summing to 1.

        Takes crops as `classify` does. Raises: InvalidRequest, where the artefact's graph cannot tell.
        """
        output = self.manifest.explain
        if output is None:
            raise InvalidRequest(f"explain: model {self.manifest.name} cannot tell where it looked; leave it out")
        _check(crops)
        parts = [self._part(crops[start : start + CPU_BATCH], output.name) for start in range(0, len(crops), CPU_BATCH)]
        return np.concatenate(parts) if parts else np.empty((0, *output.shape[1:]), np.float32)

    def _logits(self, crops: Array) -> Array:
        if self._buckets is not None:
            return self._buckets.run(crops)
        name = self.manifest.output.name
        parts = [self._part(crops[start : start + CPU_BATCH], name) for start in range(0, len(crops), CPU_BATCH)]
        return np.concatenate(parts) if parts else np.empty((0, len(LABELS)), np.float32)

    def _part(self, crops: Array, output: str) -> Array:
        feed = {self.manifest.input.name: np.ascontiguousarray(crops)}
        values: Array = self._session.inference.run([output], feed)[0]
        return values


def _check(crops: Array) -> None:
    if crops.shape[1:] != (CROP_PX, CROP_PX, 3) or crops.dtype != np.uint8:
        raise ValueError(f"crops {crops.shape} {crops.dtype}: expected (N, {CROP_PX}, {CROP_PX}, 3) uint8")


def calibrated(logits: Array, temperature: float) -> Array:
    """Softmax of logits (N, 7) over the temperature, (N, 7) float32; Guo et al. 2017."""
    scaled = logits.astype(np.float64) / temperature
    powers = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    probabilities: Array = (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)
    return probabilities


def create_classifier(settings: Settings) -> Classifier:
    """Open the artefact that the settings name, or the released default. Raises: as `Classifier`."""
    folder = settings.model or default_artefact_dir()
    return Classifier(folder, device=settings.device, precision=settings.precision, threads=settings.threads)
