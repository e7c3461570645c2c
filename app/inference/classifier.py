"""Expression classifier: a verified artifact in ONNX Runtime that returns calibrated probabilities.

The graph normalizes its input. The classifier applies softmax with the temperature and correction of the manifest.
"""

import logging
from collections.abc import Callable
from typing import Final, Literal, TypeVar

import numpy as np

from mien.app.errors import ProviderUnavailable
from mien.app.inference.batcher import Batcher
from mien.app.inference.runtime.cuda_batches import PLAIN_SIZE, FixedBatches, padded
from mien.app.inference.runtime.int8 import BATCH, MIN_SPEEDUP, has_int8_instructions, speedup
from mien.app.inference.runtime.sessions import CPU, Session, open_session
from mien.app.settings import Device, InferenceSettings
from mien.data.contract import CROP_PX, Array
from mien.models.manifest import GraphOutput, Relevance, artifact_dir, load_artifact

CPU_BATCH: Final = 16  # larger ones are not faster per face, and take 2.6 MB per face and thread

S = TypeVar("S", bound=InferenceSettings)
_log = logging.getLogger(__name__)


class Classifier:
    """Calibrated probabilities per crop, one per label of the manifest; thread-safe.

    On a GPU, the crops of all threads that wait at the same time share an inference. On a CPU, every thread runs its
    own: photos in parallel have a higher throughput and shorter waits there.

    Attributes:
        on_batch: called with the number of faces of each inference, if set.
    """

    def __init__(self, settings: InferenceSettings) -> None:
        """Verify the artifact named in the settings, or the default one, and open its graph.

        Raises: ArtifactError, if a file is damaged or the precision is missing; ProviderUnavailable.
        """
        self.folder = artifact_dir(settings.model).resolve()  # a link may be switched to the next model meanwhile
        self.manifest, self.prior = load_artifact(self.folder), settings.prior
        self.on_batch: Callable[[int], None] | None = None
        self._settings = settings
        self._session, self.precision = self._open()
        self.provider = self._session.provider
        self._batches = self._fixed_batches() if self._session.device == "cuda" else None
        self.max_batch = CPU_BATCH if self._batches is None else settings.max_batch or self._batches.max_batch
        self._infer = self._logits if self._batches is None else Batcher(self._logits, max_faces=self.max_batch)

    def _open(self) -> tuple[Session, str]:
        device, precision = self._settings.device, self._settings.precision
        if precision == "int8":
            if device == "cuda":
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
        warm_up = {self.manifest.input.name: np.zeros((1, CROP_PX, CROP_PX, 3), np.uint8)}
        graph = self.folder / self.manifest.graph(name).file
        return open_session(graph, on, threads=self._settings.threads, warm_up=warm_up, options=options)

    def _fixed_batches(self) -> FixedBatches:
        captured = None
        if self._settings.cuda_graphs:
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
        Returns: (N, K) float32, calibrated probabilities in the order of the manifest's labels; rows sum to 1.
        Raises: ValueError, for a wrong shape or dtype.
        """
        if crops.shape[1:] != (CROP_PX, CROP_PX, 3) or crops.dtype != np.uint8:
            raise ValueError(f"crops {crops.shape} {crops.dtype}: expected (N, {CROP_PX}, {CROP_PX}, 3) uint8")
        if not len(crops):
            return np.empty((0, len(self.manifest.labels)), np.float32)
        return self.manifest.probabilities(self._infer(crops), self.prior)

    def votes(self, probabilities: Array) -> Array:
        """Expected shares of votes (N, 7 or 8) float32 of probabilities from `classify`; (N, 0) if unknown."""
        return self.manifest.votes(probabilities, self.prior)

    def explain(self, crops: Array) -> Array:
        """Attention maps (N, rows, columns) float32 of (N, 112, 112, 3) uint8 crops; each map sums to 1.

        Only of an artifact whose manifest has `explain`.
        """
        assert self.manifest.explain is not None, "checked before the images of a request"  # noqa: S101
        return self._run(crops, self.manifest.explain)

    def _logits(self, crops: Array) -> Array:
        logits = self._run(crops, self.manifest.output) if self._batches is None else self._batches.run(crops)
        if self.on_batch is not None:
            self.on_batch(len(crops))
        return logits

    def _run(self, crops: Array, output: GraphOutput | Relevance) -> Array:
        """One output of the graph for all crops, in batches."""
        parts = [np.empty((0, *output.shape[1:]), np.float32)]
        step = CPU_BATCH if self._batches is None else PLAIN_SIZE
        for start in range(0, len(crops), step):
            batch = crops[start : start + step]
            feed = {self.manifest.input.name: np.ascontiguousarray(batch) if self._batches is None else padded(batch)}
            (rows,) = self._session.inference.run([output.name], feed)
            parts.append(rows[: len(batch)])
        return np.concatenate(parts)


def with_precision(settings: S, precision: str, provider: str) -> S:
    """Settings that keep a precision which `auto` has chosen on a CPU, instead of measuring again."""
    if settings.precision != "auto" or settings.device not in ("auto", "cpu") or provider != CPU:
        return settings
    return settings.model_copy(update={"precision": precision})
