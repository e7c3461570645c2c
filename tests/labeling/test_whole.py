"""Images that are one face each: crops of a run, and photos."""

from pathlib import Path

import pytest

from mien.app.settings import Settings
from tests.support import sample_photo
from tests.support.albums import label_folder, rows_of


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("a.jpg", "b.jpg"):
        (folder / name).symlink_to(sample_photo())
    return folder


def test_crops_of_a_run_are_labeled_as_the_run_did(photos: Path, settings: Settings) -> None:
    out, again = photos.parent / "out", photos.parent / "again"
    label_folder(photos, out, settings, "csv", "crops")
    label_folder(out / "crops", again, settings, "csv", whole=True)
    first, second = ([(row["label"], row["p_anger"]) for row in rows_of(folder)] for folder in (out, again))
    assert first == second


def test_whole_images_are_one_face_each(photos: Path, settings: Settings) -> None:
    label_folder(photos, photos.parent / "out", settings, "csv", whole=True)
    rows = rows_of(photos.parent / "out")
    found = [(row["face"], float(row["x"]), float(row["width"]), row["notes"]) for row in rows]
    assert found == [("0", 0, 512, "")] * 2
