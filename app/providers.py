"""Which device really computes? ONNX Runtime sessions whose provider is proven, not assumed.

`onnxruntime.get_available_providers()` lists what a wheel was built with, on any machine. A session that cannot load
CUDA's libraries quietly runs on the CPU. So a session is believed only after a warm-up run, by the provider that each
node of its optimised graph was given.
"""

import contextlib
import ctypes
import io
import logging
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import onnxruntime

from app.errors import ProviderUnavailable
from app.settings import Device

CPU: Final = "CPUExecutionProvider"
CUDA: Final = "CUDAExecutionProvider"
_ERRORS_ONLY: Final = 3
_FATAL_ONLY: Final = 4
_CUDA_OPTIONS: Final = {
    # grow the arena by what is asked for: the default doubles it, and a service shares its GPU
    "arena_extend_strategy": "kSameAsRequested",
    "cudnn_conv_algo_search": "HEURISTIC",
    # fp32 means fp32: with TF32 an answer on the GPU differs from the CPU's by more than 1e-4; fp16 is the fast graph
    "use_tf32": "0",
}

_log = logging.getLogger(__name__)
# On machines without a GPU the runtime warns of every device file it did not find.
onnxruntime.set_default_logger_severity(_ERRORS_ONLY)


@dataclass(frozen=True, slots=True)
class Session:
    """An inference session and the proof of where it runs: nodes per provider."""

    inference: onnxruntime.InferenceSession
    device: str
    nodes: dict[str, int]

    @property
    def provider(self) -> str:
        """Provider with the most nodes."""
        return max(self.nodes, key=lambda name: self.nodes[name])


def open_session(graph: Path | bytes, device: Device, *, threads: int, warm_up: dict[str, Any]) -> Session:
    """Open a session on a device and run it once.

    Args:
        graph: an ONNX file, verified by the caller, or its bytes.
        device: `cuda` refuses to run elsewhere; `auto` takes a GPU where one works, and logs why not.
        threads: threads per inference; 0 means as many as cores.
        warm_up: input name to array, for the run that proves the provider.
    Raises: ProviderUnavailable, when `cuda` runs no node of the graph; it names the reason.
    """
    if device == "cpu":
        return _open(graph, CPU, threads, warm_up)
    obstacle = cuda_obstacle()
    if obstacle is None:
        try:
            return _open(graph, CUDA, threads, warm_up)
        except ProviderUnavailable as error:
            if device == "cuda":
                raise
            obstacle = str(error)
    if device == "cuda":
        raise ProviderUnavailable(
            f"device cuda: {obstacle}. Install the GPU libraries (`pip install mien[gpu]`) and an NVIDIA driver, or "
            "choose MIEN_DEVICE=auto or cpu."
        )
    _log.info("device auto: the CPU is used, as %s", obstacle)
    return _open(graph, CPU, threads, warm_up)


def _open(graph: Path | bytes, provider: str, threads: int, warm_up: dict[str, Any]) -> Session:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS_ONLY if provider == CPU else _FATAL_ONLY
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    # Idle threads that spin take cores from decoding and detection.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers: list[Any] = [(CUDA, _CUDA_OPTIONS), CPU] if provider == CUDA else [CPU]
    source = graph if isinstance(graph, bytes) else str(graph)
    try:
        session = onnxruntime.InferenceSession(source, options, providers=providers)
        session.disable_fallback()  # or a failing run would be repeated on the CPU, in silence
        session.run(None, warm_up)
    except Exception as error:  # the runtime raises its own classes, which share no base but Exception
        raise ProviderUnavailable(f"device {_device(provider)}: the model does not run there ({error})") from error
    nodes = _nodes(session)
    if not nodes.get(provider):
        ran = ", ".join(f"{count} on {name}" for name, count in sorted(nodes.items()))
        raise ProviderUnavailable(f"device {_device(provider)}: none of the model's nodes runs there ({ran})")
    return Session(session, _device(provider), nodes)


def _nodes(session: onnxruntime.InferenceSession) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for part in session.get_provider_graph_assignment_info():
        counts[part.ep_name] += len(part.get_nodes())
    return dict(counts)


def _device(provider: str) -> str:
    return {CPU: "cpu", CUDA: "cuda"}[provider]


def cuda_obstacle() -> str | None:
    """Why CUDA cannot run here, in words; None where nothing stands against trying.

    Asked before a CUDA session is opened, as a failed attempt prints the loader's errors to standard error.
    """
    if CUDA not in onnxruntime.get_available_providers():
        return f"this build of onnxruntime ({onnxruntime.__version__}) has no CUDA provider"
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver was found (libcuda.so.1)"
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return "the NVIDIA driver sees no GPU"
    return _missing_libraries()


def _missing_libraries() -> str | None:
    """Which libraries that the CUDA provider is linked to cannot be loaded, in words; None where all can."""
    major = str(onnxruntime.cuda_version).partition(".")[0]
    libraries = (f"libcudart.so.{major}", f"libcublasLt.so.{major}", f"libcublas.so.{major}", "libcurand.so.10")
    if not all(_loads(name) for name in libraries):
        # From the nvidia-* wheels of the `gpu` extra. It prints what it does not find; this is told below, in one line.
        with contextlib.redirect_stdout(io.StringIO()):
            onnxruntime.preload_dlls()
    missing = [name for name in libraries if not _loads(name)]
    return f"these CUDA {major} libraries are missing: {', '.join(missing)}" if missing else None


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
