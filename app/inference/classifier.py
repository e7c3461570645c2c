"""Expression classifier: a verified artifact in ONNX Runtime that returns calibrated probabilities.

The graph normalizes its input. The classifier applies softmax with the temperature and correction of the manifest.
The second half opens sessions, of detectors too: `onnxruntime.get_available_providers()` lists the providers that a
wheel was built with, on any machine, and a session that cannot load the CUDA libraries silently runs on the CPU. Each
session is therefore run once and checked for the provider that its nodes were assigned to.
"""

import contextlib
import ctypes
import gc
import io
import logging
import os
import platform
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import onnxruntime

from mien.app.cpu_count import cores, cpu_quota
from mien.app.errors import ProviderUnavailable
from mien.app.inference.batcher import Batcher
from mien.app.settings import Device, InferenceSettings
from mien.data.contract import CROP_PX, Array
from mien.models.manifest import CROPS, LOGITS, RELEVANCE, artifact_dir, load_artifact

CPU: Final = "CPUExecutionProvider"
CUDA: Final = "CUDAExecutionProvider"
CPU_BATCH: Final = 16  # Larger batches are not faster per face, and take 2.6 MB per face and thread.
GPU_BATCHES: Final = (1, 32, 256)
# CPU flags of instructions that multiply and add 8-bit integers; without one, int8 may be slower than fp32
# (docs/decisions/0006-int8-on-cpus.md).
_INT8_FLAGS: Final = frozenset({"avx512_vnni", "avx_vnni", "amx_int8", "asimddp"})
_CPU_INFO: Final = Path("/proc/cpuinfo")
_ERRORS_ONLY: Final = 3
_FATAL_ONLY: Final = 4
_CUDA_OPTIONS: Final[dict[str, str]] = {
    # The arena grows by the requested size. The default doubles it, and a service may share its GPU.
    "arena_extend_strategy": "kSameAsRequested",
    "cudnn_conv_algo_search": "HEURISTIC",
    # With TF32, probabilities differ from the CPU's by more than 1e-4; the fast graph is fp16.
    "use_tf32": "0",
}
_REMEDY: Final = (
    "Install the GPU libraries (`pip install 'onnxruntime-gpu[cuda,cudnn]'`) and an NVIDIA driver, or choose "
    "MIEN_DEVICE=auto or cpu."
)
_FORKED: Final = (
    "this process was forked from one that uses the GPU, and CUDA does not work after a fork. Create the Analyzer in "
    "each process, or start processes with the method `spawn`."
)

_log = logging.getLogger(__name__)
# Without a GPU, ONNX Runtime warns about every missing device file.
onnxruntime.set_default_logger_severity(_ERRORS_ONLY)


class Classifier:
    """Calibrated probabilities per crop, one per label of the manifest; thread-safe.

    On a GPU, the crops of all threads that wait at the same time share an inference. On a CPU, every thread runs its
    own: photos in parallel have a higher throughput and shorter waits there.

    Attributes:
        precision: of the graph: fp32, fp16 or int8.
        provider: of ONNX Runtime, which runs most of it.
        max_batch: faces of the largest inference.
        on_batch: called with the number of faces of each inference, if set.
    """

    def __init__(self, settings: InferenceSettings) -> None:
        """Verify the artifact named in the settings, or the default one, and open its graph.

        Raises: ArtifactError, if a file is damaged or the precision is missing; ProviderUnavailable.
        """
        self.folder = artifact_dir(settings.model).resolve()  # A link may be switched to the next model meanwhile.
        self.manifest, self.prior = load_artifact(self.folder), settings.prior
        self.on_batch: Callable[[int], None] | None = None
        self._threads = settings.threads
        session, self.precision = self._open_first(settings)
        self.provider, self.max_batch, self._run_graph = session.provider, CPU_BATCH, session.run
        self._infer: Callable[[Array], Array] = self._logits
        if self.provider == CUDA:
            batches = FixedBatches(
                session, lambda faces: self._open(self.precision, "cuda", faces=faces), GPU_BATCHES[1:]
            )
            self.max_batch, self._run_graph = batches.max_batch, batches.run
            self._infer = Batcher(self._logits, max_items=self.max_batch)

    def _open_first(self, settings: InferenceSettings) -> tuple["Session", str]:
        """A session and its precision. `auto`: fp16 on a GPU; on a CPU, int8 if it has instructions for it, or fp32."""
        device, precision, graphs = settings.device, settings.precision, self.manifest.graphs
        if precision == "int8" and device == "cuda":
            raise ProviderUnavailable("precision int8 is for CPUs: set MIEN_DEVICE=cpu or MIEN_PRECISION=auto")
        if precision != "auto":
            return self._open(precision, "cpu" if precision == "int8" else device), precision
        if device != "cpu" and "fp16" in graphs:
            session = self._open("fp16", device)
            if session.provider == CUDA:
                return session, "fp16"
            device = "cpu"  # The fallback is logged already; fp16 is slower than fp32 on a CPU.
        if device == "cpu" and "int8" in graphs and has_int8_instructions():
            return self._open("int8", device), "int8"
        return self._open("fp32", device), "fp32"

    def _open(self, precision: Any, device: Device, *, faces: int = 1) -> "Session":
        graph = self.folder / self.manifest.graph(precision).file
        warm_up = {CROPS: np.zeros((faces, CROP_PX, CROP_PX, 3), np.uint8)}
        return open_session(graph, device, threads=self._threads, warm_up=warm_up)

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
        """Expected shares of votes (N, K) float32 of probabilities from `classify`; (N, 0) if unknown."""
        return self.manifest.votes(probabilities, self.prior)

    def explain(self, crops: Array) -> Array:
        """Attention maps (N, rows, columns) float32 of (N, 112, 112, 3) uint8 crops; each map sums to 1.

        Only of an artifact whose manifest has `explain`.
        """
        assert self.manifest.explain is not None, "checked before the images of a request"  # noqa: S101
        return self._run(crops, RELEVANCE, self.manifest.explain)

    def _logits(self, crops: Array) -> Array:
        logits = self._run(crops, LOGITS, (len(self.manifest.labels),))
        if self.on_batch is not None:
            self.on_batch(len(crops))
        return logits

    def _run(self, crops: Array, output: str, shape: tuple[int, ...]) -> Array:
        """One output of the graph for all crops, (N, *shape) float32, in batches."""
        parts = [np.empty((0, *shape), np.float32)]
        for start in range(0, len(crops), self.max_batch):
            batch = crops[start : start + self.max_batch]
            (rows,) = self._run_graph([output], {CROPS: batch})
            parts.append(rows[: len(batch)])
        return np.concatenate(parts)


class FixedBatches:
    """A graph on a GPU that runs batches of a few sizes; others are padded.

    Each size has a session: ONNX Runtime keeps the plans of convolutions for the last shape only, and builds those of
    another one again, which takes 0.1 to 0.3 s on an H200. `max_batch` is the largest size.
    """

    def __init__(self, first: "Session", open_at: Callable[[int], "Session"], larger: Sequence[int]) -> None:
        """Open sessions for larger batches, up to the first that does not run, as when the GPU has no memory for it.

        Args:
            first: runs one input.
        """
        self._sessions, self.max_batch = {1: first}, 1
        for size in larger:
            try:
                self._sessions[size], self.max_batch = open_at(size), size
            except ProviderUnavailable as error:
                _log.warning("at most %d inputs per inference: %s", self.max_batch, error)
                break

    def run(self, outputs: list[str], feed: dict[str, Array]) -> list[Array]:
        """Run the smallest size that holds a batch, (N, ...) of the only input; what follows its N rows is padding."""
        ((name, batch),) = feed.items()
        size = next(size for size in self._sessions if size >= len(batch))
        padding = [(0, size - len(batch)), *[(0, 0)] * (batch.ndim - 1)]
        return self._sessions[size].run(outputs, {name: np.pad(batch, padding)})


def has_int8_instructions(cpu_info: Path = _CPU_INFO) -> bool:
    """Look for instructions that multiply and add 8-bit integers: VNNI, AMX, or the dot products of ARM."""
    if sys.platform == "darwin":
        return platform.machine() == "arm64"  # Every Apple processor has them.
    try:
        return not _INT8_FLAGS.isdisjoint(cpu_info.read_text(encoding="utf-8").split())
    except OSError:
        return False


@dataclass(eq=False)
class Session:
    """An inference session, whose threads do not survive a fork: a forked process opens its own when it needs it.

    Attributes:
        inference: None in a forked process until then.
        provider: which runs most of its nodes.
        reopen: opens the verified graph on the CPU.
    """

    inference: Any
    provider: str
    reopen: Callable[[], Self]

    def __post_init__(self) -> None:
        _sessions.add(self)

    def run(self, outputs: list[str], feed: dict[str, Array]) -> list[Array]:
        """Run the graph on named inputs. Raises: ProviderUnavailable, in a process forked from one that uses a GPU."""
        if not self.inference:
            with _opening:
                if self.provider != CPU:
                    raise ProviderUnavailable(_FORKED)
                self.inference = self.inference or self.reopen().inference
        results: list[Array] = self.inference.run(outputs, feed)
        return results


# Held while a session is opened; a fork waits for that.
_opening: Final = threading.RLock()
_sessions: Final = weakref.WeakSet[Session]()


def _leave_to_parent() -> None:
    """In a forked process, give up the sessions of its parent.

    Their destructor would wait for threads that do not exist here, at the latest when the process ends: they are kept,
    also those that are garbage in reference cycles, which a collection would destroy at any moment.
    """
    gc.freeze()
    for session in _sessions:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(session.inference))
        session.inference = None
    _opening.release()


if hasattr(os, "register_at_fork"):  # Windows cannot fork.
    os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_leave_to_parent)


def open_session(graph: Path | bytes, device: Device, *, threads: int, warm_up: dict[str, Any]) -> Session:
    """Open a session on a device and run it once.

    Args:
        graph: an ONNX file, verified by the caller, or its bytes.
        device: `cuda` fails if it cannot run the graph; `auto` uses a GPU if one works, else logs why.
        threads: threads per inference; 0 uses all cores, or the container's CPU quota.
        warm_up: input name to array, for the run that verifies the provider.
    Raises: ProviderUnavailable with the reason, if `cuda` runs no node of the graph.
    """
    if device == "cpu":
        return _open(graph, [(CPU, {})], threads, warm_up)
    reason = cuda_unavailable_reason()
    if reason is None:
        try:
            return _open(graph, [(CUDA, _CUDA_OPTIONS), (CPU, {})], threads, warm_up)
        except ProviderUnavailable as error:
            if device == "cuda":
                raise
            reason = str(error)
    if device == "cuda":
        raise ProviderUnavailable(f"device cuda: {reason}. {_REMEDY}")
    _log_fallback(reason)
    return _open(graph, [(CPU, {})], threads, warm_up)


@cache
def _log_fallback(reason: str) -> None:
    """Log why `auto` does not use a GPU: once, because every model opens a session."""
    # A GPU that is not used is worth a warning.
    level = logging.WARNING if gpu_unavailable_reason() is None else logging.INFO
    _log.log(level, "device auto: using the CPU (%s)", reason)


def _open(
    graph: Path | bytes, providers: list[tuple[str, dict[str, str]]], threads: int, warm_up: dict[str, Any]
) -> Session:
    """Open a session on the first of `providers`; the others run the nodes that it does not support."""
    provider = providers[0][0]
    device = "cpu" if provider == CPU else "cuda"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or (cores() if cpu_quota() else 0)
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS_ONLY if provider == CPU else _FATAL_ONLY
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    # Spinning threads would compete with decoding and detection.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    source = graph if isinstance(graph, bytes) else str(graph)
    try:
        with _opening:
            session = onnxruntime.InferenceSession(source, options, providers=providers)
            session.disable_fallback()  # Otherwise, a failed run is silently repeated on the CPU.
            with _cudnn_messages_hidden() if provider == CUDA else contextlib.nullcontext():
                session.run(None, warm_up)
    except Exception as error:  # ONNX Runtime's exceptions share no base class.
        raise ProviderUnavailable(f"device {device}: the model does not run ({error})") from error
    nodes = Counter[str]()
    for part in session.get_provider_graph_assignment_info():
        nodes[part.ep_name] += len(part.get_nodes())
    if not nodes[provider]:
        ran = ", ".join(f"{count} on {name}" for name, count in sorted(nodes.items()))
        raise ProviderUnavailable(f"device {device}: runs none of the model's nodes ({ran})")
    reopen = partial(_open, graph, [(CPU, {})], threads, warm_up)
    return Session(session, nodes.most_common(1)[0][0], reopen)


@contextlib.contextmanager
def _cudnn_messages_hidden() -> Iterator[None]:
    """Hide `[cudnn_frontend] Error: No execution plans support the graph`, which ONNX Runtime logs in its first runs.

    It then runs another algorithm. Errors that end a run are raised, too; those of a library that cannot be loaded are
    only logged, but while a session is opened, before it runs.
    """
    onnxruntime.set_default_logger_severity(_FATAL_ONLY)
    try:
        yield
    finally:
        onnxruntime.set_default_logger_severity(_ERRORS_ONLY)


def cuda_unavailable_reason() -> str | None:
    """Why CUDA cannot run on this machine; None if it is worth trying.

    Checked before a CUDA session is opened, because a failed attempt prints loader errors to standard error.
    """
    if CUDA not in onnxruntime.get_available_providers():
        return both_wheels() or f"this build of onnxruntime ({onnxruntime.__version__}) has no CUDA provider"
    return gpu_unavailable_reason() or _missing_libraries()


def both_wheels() -> str | None:
    """Message about two wheels of ONNX Runtime, whose files replace each other; None if one is installed."""
    for wheel in ("onnxruntime", "onnxruntime-gpu"):
        try:
            metadata.version(wheel)
        except metadata.PackageNotFoundError:
            return None
    return (
        "onnxruntime and onnxruntime-gpu are both installed, and the files of one replace those of the other. Run "
        "`pip uninstall onnxruntime onnxruntime-gpu`, then install onnxruntime-gpu again"
    )


def gpu_unavailable_reason() -> str | None:
    """Why this machine has no NVIDIA GPU for this process; None if it has one."""
    driver: Any = _loaded("libcuda.so.1")
    if driver is None:
        return "no NVIDIA driver was found (libcuda.so.1)"
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return "the NVIDIA driver sees no GPU"
    return None


def _missing_libraries() -> str | None:
    """Message about libraries of the CUDA provider that cannot be loaded; None if all can."""
    major = str(onnxruntime.cuda_version).partition(".")[0]
    # The provider opens cuDNN only when it runs a convolution.
    of_cuda = (f"lib{name}.so.{major}" for name in ("cudart", "cublasLt", "cublas"))
    libraries = (*of_cuda, "libcurand.so.10", "libcudnn.so.9")
    if not all(map(_loaded, libraries)):
        # It loads them from NVIDIA's wheels, and prints missing libraries, which the message below names.
        with contextlib.redirect_stdout(io.StringIO()):
            onnxruntime.preload_dlls()
    missing = [name for name in libraries if not _loaded(name)]
    return f"these CUDA {major} libraries are missing: {', '.join(missing)}" if missing else None


def _loaded(library: str) -> object | None:
    try:
        return ctypes.CDLL(library)
    except (OSError, UnicodeDecodeError):  # The loader's message may not be UTF-8.
        return None
