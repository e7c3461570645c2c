"""History of a run: curves, time and speed from its metrics.jsonl."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from mien.data.contract import Array
from mien.training.loop.run_folder import METRICS_NAME, RunError

_WAIT: Final = "data_wait_share"


@dataclass(frozen=True, slots=True)
class History:
    """A run over its epochs.

    Attributes:
        position: (T,) position of each logged step, in epochs.
        loss: (T,) by part: loss (the total), supervised and, with a teacher, distillation.
        training_accuracy: (T,) on augmented batches; None if the run did not log it.
        epochs: (E,) position of each validation, in epochs.
        accuracy, mean_class_accuracy: (E,) on validation, of the best head of each epoch.
        minutes: duration of training steps, without validation.
        faces_per_s: mean over the run.
        data_wait_share: share of time spent waiting for data in the last epoch; nan if not logged.
    """

    position: Array
    loss: dict[str, Array]
    training_accuracy: Array | None
    epochs: Array
    accuracy: Array
    mean_class_accuracy: Array
    minutes: float
    faces_per_s: float
    data_wait_share: float


def read_history(folder: Path, *, batch_size: int) -> History:
    """Read the metrics file of a run. Raises: RunError, if it is missing, damaged or has no completed epoch."""
    lines = _read_lines(folder / METRICS_NAME)
    steps = [line for line in lines if "loss" in line]
    epochs = [line for line in lines if "epoch" in line]
    if not epochs:
        raise RunError(f"{folder / METRICS_NAME}: no epoch is completed yet, so there is nothing to report")
    if not steps:
        raise RunError(
            f"{folder / METRICS_NAME}: no step was logged, so there is no loss curve; the run is shorter than "
            "runtime.log_every_steps"
        )
    steps_per_epoch = epochs[-1]["step"] / (epochs[-1]["epoch"] + 1)
    parts = [part for part in ("loss", "supervised", "distillation") if all(part in line for line in steps)]
    loss = {part: np.array([line[part] for line in steps], np.float64) for part in parts}
    if "distillation" in loss and not loss["distillation"].any():
        loss = {"loss": loss["loss"]}  # no teacher: the supervised loss is the total
    known = np.array([line["accuracy"] for line in steps if "accuracy" in line], np.float64)
    seconds = _seconds(lines, batch_size)
    return History(
        position=np.array([line["step"] for line in steps]) / steps_per_epoch,
        loss=loss,
        training_accuracy=known if known.size == len(steps) else None,
        epochs=np.array([line["epoch"] + 1 for line in epochs]),
        accuracy=np.array([line["valid_accuracy"] for line in epochs]),
        mean_class_accuracy=np.array([line["valid_mean_class_accuracy"] for line in epochs]),
        minutes=seconds / 60,
        faces_per_s=epochs[-1]["step"] * batch_size / seconds if seconds else float("nan"),
        data_wait_share=next((line[_WAIT] for line in reversed(lines) if _WAIT in line), float("nan")),
    )


def _read_lines(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); a report needs the complete run folder") from error
    except json.JSONDecodeError as error:
        raise RunError(f"{path}: damaged ({error}); rerun the training command to repair it") from error


def _seconds(lines: list[dict[str, Any]], batch_size: int) -> float:
    """Duration of the training steps, from the logged speeds: the last value of an epoch is its mean."""
    seconds, speed, previous = 0.0, 0.0, 0
    for line in lines:
        speed = line.get("faces_per_s", speed)
        if "epoch" in line and speed:
            seconds += (line["step"] - previous) * batch_size / speed
            previous = line["step"]
    return seconds


def smooth(values: Array, *, window: int = 15) -> Array:
    """Running mean over the last `window` values, (T,)."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    mean: Array = (sums[ends] - sums[starts]) / (ends - starts)
    return mean
