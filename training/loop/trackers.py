"""Experiment trackers in addition to metrics.jsonl: TensorBoard, Weights & Biases, MLflow."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from mien.training.config import RecipeError, RuntimeConfig

BOARD_FOLDER: Final = "tensorboard"


class Tracker(Protocol):
    """Interface of a tracker."""

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Log the numbers of one step."""

    def close(self) -> None:
        """Flush and close."""


def open_trackers(runtime: RuntimeConfig, out: Path, *, name: str, step: int) -> list[Tracker]:
    """Open the trackers of a recipe; events after `step` are dropped. Raises: RecipeError."""
    trackers: list[Tracker] = []
    if runtime.tensorboard:
        trackers.append(TensorBoard(out, step=step))
    if runtime.wandb:
        trackers.append(WeightsAndBiases(out, name=name))
    if runtime.mlflow:
        trackers.append(MLflow(name=name))
    return trackers


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RecipeError(f"runtime.{name}: {name} is not installed; pip install {name}") from error


class TensorBoard:
    """TensorBoard events in the run folder; old events after `step` are dropped, as they will be written again."""

    def __init__(self, out: Path, *, step: int) -> None:
        self.writer = _library("tensorboardX").SummaryWriter(str(out / BOARD_FOLDER), purge_step=step + 1)

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Write events."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self.writer.close()


class WeightsAndBiases:
    """A run of the project `mien`, resumed by the name of the run folder. WANDB_MODE=offline keeps it local."""

    def __init__(self, out: Path, *, name: str) -> None:
        wandb = _library("wandb")
        self.run = wandb.init(project="mien", name=name, id=out.name, dir=str(out), resume="allow")

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Log one step."""
        self.run.log(dict(values), step=step)

    def close(self) -> None:
        """End the run."""
        self.run.finish()


class MLflow:
    """A run of the experiment `mien` at MLFLOW_TRACKING_URI."""

    def __init__(self, *, name: str) -> None:
        self.mlflow = _library("mlflow")
        self.mlflow.set_experiment("mien")
        self.mlflow.start_run(run_name=name)

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Log one step."""
        self.mlflow.log_metrics(dict(values), step=step)

    def close(self) -> None:
        """End the run."""
        self.mlflow.end_run()
