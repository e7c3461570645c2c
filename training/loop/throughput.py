"""Progress bar, metrics log and speed of a run."""

import json
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mien.data.atomic import write_atomic
from mien.data.errors import MienError
from mien.training.loop.trackers import Tracker

logger = logging.getLogger("mien.training")
_MATMUL_SIDE: Final = 2048


class TrainingDiverged(MienError):
    """A loss that is not finite."""


class MetricsLogger:
    """Logger to `metrics.jsonl` and to the trackers of the recipe; every line has a `step`."""

    def __init__(self, path: Path, *, step: int, trackers: Sequence[Tracker] = ()) -> None:
        self.path, self.trackers = path, trackers
        if path.exists():  # drop lines after `step`, which a resumed run will write again, and a truncated last line
            kept = []
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    if json.loads(line)["step"] <= step:
                        kept.append(line + "\n")
                except json.JSONDecodeError:
                    break
            write_atomic(path, "".join(kept))

    def add(self, values: dict[str, Any]) -> None:
        """Append one line."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")
        numbers = {name: value for name, value in values.items() if name != "step" and isinstance(value, int | float)}
        for tracker in self.trackers:
            tracker.add(numbers, values["step"])

    def close(self) -> None:
        """Close the trackers."""
        for tracker in self.trackers:
            tracker.close()


class Clock:
    """Timer of an epoch: time spent waiting for batches, and speed."""

    def __init__(self) -> None:
        self.started = self.requested = time.perf_counter()
        self.waited_s, self.faces = 0.0, 0

    def batch_loaded(self) -> None:
        """Record that the loader has returned a batch."""
        self.waited_s += time.perf_counter() - self.requested

    def step_done(self, faces: int) -> None:
        """Record that a step on `faces` faces is done and the next batch is requested."""
        self.faces += faces
        self.requested = time.perf_counter()

    def rates(self) -> dict[str, float]:
        """Speed since the start, including waiting, and share of time spent waiting, for a line of metrics."""
        elapsed = max(time.perf_counter() - self.started, 1e-9)
        return {"faces_per_s": round(self.faces / elapsed, 1), "data_wait_share": round(self.waited_s / elapsed, 4)}


def matmul_flops_per_s(dtype: torch.dtype) -> float:
    """Measured rate of a 2048x2048 matrix multiplication on the CPU: the best of a few, as the first includes setup."""
    left = torch.ones(_MATMUL_SIDE, _MATMUL_SIDE, dtype=dtype)
    seconds: list[float] = []
    while len(seconds) < 6 and sum(seconds) < 2:
        started = time.perf_counter()
        left @ left
        seconds.append(time.perf_counter() - started)
    return 2 * _MATMUL_SIDE**3 / min(seconds)


def warn_of_slow_bf16() -> None:
    """Log a warning if this processor multiplies matrices faster in fp32 than in bf16."""
    bf16, fp32 = (matmul_flops_per_s(dtype) / 1e9 for dtype in (torch.bfloat16, torch.float32))
    if bf16 < fp32:
        logger.warning(
            "bf16 is slower than fp32 on this processor (%.0f and %.0f GFLOP/s): train with runtime.precision=fp32",
            bf16, fp32,
        )  # fmt: skip


def progress_bar(*, shown: bool = True) -> Progress:
    """Progress bar with steps, remaining time and a note; hidden without a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, TextColumn("{task.fields[note]}"), disable=not (shown and sys.stderr.isatty()))
