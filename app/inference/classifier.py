"""Expression classifier: a verified artifact in ONNX Runtime that returns calibrated probabilities.

The graph normalizes its input. The classifier applies softmax with the temperature and correction of the manifest.
"""

import logging
from pathlib import Path
from typing import Final, Literal

import numpy as np
import platformdirs

from mien.app.errors import ProviderUnavailable
from mien.app.inference.runtime.cuda_batches import SIZES, FixedBatches
from mien.app.inference.runtime.int8 import BATCH, MIN_SPEEDUP, has_int8_instructions, speedup
from mien.app.inference.runtime.sessions import CPU, CUDA, Session, open_session, tensorrt_options
from mien.app.inference.runtime.triton import MAX_BATCH
from mien.app.inference.runtime.triton_client import TRITON, TritonModel
from mien.app.settings import Device, Precision, Settings
from mien.data.contract import CROP_PX, Array
from mien.models.manifest import GraphOutput, Prior, Relevance, artifact_dir, load_artifact

CPU_BATCH: Final = 16  # larger ones are not faster per face, and take 2.6 MB per face and thread

_log = logging.getLogger(__name__)


class Classifier:
    """Calibrated probabilities per crop, one per label of the manifest; thread-safe."""

    _chunk: int = CPU_BATCH

    def __init__(
        self,
        folder: Path,
        *,
        device: Device,
        precision: Precision = "auto",
        threads: int = 0,
        cuda_graphs: bool = True,
        engine_cache: Path | None = None,
        prior: Prior = "balanced",
    ) -> None:
        """Verify the artifact in `folder` and open its graph.

        Args:
            folder: the artifact.
            device: `cuda` and `tensorrt` fail if they cannot run the graph; `auto` falls back to the CPU.
            precision: `auto` is fp16 on a GPU; on a CPU int8 where that is at least 1.3 times as fast, else fp32.
            threads: threads per inference; 0 uses all available cores.
            cuda_graphs: whether a GPU may replay batches as CUDA graphs if that is faster.
            engine_cache: folder of TensorRT's engines; the user cache by default.
            prior: `balanced` applies the manifest's correction for rare expressions.
        Raises: ArtifactError, if a file is damaged or the precision is missing; ProviderUnavailable.
        """
        self.folder, self.manifest, self.prior = folder, load_artifact(folder), prior
        self._threads, self._engine_cache = threads, engine_cache
        self._session, self.precision = self._open(device, precision)
        self.provider = self._session.provider
        self._batches = self._fixed_batches(cuda_graphs) if self._session.device == "cuda" else None
        self.max_batch = CPU_BATCH if self._batches is None else self._batches.max_batch

    def _open(self, device: Device, precision: Precision) -> tuple[Session, str]:
        if precision == "int8":
            if device in ("cuda", "tensorrt"):
                raise ProviderUnavailable("precision int8 is for CPUs: set MIEN_DEVICE=cpu or MIEN_PRECISION=auto")
            device = "cpu"
        if precision != "auto":
            return self._open_graph(precision, device), precision
        if device != "cpu" and "fp16" in self.manifest.graphs:
            session = self._open_graph("fp16", device)
            if session.device == "cuda":
                return session, "fp16"
            device = "cpu"  # the fallback is logged already; fp16 is slower than fp32 on a CPU
        return self._faster(self._open_graph("fp32", device))

    def _faster(self, fp32: Session) -> tuple[Session, str]:
        """The int8 graph instead of fp32's on a CPU that gains from it."""
        if fp32.provider != CPU or "int8" not in self.manifest.graphs or not has_int8_instructions():
            return fp32, "fp32"
        int8 = self._open_graph("int8", "cpu")
        feed = {self.manifest.input.name: np.zeros((BATCH, CROP_PX, CROP_PX, 3), np.uint8)}
        gain = speedup(fp32.inference, int8.inference, feed)
        _log.info("precision auto: int8 is %.1f times as fast as fp32 on this CPU", gain)
        return (int8, "int8") if gain >= MIN_SPEEDUP else (fp32, "fp32")

    def _open_graph(self, name: Literal["fp32", "fp16", "int8"], on: Device, *, captured: bool = False) -> Session:
        options = {"enable_cuda_graph": "1"} if captured else {}
        if on == "tensorrt":
            cache = self._engine_cache or platformdirs.user_cache_path("mien", appauthor=False) / "tensorrt"
            shape = {self.manifest.input.name: (CROP_PX, CROP_PX, 3)}
            options = tensorrt_options(cache, shape, largest=max(SIZES), half=name == "fp16")
        warm_up = {self.manifest.input.name: np.zeros((1, CROP_PX, CROP_PX, 3), np.uint8)}
        graph = self.folder / self.manifest.graph(name).file
        return open_session(graph, on, threads=self._threads, warm_up=warm_up, options=options)

    def _fixed_batches(self, cuda_graphs: bool) -> FixedBatches:
        captured = None
        if cuda_graphs and self.provider == CUDA:
            try:  # a second session: one that captures cannot run anything else
                name: Literal["fp32", "fp16"] = "fp16" if self.precision == "fp16" else "fp32"
                captured = self._open_graph(name, "cuda", captured=True).inference
            except ProviderUnavailable as error:
                _log.info("CUDA graphs are not used: %s", error)
        return FixedBatches(
            self._session.inference,
            device=self._session.device,
            input_name=self.manifest.input.name,
            output_name=self.manifest.output.name,
            captured=captured,
        )

    @property
    def graph_sizes(self) -> tuple[int, ...]:
        """Batch sizes that run as CUDA graphs; empty on a CPU."""
        return () if self._batches is None else self._batches.captured_sizes

    def classify(self, crops: Array) -> Array:
        """Classify crops.

        Args:
            crops: (N, 112, 112, 3) uint8, RGB, from `data.contract.align` or `fit`; N may be 0.
        Returns: (N, 7 or 8) float32, calibrated probabilities in the order of the manifest's labels; rows sum to 1.
        Raises: ValueError, for a wrong shape or dtype.
        """
        if crops.shape[1:] != (CROP_PX, CROP_PX, 3) or crops.dtype != np.uint8:
            raise ValueError(f"crops {crops.shape} {crops.dtype}: expected (N, {CROP_PX}, {CROP_PX}, 3) uint8")
        logits = self._run(crops, self.manifest.output) if self._batches is None else self._batches.run(crops)
        return self.manifest.probabilities(logits, self.prior)

    def explain(self, crops: Array) -> Array:
        """Attention maps (N, rows, columns) float32 of (N, 112, 112, 3) uint8 crops; each map sums to 1.

        Only of an artifact whose manifest has `explain`.
        """
        assert self.manifest.explain is not None, "checked before the images of a request"  # noqa: S101
        return self._run(crops, self.manifest.explain)

    def _run(self, crops: Array, output: GraphOutput | Relevance) -> Array:
        """One output of the graph for all crops, in batches."""
        parts = [np.empty((0, *output.shape[1:]), np.float32)]
        for start in range(0, len(crops), self._chunk):
            feed = {self.manifest.input.name: np.ascontiguousarray(crops[start : start + self._chunk])}
            parts += self._session.inference.run([output.name], feed)
        return np.concatenate(parts)


class TritonClassifier(Classifier):
    """A classifier whose graph runs on a Triton server."""

    _chunk = MAX_BATCH

    def __init__(self, folder: Path, url: str, *, timeout_s: float, prior: Prior = "balanced") -> None:
        """Verify the artifact in `folder`, and connect to a server with its graph.

        Args: see `Classifier` and `TritonModel`. Raises: ArtifactError; SettingsError; ProviderUnavailable.
        """
        self.folder, self.manifest, self.prior = folder, load_artifact(folder), prior
        self._session = Session(TritonModel(url, self.manifest, timeout_s=timeout_s), "triton", {TRITON: 1})
        self.provider, self.precision = TRITON, "remote"
        self.max_batch, self._batches = MAX_BATCH, None


def with_precision(settings: Settings, precision: str, provider: str) -> Settings:
    """Settings that keep a precision which `auto` has chosen on a CPU, instead of measuring again."""
    if settings.precision != "auto" or settings.device not in ("auto", "cpu") or provider != CPU:
        return settings
    return settings.model_copy(update={"precision": precision})


def create_classifier(settings: Settings) -> Classifier:
    """Open the artifact named in the settings, or the default one. Raises: ArtifactError, ProviderUnavailable."""
    folder = artifact_dir(settings.model).resolve()  # a link may be switched to the next model meanwhile
    if settings.triton is not None:
        return TritonClassifier(folder, settings.triton, timeout_s=settings.triton_timeout_s, prior=settings.prior)
    return Classifier(
        folder,
        device=settings.device,
        precision=settings.precision,
        threads=settings.threads,
        cuda_graphs=settings.cuda_graphs,
        engine_cache=settings.tensorrt_cache,
        prior=settings.prior,
    )
