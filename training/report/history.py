"""History of a run: curves, time and speed from its metrics.jsonl."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mien.data.contract import Array
from mien.training.loop.run_folder import METRICS_NAME, RunError


@dataclass(frozen=True, slots=True)
class History:
    """A run over its epochs.

    Attributes:
        position: (T,) position of each logged step, in epochs.
        loss: (T,) by part: loss (the total), supervised and, with a teacher, distillation.
        epochs: (E,) position of each validation, in epochs.
        faces: (E,) number of faces seen until each validation.
        accuracy, mean_class_accuracy: (E,) on validation, of the best head of each epoch.
        minutes: duration of training steps, without validation.
        faces_per_s: mean over the run.
    """

    position: Array
    loss: dict[str, Array]
    epochs: Array
    faces: Array
    accuracy: Array
    mean_class_accuracy: Array
    minutes: float
    faces_per_s: float


def read_history(folder: Path, *, batch_size: int) -> History:
    """Read the metrics file of a run. Raises: RunError, if it is missing, damaged or has no completed epoch."""
    path = folder / METRICS_NAME
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); a report needs the complete run folder") from error
    except json.JSONDecodeError as error:
        raise RunError(f"{path}: damaged ({error}); rerun the training command to repair it") from error
    steps = [line for line in lines if "loss" in line]
    epochs = [line for line in lines if "epoch" in line]
    if not epochs or not steps:
        raise RunError(f"{path}: {'no step was logged' if epochs else 'no epoch is completed yet'}")
    # the last speed logged in an epoch is its mean
    seconds, speed, previous = 0.0, 0.0, 0
    for line in lines:
        speed = line.get("faces_per_s", speed)
        if "epoch" in line and speed:
            seconds += (line["step"] - previous) * batch_size / speed
            previous = line["step"]
    loss = {
        part: np.array([line[part] for line in steps], np.float64)
        for part in ("loss", "supervised", "distillation")
        if all(part in line for line in steps)
    }
    if "distillation" in loss and not loss["distillation"].any():
        loss = {"loss": loss["loss"]}  # no teacher: the supervised loss is the total
    return History(
        position=np.array([line["step"] for line in steps]) * (epochs[-1]["epoch"] + 1) / epochs[-1]["step"],
        loss=loss,
        epochs=np.array([line["epoch"] + 1 for line in epochs]),
        faces=np.array([line["step"] * batch_size for line in epochs]),
        accuracy=np.array([line["valid_accuracy"] for line in epochs]),
        mean_class_accuracy=np.array([line["valid_mean_class_accuracy"] for line in epochs]),
        minutes=seconds / 60,
        faces_per_s=epochs[-1]["step"] * batch_size / seconds if seconds else float("nan"),
    )
