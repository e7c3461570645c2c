"""Reports and tables of experiments, from made-up runs."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from mien.models.manifest import Interval
from mien.models.network import Head
from mien.training.evaluate import Scores, evaluate
from mien.training.experiment import Plot, Result, as_table, write_figure
from mien.training.faces import Split
from mien.training.report import most_confident_mistakes, read_history
from mien.training.run_folder import RunError
from mien.training.wording import ResultFiles, markdown_table, most_confused


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


def scores(value: float) -> Scores:
    """Of 100 faces of two classes, this share of them labeled correctly."""
    labels, right = np.arange(100) % 2, round(100 * value)
    faces = Split("drawn", "valid", labels, labels, labels, None, ("a", "b"), tuple(map(str, labels)), "0" * 64)
    return evaluate(faces, np.eye(2)[np.where(np.arange(100) < right, labels, 1 - labels)])


def result(row: str, value: float, *, head: Head = "class", chosen: bool = True) -> Result:
    mean, gain = Interval(value, value - 0.02, value + 0.03), Interval(0.01, -0.01, 0.02)
    by_seed = (scores(value - 0.01), scores(value + 0.01))
    return Result(row, head, chosen, 2_700_000, 3.4, by_seed, mean, mean, gain, (0.5, 0.04))


RESULTS = [result("cnn_10", 0.5), result("cnn_100", 0.7), result("vit_10", 0.4), result("vit_100", 0.75)]


PLOT = Plot(
    x="faces, %",
    panels={
        "alone": {"CNN": {10: "cnn_10", 100: "cnn_100"}, "ViT": {10: "vit_10", 100: "vit_100"}},
        "taught": {"CNN": {10: "cnn_10", 100: "cnn_100"}, "ViT": {10: "vit_10", 100: "vit_100"}},
    },
)


def test_the_table_has_intervals_and_marks_the_selected_head() -> None:
    table = markdown_table(*as_table([result("a", 0.5), result("a", 0.4, head="mean", chosen=False)]))
    assert "| a | class * | 2.70 M | 2 | 50.0 ± 1.4 (48.0 to 53.0) |" in table
    assert "| a | mean | 2.70 M |" in table
    assert "| +1.0 (-1.0 to +2.0) | 0.5, 0.04 | 3 |" in table


def test_the_figure_names_axes_lines_and_panels_and_is_the_same_each_time(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        write_figure(tmp_path / name, RESULTS, PLOT)
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    for word in ("CNN", "ViT", "alone", "taught", "faces, %", "validation accuracy, %"):
        assert f">{word}<" in text
    assert ">10<" in text
    assert ">100<" in text
    assert (tmp_path / "b.svg").read_text(encoding="utf-8") == text


def test_the_most_frequent_confusion_is_a_share_of_the_actual_class() -> None:
    counts = np.array([[5, 3, 0], [1, 9, 0], [0, 2, 8]])
    assert most_confused(counts, ("fear", "surprise", "anger")) == "fear labeled surprise: 38 %"
    assert most_confused(np.diag([1, 2, 3]), ("fear", "surprise", "anger")) == ""


def test_tables_are_written_for_spreadsheets_and_papers(tmp_path: Path) -> None:
    heads, rows = ("run_name", "accuracy, %"), [("a_1", "50.0 ± 1.4 (48.0, 53.0)"), ("b & c", "40")]
    for name in ("table.csv", "table.tex", "table.md"):
        files = ResultFiles(tmp_path / "results.json", tmp_path / name)
        files.write(heads, rows, {"accuracy": Interval(0.5, 0.4, 0.6)})
    lines = (tmp_path / "table.csv").read_text(encoding="utf-8").splitlines()
    assert list(csv.reader(lines)) == [list(heads), *map(list, rows)]
    latex = (tmp_path / "table.tex").read_text(encoding="utf-8")
    assert r"run\_name & accuracy, \% \\" in latex
    assert r"b \& c & 40 \\" in latex
    assert "50.0 $\\pm$ 1.4" in latex
    assert (tmp_path / "table.md").read_text(encoding="utf-8").count("\n") == 4
    assert json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["accuracy"]["low"] == 0.4
