"""Progress, metrics and speed of a run: what happens around its steps."""

import json
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from data.atomic import write_atomic
from data.errors import MienError
from training.loop.machine import DTYPES
from training.loop.trackers import Tracker

_MATMUL_SIDE: Final = 2048


class TrainingDiverged(MienError):
    """The loss is no longer a number."""


class MetricsLogger:
    """`metrics.jsonl` of a run, and the trackers that its recipe names; `step` is in every line."""

    def __init__(self, path: Path, *, step: int, trackers: Sequence[Tracker] = ()) -> None:
        self.path, self.trackers = path, trackers
        truncate_metrics(path, step)

    def add(self, values: dict[str, Any]) -> None:
        """Append one line."""
        append_metrics(self.path, values)
        numbers = {name: value for name, value in values.items() if name != "step" and isinstance(value, int | float)}
        for tracker in self.trackers:
            tracker.add(numbers, values["step"])

    def close(self) -> None:
        """Close the trackers."""
        for tracker in self.trackers:
            tracker.close()


def append_metrics(path: Path, values: dict[str, Any]) -> None:
    """Add one line to `metrics.jsonl`."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")


def truncate_metrics(path: Path, step: int) -> None:
    """Drop the lines after `step` that a resumed run will write again, and the line that a kill cut short."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except json.JSONDecodeError:
            break
    write_atomic(path, "".join(kept))


class Clock:
    """Timer of an epoch: time spent waiting for batches, and speed."""

    def __init__(self) -> None:
        self.started = self.asked = time.perf_counter()
        self.waited_s, self.faces = 0.0, 0

    def batch_loaded(self) -> None:
        """The loader has delivered."""
        self.waited_s += time.perf_counter() - self.asked

    def step_done(self, faces: int) -> None:
        """The step has taken `faces` faces and the loader is asked for the next."""
        self.faces += faces
        self.asked = time.perf_counter()

    @property
    def faces_per_s(self) -> float:
        """Speed since the start, waiting included."""
        return self.faces / max(time.perf_counter() - self.started, 1e-9)

    def rates(self) -> dict[str, float]:
        """Speed and waiting share, for a line of metrics."""
        elapsed = max(time.perf_counter() - self.started, 1e-9)
        return {"faces_per_s": round(self.faces / elapsed, 1), "data_wait_share": round(self.waited_s / elapsed, 4)}


@cache
def matmul_flops_per_s(device: torch.device, precision: str) -> float:
    """What this device reaches on a 2048-cube matrix product, the best of some; in bf16, or fp16 for a run in fp16."""
    left = torch.ones(_MATMUL_SIDE, _MATMUL_SIDE, dtype=DTYPES[precision], device=device)
    best, spent = float("inf"), 0.0
    for number in range(6):
        started = time.perf_counter()
        left @ left
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - started
        spent += seconds
        best = min(best, seconds) if number or seconds > 1 else best  # the first run also sets up
        if spent > 2:
            break
    return 2 * _MATMUL_SIDE**3 / best


def forward_flops(network: nn.Module, *inputs: Tensor) -> int:
    """Multiply-adds of one forward pass, each counted as two operations; the network's mode is kept."""
    was_training = network.training
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network.eval()(*inputs)
    network.train(was_training)
    return int(counter.get_total_flops())


def progress_bar(*, shown: bool = True) -> Progress:
    """Steps, time left and a note; hidden without a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, TextColumn("{task.fields[note]}"), disable=not (shown and sys.stderr.isatty()))
