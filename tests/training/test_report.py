"""Reports and tables of experiments, from made-up runs and from real short ones."""

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from mien.data.contract import LABELS
from mien.models.manifest import Interval
from mien.training.cli import main
from mien.training.report import most_confident_mistakes, read_history
from mien.training.run_folder import RunError
from mien.training.wording import ResultFiles, most_confused
from tests.support.data_sets import make_folders, make_raf_db
from tests.support.training import data_of
from tests.training.conftest import Trained


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


PAGES: dict[tuple[Path | str, ...], str] = {}


@pytest.fixture(scope="module")
def place(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small RAF-DB, and copies of the runs of teacher and student, as if trained on it."""
    root = tmp_path_factory.mktemp("report")
    make_raf_db(root / "raf_db", dict.fromkeys(LABELS, 20), dict.fromkeys(LABELS, 3), originals=False)
    for name, run in {"teacher": trained.teacher, "student": trained.student}.items():
        copy = shutil.copytree(run, root / "runs" / name)
        recipe = yaml.safe_load((copy / "recipe.yaml").read_text(encoding="utf-8"))
        recipe |= {"name": name, "data": data_of(root / "raf_db", "raf_db")}
        (copy / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return root


def report(place: Path, *arguments: str, runs: tuple[str, ...] = ("teacher", "student"), kind: str = "raf_db") -> str:
    """The HTML written by the command, cached by arguments."""
    asked = (place, *arguments, *runs, kind)
    if asked not in PAGES:
        out = place / "report.html"
        out.unlink(missing_ok=True)
        folders = [str(place / "runs" / run) for run in runs]
        assert main(["report", *folders, "--data", f"{kind}={place / kind}", "--out", str(out), *arguments]) == 0
        PAGES[asked] = out.read_text(encoding="utf-8")
    return PAGES[asked]


def test_the_page_is_one_self_contained_file_with_all_parts(place: Path) -> None:
    page = report(place)
    addresses = re.findall(r"""\b(?:src|href|srcset|action|data|poster)\s*=\s*["']?([^"'\s>]*)""", page)
    assert len(addresses) > 20
    assert all(address.startswith("data:image/") for address in addresses)
    assert not re.search(r"<(script|link|iframe|object)\b", page)
    for part in ("History", "Confusion", "Calibration", "Most confident mistakes"):
        assert page.count(f"<h3>{part}</h3>") == 2


def test_images_of_faces_are_left_out_on_request(place: Path) -> None:
    page = report(place, "--without-faces", runs=("teacher",))
    assert "data:image/webp" not in page
    assert "data:image/svg" in page


def test_the_test_split_is_shown_only_on_request_and_nothing_is_fitted_on_it(place: Path) -> None:
    assert "This is the test split" not in report(place)
    page = report(place, "--split", "test", runs=("student",))
    assert "This is the test split" in page
    assert "raf_db, test split, 21 faces" in page
    assert "fitted on raf_db, valid split, 14 faces" in page
    on_validation = re.search(r"Temperature\s([\d.]+)", report(place, runs=("student",)))
    assert on_validation is not None
    assert on_validation[0] in page


def test_names_from_files_are_text_on_the_page(place: Path) -> None:
    hostile = "<img src=x onerror=alert(1)>$a$"
    make_folders(place / "folders", {"valid": dict.fromkeys(LABELS, 2)})
    for file in list((place / "folders").rglob("*.png")):
        file.rename(file.with_name(f"{file.stem}{hostile}.png"))
    twin = place / "runs" / "<b>twin<script>"
    twin.mkdir(exist_ok=True)
    for file in (place / "runs" / "student").iterdir():
        (twin / file.name).write_bytes(file.read_bytes())
    page = report(place, runs=("student", "<b>twin<script>"), kind="folders")
    assert "&lt;img src=x onerror" in page
    assert "<img src=x" not in page
    assert "<script" not in page
    assert "<b>twin" not in page
    assert 'onerror="' not in page


def test_a_folder_without_a_finished_run_is_a_clear_error(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(place / "absent"), "--data", f"raf_db={place / 'raf_db'}"]) == 1
    assert "not a run folder" in capsys.readouterr().err
    begun = place / "runs" / "begun"
    begun.mkdir()
    (begun / "recipe.yaml").write_bytes((place / "runs" / "student" / "recipe.yaml").read_bytes())
    assert main(["report", str(begun), "--data", f"raf_db={place / 'raf_db'}"]) == 1
    assert "best.pt" in capsys.readouterr().err
