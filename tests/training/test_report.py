"""Reports and tables of experiments, from made-up runs and from real short ones."""

import re
import shutil
from pathlib import Path

import pytest
import yaml

from mien.data.contract import LABELS
from mien.training.cli import main
from tests.support.data_sets import make_folders, make_raf_db
from tests.support.training import data_of
from tests.training.conftest import Trained


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


def report(place: Path, *arguments: str, runs: tuple[str, ...] = ("student",), kind: str = "raf_db") -> str:
    """The HTML written by the command."""
    folders, out = [str(place / "runs" / run) for run in runs], place / "report.html"
    assert main(["report", *folders, "--data", f"{kind}={place / kind}", "--out", str(out), *arguments]) == 0
    return out.read_text(encoding="utf-8")


def test_the_page_is_one_self_contained_file_with_all_parts(place: Path) -> None:
    page = report(place, runs=("teacher", "student"))
    addresses = re.findall(r"""\b(?:src|href|srcset|action|data|poster)\s*=\s*["']?([^"'\s>]*)""", page)
    assert len(addresses) > 20
    assert all(address.startswith("data:image/") for address in addresses)
    assert not re.search(r"<(script|link|iframe|object)\b", page)
    for part in ("History", "Confusion", "Calibration", "Most confident mistakes"):
        assert page.count(f"<h3>{part}</h3>") == 2


def test_the_test_split_and_no_images_of_faces_are_shown_on_request_and_nothing_is_fitted_on_it(place: Path) -> None:
    valid, test = report(place), report(place, "--split", "test", "--without-faces")
    assert "data:image/webp" in valid
    assert "data:image/webp" not in test
    assert "This is the test split" not in valid
    assert "raf_db, test split, 21 faces" in test
    assert "fitted on raf_db, valid split, 14 faces" in test
    on_validation = re.search(r"Temperature\s([\d.]+)", valid)
    assert on_validation is not None
    assert on_validation[0] in test


def test_names_from_files_are_text_on_the_page(place: Path) -> None:
    hostile = "<img src=x onerror=alert(1)>$a$"
    make_folders(place / "folders", {"valid": dict.fromkeys(LABELS, 2)})
    for file in list((place / "folders").rglob("*.png")):
        file.rename(file.with_name(f"{file.stem}{hostile}.png"))
    shutil.copytree(place / "runs" / "student", place / "runs" / "<b>twin<script>")
    page = report(place, runs=("<b>twin<script>",), kind="folders")
    assert "&lt;img src=x onerror" in page
    assert "<img src=x" not in page
    assert "<script" not in page
    assert "<b>twin" not in page
    assert 'onerror="' not in page
