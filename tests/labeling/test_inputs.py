"""Inputs of labeling: folders, patterns, lists, archives, videos and unusual files."""

import codecs
from collections import Counter
from pathlib import Path

import pytest

from tests.labeling.conftest import Mien
from tests.support.albums import ODD_NAMES, by_file, rows_of, write_photos, write_video

UNREADABLE = {
    "odd/empty.jpg": ("error", "empty"),
    "odd/text.jpg": ("error", "unsupported"),
    "odd/cut.jpg": ("error", "unsupported"),
    "odd/huge.png": ("error", "too_large"),
    "odd/dangling.jpg": ("error", "not_found"),
    "odd/pipe.jpg": ("skipped", "special_file"),
    "odd/notes.txt": ("skipped", "not_an_image"),
    "containers/no-archive.zip": ("error", "corrupt"),
    "containers/cut.tar.gz": ("error", "corrupt"),
    "containers/photos.zip/broken.jpg": ("error", "unsupported"),
    "containers/photos.zip/inner.zip": ("skipped", "nested"),
}
READABLE = {
    *(f"odd/{name}" for name in (*ODD_NAMES, "latin-\\xe9.jpg", "linked.jpg")),
    *(f"containers/{name}" for name in ("photos.zip/in/09.jpg", "photos.zip/climbs.jpg", "photos.tar.gz/10.jpg")),
}


def test_unreadable_files_are_rows_with_a_reason_and_odd_names_links_and_members_are_labeled(
    labeled_album: Path,
) -> None:
    rows = {row["file"]: row for row in rows_of(labeled_album)}
    assert {name: (rows[name]["status"], rows[name]["reason"]) for name in UNREADABLE} == UNREADABLE
    assert all(rows[name]["error"] and not rows[name]["face"] for name in UNREADABLE)
    assert {rows[name]["status"] for name in READABLE} == {"ok"}
    members = [name for name in rows if name.startswith("containers/cut.tar.gz/")]
    assert 0 < len(members) < 10, "members before the damage of an archive are labeled"


def test_two_frames_per_second_are_labeled_by_default(mien: Mien, folder: Path) -> None:
    write_video(folder / "a.avi", frames=16, rate=8.0)
    assert [row["time_s"] for row in mien.label(folder, "--write", "csv")] == ["0.0", "0.5", "1.0", "1.5"]
    assert len(mien.label(folder, "--write", "csv", "--every", "1")) == 16


def test_the_photo_of_a_live_photo_counts_and_its_video_is_an_option(mien: Mien, tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", "IMG_1.JPG", "talk.jpg")
    write_video(photos / "IMG_1.mov", frames=6)
    write_video(photos / "talk.mov", frames=12)  # too long to be one

    def frames(*options: str) -> dict[str, int]:
        return Counter(row["file"] for row in mien.label(photos, *options, "--write", "csv") if row["frame"])

    assert frames() == {"talk.mov": 12}
    assert by_file(rows_of(mien.out), "status", "reason")["IMG_1.mov"] == ("skipped", "live_photo")
    assert frames("--live-photos") == {"IMG_1.mov": 6, "talk.mov": 12}
    (photos / "IMG_1.JPG").unlink()
    assert frames() == {"IMG_1.mov": 6, "talk.mov": 12}, "without its photo, it is a video"


@pytest.fixture
def nested(tmp_path: Path) -> Path:
    folder = write_photos(tmp_path / "photos", "a.jpg", "b.PNG", "deep/c.jpg", "deep/raw/d.jpg", ".secret/e.jpg")
    (folder / "link").symlink_to(folder / "deep", target_is_directory=True)
    (folder / "link.jpg").symlink_to(folder / "a.jpg")
    return folder


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--no-recursive", "a.jpg b.PNG link.jpg"),
        ("--ignore raw --ignore *.PNG", "a.jpg c.jpg link.jpg"),
        ("--symlinks skip", "a.jpg b.PNG c.jpg d.jpg"),
        ("--symlinks follow", "a.jpg b.PNG c.jpg d.jpg link.jpg"),  # each folder once
        ("--hidden", "a.jpg b.PNG c.jpg d.jpg e.jpg link.jpg"),
    ],
)
def test_options_select_inputs(mien: Mien, nested: Path, options: str, expected: str) -> None:
    rows = mien.label(nested, "--write", "csv", *options.split())
    assert sorted(Path(row["file"]).name for row in rows) == expected.split()


def test_folders_patterns_and_single_files_can_be_combined(mien: Mien, nested: Path, tmp_path: Path) -> None:
    def files(*inputs: str | Path, out: str) -> list[str]:
        rows = mien.label(*inputs, "--write", "csv", "--symlinks", "skip", out=tmp_path / out)
        return [row["file"] for row in rows]

    other = write_photos(tmp_path / "other", "f.jpg")
    assert {"photos/a.jpg", "other/f.jpg"} <= set(files(nested, other, out="folders"))
    deep = nested / "deep"
    given = [deep / "c.jpg", nested, f"{deep}/raw/../raw/d.jpg", deep, nested / ".secret/e.jpg"]
    names = ["e.jpg", "photos/a.jpg", "photos/b.PNG", "photos/deep/c.jpg", "photos/deep/raw/d.jpg"]
    assert files(*given, out="files") == names, "a file or folder of a given folder is labeled once"
    assert {"a.jpg", "deep/c.jpg", "deep/raw/d.jpg"} <= set(files(f"{nested}/**/*.jpg", out="pattern"))


@pytest.mark.parametrize(
    ("given", "options"),
    [
        (b'a.jpg\0"b"\0gone.jpg\0', ["--null"]),  # the quotes belong to the name
        (codecs.BOM_UTF16_BE + 'a.jpg\r\n"b"\r\ngone.jpg'.encode("utf-16-be"), []),
        (b'"a.jpg"\r\n""b""\r\n"gone.jpg"', []),
    ],
    ids=["NUL", "UTF-16 big endian", "copied as paths"],
)
def test_names_are_read_from_standard_input(
    mien: Mien, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: bytes, options: list[str]
) -> None:
    monkeypatch.chdir(write_photos(tmp_path / "photos", "a.jpg", '"b"'))
    rows = mien.label("--files-from", "-", *options, "--write", "csv", exit_code=3, given=given)
    assert by_file(rows, "status") == {"a.jpg": "ok", '"b"': "ok", "gone.jpg": "error"}


def test_a_dry_run_counts_and_writes_nothing(mien: Mien, nested: Path) -> None:
    write_video(nested / "clip.avi", frames=10)
    command = (nested, "--every", "5", "--write", "csv")
    planned = mien.summary(*command, "--dry-run")
    assert not mien.out.exists()
    assert planned["kinds"] == {"file": 5, "video": 1}
    assert (planned["labeled"], planned["video_frames"], planned["to_label"]) == (0, 2, 7)
    assert 0 < planned["disk_bytes"] < planned["free_bytes"]
    mien.label(*command, "--limit", "2")
    assert mien.summary(*command, "--dry-run")["labeled"] == 2
