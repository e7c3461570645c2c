"""Results of moved and renamed inputs: kept by content, nothing is labeled twice."""

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.labeling.conftest import Mien, tree
from tests.support import encoded, gradient_image
from tests.support.albums import rows_of, write_photos, write_video


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = write_photos(tmp_path / "photos", "a.jpg", "b.jpg", "deep/c.jpg", "deep/d.jpg")
    (folder / "none.png").write_bytes(encoded(gradient_image(), "PNG"))
    write_video(folder / "clip.avi", frames=5)
    with zipfile.ZipFile(folder / "some.zip", "w") as archive:
        archive.write(folder / "a.jpg", "in/a.jpg")
    return folder


def counts(mien: Mien, photos: Path, out: Path | None = None) -> tuple[int, int]:
    """Numbers of labeled images and of those with the result of a moved input."""
    summary = mien.summary(photos, "--write", "csv,annotated,crops,report", out=out)
    return summary["new"], summary["reused"]


def elsewhere(photos: Path) -> Path:
    return photos.rename(photos.with_name("mounted elsewhere"))


def renamed(photos: Path) -> Path:
    (photos / "deep").rename(photos / "deeper")
    (photos / "clip.avi").rename(photos / "x.avi")
    (photos / "some.zip").rename(photos / "other.zip")
    (photos / "b.jpg").rename(photos / "z.jpg")
    (photos / "a.jpg").rename(photos / "b.jpg")  # a name that another photo had
    return photos


@pytest.mark.parametrize(("move", "reused"), [(elsewhere, 5), (renamed, 9)])
def test_moved_inputs_keep_their_results(
    mien: Mien, photos: Path, tmp_path: Path, move: Callable[[Path], Path], reused: int
) -> None:
    assert counts(mien, photos) == (11, 0)
    photos = move(photos)
    out = shutil.move(mien.out, tmp_path / "another disk")
    new, kept = counts(mien, photos, out)
    assert (new <= 1, kept >= reused) == (True, True), (new, kept)
    assert counts(mien, photos, tmp_path / "fresh") == (11, 0)
    assert tree(out) == tree(tmp_path / "fresh")
    assert {row["status"] for row in rows_of(out)} == {"ok", "no_face"}
    assert mien("review", out, "--export", tmp_path / "faces", "--all").exit_code == 0
    assert counts(mien, photos, out) == (0, 0)


def test_an_archive_and_a_video_that_were_away_are_complete_again(mien: Mien, photos: Path, tmp_path: Path) -> None:
    (photos / "clip.avi").rename(photos / "a.avi")
    containers = [photos / "a.avi", photos / "some.zip"]
    mien.label(photos, "--write", "csv", "--limit", "4")
    for container in containers:
        container.rename(tmp_path / container.name)
    mien.label(photos, "--write", "csv")
    for container in containers:
        (tmp_path / container.name).rename(container)
    names = [row["file"] for row in mien.label(photos, "--write", "csv")]
    assert (names.count("a.avi"), names.count("some.zip/in/a.jpg")) == (5, 1)


def test_other_bytes_with_the_name_and_size_of_a_moved_photo_are_labeled(mien: Mien, photos: Path) -> None:
    payload = (photos / "a.jpg").read_bytes()
    (photos / "a.jpg").write_bytes(payload + b"\0")  # after the end of the image
    counts(mien, photos)
    (photos / "a.jpg").write_bytes(payload + b"\1")
    assert counts(mien, photos) == (1, 0)
