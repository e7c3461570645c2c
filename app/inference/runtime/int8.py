"""The choice between the fp32 and the int8 graph on a CPU, by its instructions and a short measurement.

Without VNNI (x86) or dot products (ARM), int8 may be slower than fp32 (docs/decisions/0006-int8-on-cpus.md).
"""

import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime

MIN_SPEEDUP: Final = 1.3
BATCH: Final = 2  # faces per measured inference
_ROUNDS: Final = 3
_INSTRUCTIONS: Final = frozenset({"avx512_vnni", "avx_vnni", "asimddp"})
_CPU_INFO: Final = Path("/proc/cpuinfo")


def has_int8_instructions(cpu_info: Path = _CPU_INFO) -> bool:
    """Whether the CPU multiplies and adds 8-bit integers in one instruction."""
    if sys.platform == "darwin":
        return platform.machine() == "arm64"  # every Apple processor has them
    try:
        return not _INSTRUCTIONS.isdisjoint(cpu_info.read_text(encoding="utf-8").split())
    except OSError:
        return False


def speedup(fp32: onnxruntime.InferenceSession, int8: onnxruntime.InferenceSession, feed: Mapping[str, Any]) -> float:
    """How many times as fast int8 is as fp32: best times of alternating rounds, which other load hardly affects."""
    seconds = np.array([[_seconds(session, feed) for session in (fp32, int8)] for _ in range(_ROUNDS)])
    best = seconds.min(axis=0)
    return float(best[0] / best[1])


def _seconds(session: onnxruntime.InferenceSession, feed: Mapping[str, Any]) -> float:
    began = time.perf_counter()
    session.run(None, dict(feed))
    return time.perf_counter() - began
