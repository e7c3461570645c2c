"""ONNX Runtime sessions with a verified execution provider.

`onnxruntime.get_available_providers()` lists the providers that a wheel was built with, on any machine, and a session
that cannot load the CUDA libraries silently runs on the CPU. Each session is therefore run once and checked for the
provider that its nodes were assigned to.
"""

import contextlib
import ctypes
import io
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import onnxruntime

from mien.app.errors import ProviderUnavailable
from mien.app.inference.runtime.cpu_count import cores, cpu_quota
from mien.app.settings import Device

CPU: Final = "CPUExecutionProvider"
CUDA: Final = "CUDAExecutionProvider"
GRAPH_ID: Final = "gpu_graph_id"  # key in the run options: the CUDA graph to capture or replay
NO_GRAPH: Final = "-1"
_NO_OPTIONS: Final[Mapping[str, str]] = MappingProxyType({})
_ERRORS_ONLY: Final = 3
_FATAL_ONLY: Final = 4
_CUDA_OPTIONS: Final[dict[str, str]] = {
    # grow the arena by the requested size: the default doubles it, and a service may share its GPU
    "arena_extend_strategy": "kSameAsRequested",
    "cudnn_conv_algo_search": "HEURISTIC",
    # with TF32, probabilities differ from the CPU's by more than 1e-4; the fast graph is fp16
    "use_tf32": "0",
}

_NAMES: Final = {CPU: "cpu", CUDA: "cuda"}
_REMEDY: Final = (
    "Install the GPU libraries (`pip install 'onnxruntime-gpu[cuda,cudnn]'`) and an NVIDIA driver, or choose "
    "MIEN_DEVICE=auto or cpu."
)

_log = logging.getLogger(__name__)
# Without a GPU, ONNX Runtime warns about every missing device file.
onnxruntime.set_default_logger_severity(_ERRORS_ONLY)


@dataclass(frozen=True, slots=True)
class Session:
    """An inference session, the device of its memory (cpu or cuda), and its number of nodes per provider."""

    inference: onnxruntime.InferenceSession
    device: str
    nodes: dict[str, int]

    @property
    def provider(self) -> str:
        """Provider with the most nodes."""
        return max(self.nodes, key=lambda name: self.nodes[name])


def open_session(
    graph: Path | bytes,
    device: Device,
    *,
    threads: int,
    warm_up: dict[str, Any],
    options: Mapping[str, str] = _NO_OPTIONS,
) -> Session:
    """Open a session on a device and run it once.

    Args:
        graph: an ONNX file, verified by the caller, or its bytes.
        device: `cuda` fails if it cannot run the graph; `auto` uses a GPU if one works, else logs why.
        threads: threads per inference; 0 uses all cores, or the container's CPU quota.
        warm_up: input name to array, for the run that verifies the provider.
        options: for the GPU provider, in addition to the defaults.
    Raises: ProviderUnavailable with the reason, if `cuda` runs no node of the graph.
    """
    if device == "cpu":
        return _open(graph, [(CPU, {})], threads, warm_up)
    reason = cuda_unavailable_reason()
    if reason is None:
        try:
            return _open(graph, [(CUDA, {**_CUDA_OPTIONS, **options}), (CPU, {})], threads, warm_up)
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
    level = logging.WARNING if gpu_unavailable_reason() is None else logging.INFO  # a GPU that is not used
    _log.log(level, "device auto: using the CPU (%s)", reason)


def _open(
    graph: Path | bytes, providers: list[tuple[str, dict[str, str]]], threads: int, warm_up: dict[str, Any]
) -> Session:
    """Open a session on the first of `providers`; the others run the nodes that it does not support."""
    provider = providers[0][0]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or (cores() if cpu_quota() else 0)
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS_ONLY if provider == CPU else _FATAL_ONLY
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    # Spinning threads would compete with decoding and detection.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    source = graph if isinstance(graph, bytes) else str(graph)
    try:
        session = onnxruntime.InferenceSession(source, options, providers=providers)
        session.disable_fallback()  # otherwise a failed run is silently repeated on the CPU
        with cudnn_messages_hidden() if provider == CUDA else contextlib.nullcontext():
            session.run(None, warm_up, graph_options(NO_GRAPH))
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        raise ProviderUnavailable(f"device {_NAMES[provider]}: the model does not run ({error})") from error
    nodes = _nodes(session)
    if not nodes.get(provider):
        ran = ", ".join(f"{count} on {name}" for name, count in sorted(nodes.items()))
        raise ProviderUnavailable(f"device {_NAMES[provider]}: runs none of the model's nodes ({ran})")
    return Session(session, "cpu" if provider == CPU else "cuda", nodes)


@contextlib.contextmanager
def cudnn_messages_hidden() -> Iterator[None]:
    """Hide `[cudnn_frontend] Error: No execution plans support the graph`, which ONNX Runtime logs in its first runs.

    It then runs another algorithm. Errors that end a run are raised, too; those of a library that cannot be loaded are
    only logged, but while a session is opened, before it runs.
    """
    onnxruntime.set_default_logger_severity(_FATAL_ONLY)
    try:
        yield
    finally:
        onnxruntime.set_default_logger_severity(_ERRORS_ONLY)


def graph_options(graph_id: str) -> onnxruntime.RunOptions:
    """Options of a run that captures or replays a CUDA graph, or neither (`NO_GRAPH`)."""
    options = onnxruntime.RunOptions()
    options.add_run_config_entry(GRAPH_ID, graph_id)
    return options


def _nodes(session: onnxruntime.InferenceSession) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for part in session.get_provider_graph_assignment_info():
        counts[part.ep_name] += len(part.get_nodes())
    return dict(counts)


def cuda_unavailable_reason() -> str | None:
    """Why CUDA cannot run on this machine; None if it is worth trying.

    Checked before a CUDA session is opened, because a failed attempt prints loader errors to standard error.
    """
    if CUDA not in onnxruntime.get_available_providers():
        return f"this build of onnxruntime ({onnxruntime.__version__}) has no CUDA provider"
    return gpu_unavailable_reason() or _missing_libraries()


def gpu_unavailable_reason() -> str | None:
    """Why this machine has no NVIDIA GPU for this process; None if it has one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except (OSError, UnicodeDecodeError):  # a message in a locale other than UTF-8
        return "no NVIDIA driver was found (libcuda.so.1)"
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return "the NVIDIA driver sees no GPU"
    return None


def _missing_libraries() -> str | None:
    """Message about libraries of the CUDA provider that cannot be loaded; None if all can."""
    major = str(onnxruntime.cuda_version).partition(".")[0]
    # The provider opens cuDNN only when it runs a convolution.
    libraries = (
        f"libcudart.so.{major}",
        f"libcublasLt.so.{major}",
        f"libcublas.so.{major}",
        "libcurand.so.10",
        "libcudnn.so.9",
    )
    if not all(_loads(name) for name in libraries):
        # from the nvidia-* wheels of the `gpu` extra; it prints missing libraries, which the message below names
        with contextlib.redirect_stdout(io.StringIO()):
            onnxruntime.preload_dlls()
    missing = [name for name in libraries if not _loads(name)]
    return f"these CUDA {major} libraries are missing: {', '.join(missing)}" if missing else None


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except (OSError, UnicodeDecodeError):
        return False
    return True
