"""The most frequent confusion, and files of tables."""

import csv
import json
from pathlib import Path

import numpy as np

from mien.models.manifest import Interval
from mien.training.wording import ResultFiles, most_confused


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
