"""Figures of the report, from made-up runs."""

import json
from pathlib import Path

import numpy as np
import pytest

from mien.training.loop.run_folder import RunError
from mien.training.report.history import read_history
from mien.training.report.results import most_confident_mistakes


def write_metrics(folder: Path, *, distillation: float = 0.0, keys: tuple[str, ...] = ("loss", "epoch")) -> Path:
    """The metrics of two epochs, lines with one of `keys` only."""
    part = {"supervised": 1.0, "distillation": distillation}
    lines = [
        {"step": 5, "loss": 2.0, **part, "faces_per_s": 50.0},
        {"step": 10, "loss": 1.5, **part, "faces_per_s": 100.0},
        {"step": 10, "epoch": 0, "head": "class", "valid_accuracy": 0.3, "valid_mean_class_accuracy": 0.2},
        {"step": 20, "loss": 1.0, **part, "faces_per_s": 200.0},
        {"step": 20, "epoch": 1, "head": "class", "valid_accuracy": 0.5, "valid_mean_class_accuracy": 0.4},
    ]
    chosen = [line for line in lines if any(key in line for key in keys)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in chosen), encoding="utf-8")
    return folder


def test_mistakes_are_sorted_by_confidence_and_exclude_correct_faces() -> None:
    predicted, labels = np.array([0, 1, 2, 3]), np.array([0, 2, 2, 1])
    assert most_confident_mistakes(predicted, np.array([0.9, 0.5, 0.9, 0.7]), labels).tolist() == [3, 1]
    assert most_confident_mistakes(predicted, np.ones(4), labels, shown=1).tolist() == [1]


def test_minutes_are_computed_from_the_speed_of_each_epoch(tmp_path: Path) -> None:
    history = read_history(write_metrics(tmp_path), batch_size=60)
    assert history.minutes == pytest.approx((10 * 60 / 100 + 10 * 60 / 200) / 60)
    assert history.faces_per_s == pytest.approx(20 * 60 / 9)
    assert history.position.tolist() == [0.5, 1.0, 2.0]
    assert history.epochs.tolist() == [1, 2]
    assert list(history.loss) == ["loss"]
    assert len(read_history(write_metrics(tmp_path, distillation=0.4), batch_size=8).loss) == 3


def test_a_run_without_a_completed_epoch_or_with_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    for keys, complaint in ((("loss",), "no epoch is completed"), (("epoch",), "no step was logged")):
        write_metrics(tmp_path, keys=keys)
        with pytest.raises(RunError, match=complaint):
            read_history(tmp_path, batch_size=8)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "lo', encoding="utf-8")
    with pytest.raises(RunError, match="damaged"):
        read_history(tmp_path, batch_size=8)
    (tmp_path / "metrics.jsonl").unlink()
    with pytest.raises(RunError, match="cannot be read"):
        read_history(tmp_path, batch_size=8)
