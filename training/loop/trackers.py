"""Experiment trackers in addition to metrics.jsonl: TensorBoard, Weights & Biases, MLflow."""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from mien.training.config import RecipeError, RuntimeConfig

BOARD_FOLDER: Final = "tensorboard"


class Tracker(NamedTuple):
    """Functions that log the numbers of one step, and end the run."""

    add: Callable[[Mapping[str, float], int], None]
    close: Callable[[], None]


def open_trackers(runtime: RuntimeConfig, out: Path, *, name: str, step: int) -> list[Tracker]:
    """Open the trackers of a recipe; TensorBoard's events after `step` are dropped. Raises: RecipeError."""
    trackers: list[Tracker] = []
    if runtime.tensorboard:
        writer = _library("tensorboardX").SummaryWriter(str(out / BOARD_FOLDER), purge_step=step + 1)

        def add(values: Mapping[str, float], step: int) -> None:
            for key, value in values.items():
                writer.add_scalar(key, value, step)
            writer.flush()

        trackers.append(Tracker(add, writer.close))
    if runtime.wandb:  # resumed by the name of the run folder; WANDB_MODE=offline keeps it local
        run = _library("wandb").init(project="mien", name=name, id=out.name, dir=str(out), resume="allow")
        trackers.append(Tracker(lambda values, step: run.log(dict(values), step=step), run.finish))
    if runtime.mlflow:  # at MLFLOW_TRACKING_URI
        mlflow = _library("mlflow")
        mlflow.set_experiment("mien")
        mlflow.start_run(run_name=name)
        trackers.append(Tracker(lambda values, step: mlflow.log_metrics(dict(values), step=step), mlflow.end_run))
    return trackers


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RecipeError(f"runtime.{name}: {name} is not installed; pip install {name}") from error
