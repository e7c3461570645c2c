"""What every kind of run does around its steps: choose the device, show progress, keep figures, measure its speed."""

import json
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from timm.layers.config import set_fused_attn
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from data.contract import CROP_PX
from training.config import RecipeError, RuntimeConfig

BOARD_FOLDER: Final = "tensorboard"
_DTYPES: Final = {"fp32": torch.bfloat16, "bf16": torch.bfloat16, "fp16": torch.float16}
_MATMUL_SIDE: Final = 2048


class TrainingDiverged(RuntimeError):
    """The loss is no longer a number."""


def choose_device(runtime: RuntimeConfig) -> tuple[torch.device, torch.autocast]:
    """Device and precision of a run; also sets the number of threads and how attention runs. Raises: RecipeError."""
    wanted = ("cuda" if torch.cuda.is_available() else "cpu") if runtime.device == "auto" else runtime.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise RecipeError("runtime.device cuda: torch sees no GPU here; use auto or cpu")
    if runtime.precision == "fp16" and wanted == "cpu":
        raise RecipeError("runtime.precision fp16: only on a GPU, the CPU has no fast fp16; use bf16 or fp32")
    if runtime.threads:
        torch.set_num_threads(runtime.threads)
    # torch's fused attention is slow for 50 tokens on a CPU: 0.65 s a step of the tiny hybrid with it, 0.46 s without
    set_fused_attn(wanted == "cuda")
    return torch.device(wanted), torch.autocast(wanted, _DTYPES[runtime.precision], enabled=runtime.precision != "fp32")


class Figures:
    """`metrics.jsonl` of a run, and the same as TensorBoard events where the recipe asks; `step` is in every line."""

    def __init__(self, path: Path, *, step: int, board: bool) -> None:
        self.path = path
        truncate_metrics(path, step)
        self.board: Any = None
        if board:
            from tensorboardX import SummaryWriter

            # events after `step` will be written again, so the board drops those of the run that was stopped
            self.board = SummaryWriter(str(path.parent / BOARD_FOLDER), purge_step=step + 1)

    def add(self, values: dict[str, Any]) -> None:
        """Append one line."""
        append_metrics(self.path, values)
        if self.board is not None:
            for name, value in values.items():
                if name != "step" and isinstance(value, int | float):
                    self.board.add_scalar(name, value, values["step"])
            self.board.flush()

    def close(self) -> None:
        """Close the board's file."""
        if self.board is not None:
            self.board.close()


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
    path.write_text("".join(kept), encoding="utf-8")


class Clock:
    """Where an epoch's time goes: started once, told when a batch has come and when its step is done."""

    def __init__(self) -> None:
        self.started = self.asked = time.perf_counter()
        self.waited_s, self.faces = 0.0, 0

    def batch_came(self) -> None:
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
        """Figures for a line of metrics."""
        elapsed = max(time.perf_counter() - self.started, 1e-9)
        return {"faces_per_s": round(self.faces / elapsed, 1), "data_wait_share": round(self.waited_s / elapsed, 4)}


@cache
def matmul_flops_per_s(device: torch.device, precision: str) -> float:
    """What this device reaches on a 2048-cube matrix product, the best of some; in bf16, or fp16 for a run in fp16."""
    left = torch.ones(_MATMUL_SIDE, _MATMUL_SIDE, dtype=_DTYPES[precision], device=device)
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


def flops_per_face(network: nn.Module, device: torch.device, *, channels: int) -> int:
    """Multiply-adds of one forward pass of one face, each counted as two operations; the network's mode is kept."""
    was_training = network.training
    crops = torch.zeros(1, CROP_PX, CROP_PX, channels, dtype=torch.uint8, device=device)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network.eval()(crops)
    network.train(was_training)
    return int(counter.get_total_flops())


def progress_bar(*, shown: bool = True) -> Progress:
    """Steps, time left and a note; silent where nobody looks."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, TextColumn("{task.fields[note]}"), disable=not (shown and sys.stderr.isatty()))
