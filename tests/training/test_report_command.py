"""The report of real short runs."""

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
