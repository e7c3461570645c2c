"""What every kind of run does around its steps: choose the device, show progress, keep `metrics.jsonl`."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from training.config import RecipeError, RuntimeConfig


def choose_device(runtime: RuntimeConfig) -> tuple[torch.device, torch.autocast]:
    """Device and precision of a run; also sets the number of threads. Raises: RecipeError."""
    wanted = ("cuda" if torch.cuda.is_available() else "cpu") if runtime.device == "auto" else runtime.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise RecipeError("runtime.device cuda: torch sees no GPU here; use auto or cpu")
    if runtime.threads:
        torch.set_num_threads(runtime.threads)
    return torch.device(wanted), torch.autocast(wanted, torch.bfloat16, enabled=runtime.precision == "bf16")


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


def progress_bar() -> Progress:
    """Steps, time left and a note; silent where nobody looks."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, TextColumn("{task.fields[note]}"), disable=not sys.stderr.isatty())
