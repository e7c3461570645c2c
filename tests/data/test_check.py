"""`mien data check`: problems of a copy, and how to get the data set."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mien.data.check import Report, check
from mien.data.command import app
from mien.data.contract import LABELS
from mien.data.readers import raf_db
from mien.data.readers.base import Reader, Sample, open_reader
from tests.support.data_sets import SIX_PER_CLASS, make_folders, make_raf_db


def _report(reader: Reader) -> Report:
    return check(reader, lambda _split, _images: None)


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["check", *map(str, arguments)], env={"COLUMNS": "200"})


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A drawn RAF-DB with the published counts."""
    monkeypatch.setattr(raf_db, "PUBLISHED", {"train": SIX_PER_CLASS, "test": SIX_PER_CLASS})
    return make_raf_db(tmp_path / "RAF-DB", originals=False)


def test_a_whole_set_has_no_problems_and_progress_counts_every_image(whole: Path) -> None:
    seen = Counter[str]()
    reader = open_reader("raf_db", whole, hold_out_valid=False)
    report = check(reader, lambda split, images: seen.update({split: images}))
    assert report.problems == []
    assert report.counts == {"train": SIX_PER_CLASS, "test": SIX_PER_CLASS}
    assert report.published == report.counts
    assert seen == {"train": 42, "test": 42}
    answer = _run("raf_db", whole, "--option", "hold_out_valid=false")
    assert answer.exit_code == 0, answer.output
    assert all(text in answer.output for text in ("6 / 6", "42 / 42", "no problems"))
    answer = _run("raf_db", whole, "--option", "hold_out_valid=false", "--option", "classes=fear,anger")
    assert answer.exit_code == 0, answer.output
    assert all(text in answer.output for text in ("12 / 12", "train: left out 6 disgust, 6 happiness", "no problems"))


def test_missing_and_unreadable_files_are_counted_and_named(whole: Path) -> None:
    aligned = whole / "Image" / "aligned"
    for number in range(1, 6):
        (aligned / f"train_{number:05}_aligned.jpg").unlink()
    broken = aligned / "test_0001_aligned.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    problems = _report(open_reader("raf_db", whole, hold_out_valid=False)).problems
    assert problems[0].startswith(
        "train: 5 of 42 images are missing: Image/aligned/train_00001_aligned.jpg, "
        "Image/aligned/train_00002_aligned.jpg, Image/aligned/train_00003_aligned.jpg and 2 more"
    )
    assert problems[1].startswith("test: 1 images are unreadable: Image/aligned/test_0001_aligned.jpg (")
    assert len(problems) == 2


def test_images_in_two_splits_are_found_by_their_pixels(whole: Path) -> None:
    aligned = whole / "Image" / "aligned"
    shutil.copy(aligned / "train_00003_aligned.jpg", aligned / "test_0009_aligned.jpg")
    shutil.copy(aligned / "train_00004_aligned.jpg", aligned / "train_00005_aligned.jpg")
    report = _report(open_reader("raf_db", whole, hold_out_valid=False))
    assert report.problems == [
        (
            "test: 1 images have the same pixels as an image of train: Image/aligned/test_0009_aligned.jpg. "
            "Use the option exclude_near_duplicates_of=test to leave them out of train"
        )
    ]
    assert report.notes == ["train: 1 images have the same pixels as another image of train"]


def test_copies_of_an_image_with_another_label_are_a_problem_of_an_own_set(tmp_path: Path) -> None:
    root = make_folders(tmp_path, {"": dict.fromkeys(LABELS, 3)})
    shutil.copy(root / "happiness" / "000.png", root / "happiness" / "again.png")
    for target in ("happiness/copy.png", "anger/copy.png"):
        shutil.copy(root / "happiness" / "000.png", root / target)
    report = _report(open_reader("folders", root))
    assert report.problems == [
        (
            "all: 3 images have the same pixels as another image of all, 3 of them with another label: "
            "happiness/000.png, happiness/again.png, happiness/copy.png"
        )
    ]


class _Odd(Reader):
    kind, title, where_to_get = "odd", "odd", "nowhere"

    def splits(self) -> tuple[str, ...]:
        return ("train",)

    def _read_split(self, split: str) -> list[Sample]:
        far_away = tuple((1e9, 1e9) for _ in range(5))
        return [
            Sample("a.png", split, "boredom"),
            Sample("b.png", split, "fear", distribution=(0.5, 0.4, 0, 0, 0, 0, 0)),
            Sample("c.png", split, "fear", distribution=(1.0,)),
            Sample("d.png", split, "fear", landmarks_px=far_away),
        ]


def test_invalid_labels_distributions_and_landmarks_are_reported(tmp_path: Path) -> None:
    root = make_folders(tmp_path, {"": {"happy": 4}})
    for name, image in zip("abcd", sorted((root / "happy").iterdir()), strict=True):
        shutil.copy(image, root / f"{name}.png")
    problems = _report(_Odd(root)).problems
    assert problems[0].startswith("train: 1 labels are not among surprise")
    assert problems[1] == "train: 2 distributions do not sum to 1 over 7 labels: b.png, c.png"
    assert problems[2].startswith("train: 1 images are unreadable: d.png (landmarks within")


def test_counts_that_differ_from_the_published_ones_are_named_with_the_place_to_get_the_set(tmp_path: Path) -> None:
    answer = _run("raf_db", make_raf_db(tmp_path))
    assert answer.exit_code == 1
    assert "problem: train: 6 images of fear, expected 253" in answer.output
    assert "problem: valid: split not found, expected 1,225 images" in answer.output
    assert "whdeng.cn" in answer.output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("raf_db", "nowhere"), "no data at nowhere"),
        (("raf_db", ".", "--option", "images"), "option 'images': expected name=value"),
        (("muxspace", "utf16"), "labels.csv is not UTF-8 text"),
    ],
)
def test_an_invalid_call_prints_one_line_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "utf16").mkdir()
    (tmp_path / "utf16" / "labels.csv").write_text("file,emotion\n", encoding="utf-16")
    answer = _run(*arguments)
    assert answer.exit_code == 1
    assert complaint in answer.output.replace("\n", " ")
    assert "Traceback" not in answer.output


def test_json_has_everything_that_the_table_shows(tmp_path: Path) -> None:
    root = make_folders(tmp_path, {"train": dict.fromkeys(LABELS, 1), "test": dict.fromkeys(LABELS[:5], 1)})
    answer = _run("folders", root, "--json")
    report = json.loads(answer.stdout)
    assert answer.exit_code == 1
    assert report["counts"]["train"] == dict.fromkeys(LABELS, 1)
    assert report["problems"] == ["test: no images of anger, neutral"]
    assert report["labels"] == list(LABELS)
