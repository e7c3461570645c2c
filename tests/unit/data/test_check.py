"""`python -m data check`: what is wrong with a copy of a set, and where to get a whole one."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from data.__main__ import app
from data.check import Report, check
from data.contract import LABELS
from data.readers import raf_db
from data.readers.base import Reader, Sample, open_reader, readers
from tests.data_sets import SIX_PER_CLASS, make_ferplus, make_folders, make_raf_db, make_raf_db_kaggle


def _report(reader: Reader) -> Report:
    return check(reader, lambda _split, _pictures: None)


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["check", *map(str, arguments)], env={"COLUMNS": "200"})


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A drawn RAF-DB that is as large as was published."""
    monkeypatch.setattr(raf_db, "PUBLISHED", {"train": SIX_PER_CLASS, "test": SIX_PER_CLASS})
    return make_raf_db(tmp_path / "RAF-DB", originals=False)


def test_a_whole_set_has_no_problems(whole: Path) -> None:
    report = _report(open_reader("raf_db", whole, hold_out_valid=False))
    assert report.problems == []
    assert report.counts == {"train": SIX_PER_CLASS, "test": SIX_PER_CLASS}
    assert report.published == report.counts


def test_progress_counts_every_picture(whole: Path) -> None:
    seen: dict[str, int] = {}

    def count(split: str, pictures: int) -> None:
        seen[split] = seen.get(split, 0) + pictures

    check(open_reader("raf_db", whole, hold_out_valid=False), count)
    assert seen == {"train": 42, "test": 42}


def test_counts_that_differ_from_the_published_ones_are_named(tmp_path: Path) -> None:
    problems = _report(open_reader("raf_db", make_raf_db(tmp_path))).problems
    assert "train: 6 pictures of fear, 253 were published" in problems
    assert "test: 6 pictures of neutral, 680 were published" in problems
    assert "valid: the split is not there, 1,225 pictures were published" in problems


def test_missing_and_unreadable_files_are_counted_and_named(whole: Path) -> None:
    aligned = whole / "Image" / "aligned"
    for number in range(1, 6):
        (aligned / f"train_{number:05}_aligned.jpg").unlink()
    broken = aligned / "test_0001_aligned.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    problems = _report(open_reader("raf_db", whole, hold_out_valid=False)).problems
    assert problems[0].startswith(
        "train: 5 of 42 pictures are missing: Image/aligned/train_00001_aligned.jpg, "
        "Image/aligned/train_00002_aligned.jpg, Image/aligned/train_00003_aligned.jpg and 2 more"
    )
    assert problems[1].startswith("test: 1 pictures are unreadable: Image/aligned/test_0001_aligned.jpg (")
    assert len(problems) == 2


def test_pictures_that_stand_in_two_splits_are_found_by_their_pixels(whole: Path) -> None:
    aligned = whole / "Image" / "aligned"
    shutil.copy(aligned / "train_00003_aligned.jpg", aligned / "test_0009_aligned.jpg")
    shutil.copy(aligned / "train_00004_aligned.jpg", aligned / "train_00005_aligned.jpg")
    report = _report(open_reader("raf_db", whole, hold_out_valid=False))
    assert report.problems == [
        "test: 1 pictures repeat the pixels of a train picture: Image/aligned/test_0009_aligned.jpg"
    ]
    assert report.notes == ["train: 1 pictures repeat the pixels of another train picture"]


def test_the_remedy_for_repeated_pictures_is_named_where_there_is_one(tmp_path: Path) -> None:
    root = make_ferplus(tmp_path)
    shutil.copy(root / "FER2013Train" / "fer0000000.png", root / "FER2013Valid" / "fer0000014.png")
    repeated = [text for text in _report(open_reader("ferplus", root)).problems if "repeat" in text]
    assert repeated[0].endswith("Open the set with exclude_near_duplicates_of=valid to leave them out of train")
    cleaned = _report(open_reader("ferplus", root, exclude_near_duplicates_of="valid"))
    assert not any("repeat" in text for text in cleaned.problems)


def test_an_empty_class_is_named(tmp_path: Path) -> None:
    root = make_folders(tmp_path, {"train": dict.fromkeys(LABELS, 1), "test": dict.fromkeys(LABELS[:5], 1)})
    assert _report(open_reader("folders", root)).problems == ["test: no picture of anger, neutral"]


def test_what_only_the_reader_knows_is_reported(whole: Path, tmp_path: Path) -> None:
    (whole / "Annotation" / "manual" / "train_00002_manu_attri.txt").unlink()
    problems = _report(open_reader("raf_db", whole, hold_out_valid=False)).problems
    assert problems == ["1 pictures have no file in Annotation/manual, such as train_00002"]
    kaggle = make_raf_db_kaggle(tmp_path / "kaggle")
    shutil.copy(kaggle / "DATASET/train/1/train_00001_aligned.jpg", kaggle / "DATASET/train/2/train_00001_aligned.jpg")
    problems = _report(open_reader("raf_db_kaggle", kaggle, hold_out_valid=False)).problems
    assert problems == [
        "1 pictures lie in class folders where no csv lists them, such as train/2/train_00001_aligned.jpg"
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


def test_labels_distributions_and_landmarks_that_cannot_be_are_named(tmp_path: Path) -> None:
    root = make_folders(tmp_path, {"": {"happy": 4}})
    for name, picture in zip("abcd", sorted((root / "happy").iterdir()), strict=True):
        shutil.copy(picture, root / f"{name}.png")
    problems = _report(_Odd(root)).problems
    assert problems[0].startswith("train: 1 labels are none of surprise")
    assert problems[1] == "train: 2 distributions do not sum to 1 over 7 labels: b.png, c.png"
    assert problems[2].startswith("train: 1 pictures are unreadable: d.png (landmarks within")


def test_the_command_prints_a_table_and_exits_with_zero_when_all_is_well(whole: Path) -> None:
    answer = _run("raf_db", whole, "--option", "hold_out_valid=false")
    assert answer.exit_code == 0, answer.output
    assert "6 / 6" in answer.output
    assert "42 / 42" in answer.output
    assert "no problems" in answer.output


def test_the_command_exits_with_one_and_says_where_to_get_the_set(tmp_path: Path) -> None:
    answer = _run("raf_db", make_raf_db(tmp_path))
    assert answer.exit_code == 1
    assert "problem: train: 6 pictures of fear, 253 were published" in answer.output
    assert "whdeng.cn" in answer.output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("raf_db", "nowhere"), "no data at nowhere"),
        (("raf_db2", "nowhere"), f"expected one of {', '.join(readers())}"),
        (("raf_db", ".", "--option", "pictures"), "option 'pictures': expected name=value"),
        (("raf_db", ".", "--option", "size=3"), "no option 'size', expected one of pictures, hold_out_valid"),
    ],
)
def test_a_wrong_call_is_answered_in_one_line_without_a_traceback(arguments: tuple[str, ...], complaint: str) -> None:
    answer = _run(*arguments)
    assert answer.exit_code == 1
    assert complaint in answer.output.replace("\n", " ")
    assert "Traceback" not in answer.output


def test_json_has_everything_that_the_table_shows(tmp_path: Path) -> None:
    answer = _run("folders", make_folders(tmp_path), "--json")
    report = json.loads(answer.stdout)
    assert answer.exit_code == 0
    assert report["counts"] == {"train": dict.fromkeys(LABELS, 2), "test": dict.fromkeys(LABELS, 1)}
    assert report["problems"] == []
    assert report["labels"] == list(LABELS)
