"""`mien data check`: problems of a copy, and how to get the data set."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mien.data.check import app, check
from mien.data.contract import LABELS
from mien.data.readers.base import open_reader
from mien.data.readers.raf_db import RafDb
from tests.support.data_sets import SIX_PER_CLASS, make_folders, make_photos, make_raf_db


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["check", *map(str, arguments)], env={"COLUMNS": "200"})


def test_a_whole_set_has_no_problems_and_damaged_images_are_counted_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make_raf_db(tmp_path / "RAF-DB", originals=False)
    done = _run("raf_db", whole, "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["problems"] == [
        "train: a part of the set, 42 of 11,046 images",
        "valid: split not found, expected 1,225 images",
        "test: a part of the set, 42 of 3,068 images",
    ]
    monkeypatch.setattr(RafDb, "published", dict.fromkeys(("train", "test"), SIX_PER_CLASS))
    report = check(open_reader("raf_db", whole))
    assert report["problems"] == []
    assert report["counts"] == report["published"] == {"train": SIX_PER_CLASS, "test": SIX_PER_CLASS}
    done = _run("raf_db", whole, "--option", "classes=fear,anger")
    assert done.exit_code == 0, done.output
    assert all(text in done.output for text in ("12 / 12", "train: left out 6 disgust, 6 happiness", "no problems"))
    aligned = whole / "Image" / "aligned"
    for number in range(1, 6):
        (aligned / f"train_{number:05}_aligned.jpg").unlink()
    broken = aligned / "test_0001_aligned.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    shutil.copy(aligned / "train_00007_aligned.jpg", aligned / "test_0009_aligned.jpg")
    shutil.copy(aligned / "train_00008_aligned.jpg", aligned / "train_00040_aligned.jpg")  # of another label
    monkeypatch.setattr(RafDb, "published", {"train": SIX_PER_CLASS, "test": SIX_PER_CLASS | {"fear": 7}})
    report = check(open_reader("raf_db", whole))
    missing, unreadable, repeated, few = report["problems"]
    assert few == "test: 6 images of fear, expected 7"
    assert "1 of them with another label" in report["notes"][-1], "published sets have such copies"
    assert missing.startswith(
        "train: 5 of 42 images are missing: Image/aligned/train_00001_aligned.jpg, "
        "Image/aligned/train_00002_aligned.jpg, Image/aligned/train_00003_aligned.jpg and 2 more"
    )
    assert unreadable.startswith("test: 1 images are unreadable: Image/aligned/test_0001_aligned.jpg (")
    assert repeated.startswith("test: 1 images have the same pixels as an image of train: Image/aligned/test_0009_")
    assert repeated.endswith("exclude_near_duplicates_of=test to leave them out of train")
    done = _run("raf_db", whole)
    assert (done.exit_code, "whdeng.cn" in done.output) == (1, True)


def test_copies_with_another_label_and_whole_photos_are_problems_of_an_own_set(tmp_path: Path) -> None:
    root = make_folders(tmp_path, {"": dict.fromkeys(LABELS, 3)})
    shutil.copy(root / "happiness" / "000.png", root / "happiness" / "copy.png")
    assert check(open_reader("folders", root), face_share=lambda _image: 0.5)["problems"] == []
    shutil.copy(root / "happiness" / "000.png", root / "anger" / "copy.png")
    photos, copies = check(open_reader("folders", root), face_share=lambda _image: 0.4)["problems"]
    assert photos.startswith("train: 23 of 23 images examined have no face of at least 45% of their width: anger/000")
    assert "2 images have the same pixels as another image of train, 2 of them with another label" in copies
    assert check(open_reader("photos", make_photos(tmp_path / "photos")))["problems"] == [], "which have no labels"
