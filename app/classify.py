"""Which expression does a crop show? ONNX Runtime over a verified artefact; calibrated probabilities out.

Normalisation is inside the graph. Here the logits are divided by the manifest's temperature and go through softmax.
"""

import logging
from pathlib import Path
from typing import Final, Literal

import numpy as np
import platformdirs

from app.buckets import SIZES, BucketRunner
from app.errors import InvalidRequest, ProviderUnavailable
from app.providers import CUDA, Session, open_session, tensorrt_options
from app.settings import Device, Precision, Settings
from data.contract import CROP_PX, LABELS, Array
from models.manifest import Manifest, default_artefact_dir, load_artefact

CPU_BATCH: Final = 64

_log = logging.getLogger(__name__)


class Classifier:
    """Seven calibrated probabilities per crop; safe to call from several threads at once."""

    folder: Path
    manifest: Manifest
    provider: str
    precision: str
    max_batch: int

    def __init__(
        self,
        folder: Path,
        *,
        device: Device,
        precision: Precision = "auto",
        threads: int = 0,
        cuda_graphs: bool = True,
        engine_cache: Path | None = None,
    ) -> None:
        """Verify the artefact in `folder` and open its graph.

        `cuda_graphs` lets a GPU replay batches where that is faster; `engine_cache` is TensorRT's folder, in the user
        cache when not given.

        Raises: ArtefactError, where a byte of it differs or it has no such precision; ProviderUnavailable, where
            `cuda` or `tensorrt` cannot run it.
        """
        self.folder, self.manifest = folder, load_artefact(folder)
        self._threads, self._engine_cache = threads, engine_cache
        self._session, self.precision = self._open(device, precision)
        self.provider = self._session.provider
        self._buckets = self._bound(cuda_graphs) if self._session.device == "cuda" else None
        self.max_batch = CPU_BATCH if self._buckets is None else self._buckets.max_batch

    def _open(self, device: Device, precision: Precision) -> tuple[Session, str]:
        if precision == "int8":
            if device in ("cuda", "tensorrt"):
                raise ProviderUnavailable("precision int8 is for CPUs: choose MIEN_DEVICE=cpu, or MIEN_PRECISION=auto")
            device = "cpu"
        if precision != "auto":
            return self._opened(precision, device), precision
        if device != "cpu" and "fp16" in self.manifest.graphs:
            session = self._opened("fp16", device)
            if session.device == "cuda":
                return session, "fp16"
            device = "cpu"  # the fall-back has been logged; half precision is slower than fp32 on a CPU
        return self._opened("fp32", device), "fp32"

    def _opened(self, name: Literal["fp32", "fp16", "int8"], on: Device, *, captured: bool = False) -> Session:
        options = {"enable_cuda_graph": "1"} if captured else {}
        if on == "tensorrt":
            cache = self._engine_cache or platformdirs.user_cache_path("mien", appauthor=False) / "tensorrt"
            shape = {self.manifest.input.name: (CROP_PX, CROP_PX, 3)}
            options = tensorrt_options(cache, shape, largest=max(SIZES), half=name == "fp16")
        warm_up = {self.manifest.input.name: np.zeros((1, CROP_PX, CROP_PX, 3), np.uint8)}
        graph = self.folder / self.manifest.graph(name).file
        return open_session(graph, on, threads=self._threads, warm_up=warm_up, options=options)

    def _bound(self, cuda_graphs: bool) -> BucketRunner:
        captured = self._captured() if cuda_graphs and self.provider == CUDA else None
        return BucketRunner(
            self._session.inference,
            device=self._session.device,
            input_name=self.manifest.input.name,
            output_name=self.manifest.output.name,
            captured=None if captured is None else captured.inference,
        )

    def _captured(self) -> Session | None:
        """A second session, for CUDA graphs alone: one that captures may not be used in any other way meanwhile."""
        name: Literal["fp32", "fp16"] = "fp16" if self.precision == "fp16" else "fp32"
        try:
            return self._opened(name, "cuda", captured=True)
        except ProviderUnavailable as error:
            _log.info("CUDA graphs are not used: %s", error)
            return None

    @property
    def graph_sizes(self) -> tuple[int, ...]:
        """Batch sizes that run as CUDA graphs; none on a CPU."""
        return () if self._buckets is None else self._buckets.captured_sizes

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
    return Classifier(
        folder,
        device=settings.device,
        precision=settings.precision,
        threads=settings.threads,
        cuda_graphs=settings.cuda_graphs,
        engine_cache=settings.tensorrt_cache,
    )
