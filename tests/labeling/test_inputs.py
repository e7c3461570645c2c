"""Inputs of labeling: folders, patterns, lists, archives, videos and unusual files."""

import codecs
import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

from tests.labeling.conftest import Mien
from tests.support.albums import ODD_NAMES, rows_of, write_photos, write_video

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


def files_of(rows: list[dict[str, str]]) -> set[str]:
    return {row["file"] for row in rows}


def test_unreadable_files_are_rows_with_a_reason_and_odd_names_links_and_members_are_labeled(
    mien: Mien, album: Path, tmp_path: Path
) -> None:
    rows = {row["file"]: row for row in mien.label(album, "--write", "csv", out=tmp_path, exit_code=3)}
    assert {name: (rows[name]["status"], rows[name]["reason"]) for name in UNREADABLE} == UNREADABLE
    assert all(rows[name]["error"] and not rows[name]["face"] for name in UNREADABLE)
    assert {rows[name]["status"] for name in READABLE} == {"ok"}
    members = [name for name in rows if name.startswith("containers/cut.tar.gz/")]
    assert 0 < len(members) < 10, "members before the damage of an archive are labeled"


def test_two_frames_per_second_are_labeled_by_default_and_one_line_says_so(
    mien: Mien, folder: Path, tmp_path: Path
) -> None:
    for name in ("a.avi", "b.avi"):
        write_video(folder / name, frames=16, rate=8.0)
    done = mien("label", folder, "--out", tmp_path / "out", "--write", "csv")
    assert done.stderr.count("--every 1") == 1, done.stderr
    assert [row["time_s"] for row in rows_of(tmp_path / "out") if row["file"] == "a.avi"] == [
        "0.0",
        "0.5",
        "1.0",
        "1.5",
    ]
    done = mien("label", folder, "--out", tmp_path / "out", "--write", "csv", "--every", "1")
    assert "--every" not in done.stderr
    assert len(rows_of(tmp_path / "out")) == 32


def test_the_photo_of_a_live_photo_counts_and_its_video_is_an_option(mien: Mien, tmp_path: Path) -> None:
    photos, out = write_photos(tmp_path / "photos", "IMG_1.JPG", "IMG_2.JPG", "talk.jpg"), tmp_path / "out"
    write_video(photos / "IMG_1.mov", frames=6)
    write_video(photos / "IMG_3.mov", frames=6)
    write_video(photos / "talk.mov", frames=12)  # too long to be one

    def frames(*options: str) -> dict[str, int]:
        return Counter(row["file"] for row in mien.label(photos, *options, out=out) if row["frame"])

    assert frames() == {"IMG_3.mov": 6, "talk.mov": 12}
    (live,) = (row for row in rows_of(out) if row["file"] == "IMG_1.mov")
    assert (live["status"], live["reason"]) == ("skipped", "live_photo")
    assert "IMG_1.JPG" in live["error"]
    assert frames("--live-photos") == {"IMG_1.mov": 6, "IMG_3.mov": 6, "talk.mov": 12}
    assert frames() == {"IMG_3.mov": 6, "talk.mov": 12}
    (photos / "IMG_1.JPG").unlink()
    assert frames() == {"IMG_1.mov": 6, "IMG_3.mov": 6, "talk.mov": 12}, "without its photo, it is a video"


@pytest.fixture
def nested(tmp_path: Path) -> Path:
    folder = write_photos(tmp_path / "photos", "a.jpg", "b.PNG", "deep/c.jpg", "deep/raw/d.jpg", ".secret/e.jpg")
    (folder / "link").symlink_to(folder / "deep", target_is_directory=True)
    (folder / "link.jpg").symlink_to(folder / "a.jpg")
    return folder


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], {"a.jpg", "b.PNG", "deep/c.jpg", "deep/raw/d.jpg", "link.jpg"}),
        (["--no-recursive"], {"a.jpg", "b.PNG", "link.jpg"}),
        (["--ignore", "raw", "--ignore", "*.PNG"], {"a.jpg", "deep/c.jpg", "link.jpg"}),
        (["--ignore", "deep/raw/*"], {"a.jpg", "b.PNG", "deep/c.jpg", "link.jpg"}),
        (["--symlinks", "skip"], {"a.jpg", "b.PNG", "deep/c.jpg", "deep/raw/d.jpg"}),
        (["--hidden"], {"a.jpg", "b.PNG", "deep/c.jpg", "deep/raw/d.jpg", "link.jpg", ".secret/e.jpg"}),
    ],
)
def test_options_select_inputs(
    mien: Mien, nested: Path, tmp_path: Path, options: list[str], expected: set[str]
) -> None:
    assert files_of(mien.label(nested, "--write", "csv", *options, out=tmp_path / "out")) == expected


def test_followed_links_enter_each_folder_once(mien: Mien, nested: Path, tmp_path: Path) -> None:
    names = files_of(mien.label(nested, "--write", "csv", "--symlinks", "follow", out=tmp_path / "out"))
    assert sum(name.endswith("c.jpg") for name in names) == 1


def test_folders_patterns_and_single_files_can_be_combined(mien: Mien, nested: Path, tmp_path: Path) -> None:
    other, numbers = write_photos(tmp_path / "other", "f.jpg"), itertools.count()

    def files(*inputs: str | Path) -> list[str]:
        rows = mien.label(*inputs, "--write", "csv", "--symlinks", "skip", out=tmp_path / f"out{next(numbers)}")
        return [row["file"] for row in rows]

    assert {"photos/a.jpg", "other/f.jpg"} <= set(files(nested, other))
    for folders in [(nested, nested / "deep"), (nested / "deep", nested)]:
        below = files(*folders)
        assert sum(name.endswith("d.jpg") for name in below) == 1, "a folder below another input is labeled once"
    given = [nested / "deep/c.jpg", nested, f"{nested}/deep/raw/../raw/d.jpg", nested / ".secret/e.jpg"]
    names = ["e.jpg", "photos/a.jpg", "photos/b.PNG", "photos/deep/c.jpg", "photos/deep/raw/d.jpg"]
    assert files(*given) == names, "a file of a given folder is labeled once"
    assert {"a.jpg", "deep/c.jpg", "deep/raw/d.jpg"} <= set(files(f"{nested}/**/*.jpg"))
    assert files(nested / "a.jpg") == ["a.jpg"]


LIST = ["a.jpg", "deep/c.jpg", "gone.jpg", ""]


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ("\n".join(LIST).encode(), []),
        ("\0".join(LIST).encode(), ["--null"]),
        (codecs.BOM_UTF16_LE + "\r\n".join(LIST).encode("utf-16-le"), []),
        (codecs.BOM_UTF16_BE + "\r\n".join(LIST).encode("utf-16-be"), []),
        ("\r\n".join(f'"{name}"' for name in LIST[:3]).encode("utf-8-sig"), []),
    ],
    ids=["lines", "NUL", "UTF-16 of Windows", "UTF-16 big endian", "copied as paths"],
)
def test_names_are_read_from_standard_input(
    mien: Mien, nested: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: bytes, options: list[str]
) -> None:
    monkeypatch.chdir(nested)
    rows = mien.label("--files-from", "-", *options, out=tmp_path / "out", exit_code=3, given=given)
    assert {row["file"]: row["status"] for row in rows} == {"a.jpg": "ok", "deep/c.jpg": "ok", "gone.jpg": "error"}


def test_quotes_that_are_part_of_a_listed_name_stay(
    mien: Mien, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write_photos(tmp_path / "photos", '"a".jpg', '"b"'))
    rows = mien.label("--files-from", "-", out=tmp_path / "out", given=b'"a".jpg\n"b"\n')
    assert files_of(rows) == {'"a".jpg', '"b"'}


@pytest.mark.parametrize(
    ("options", "named"), [(["photos", "--ignore", "*"], "--ignore"), (["--files-from", "-"], "--null")]
)
def test_an_option_that_leaves_no_input_or_is_missing_is_named(
    mien: Mien, nested: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = mien("label", *options, given=bytes(nested / "a.jpg") + b"\0")
    assert done.exit_code == 1
    assert named in done.stderr


def test_a_dry_run_counts_and_writes_nothing(mien: Mien, nested: Path, tmp_path: Path) -> None:
    assert "5 files" in mien("label", nested, "--out", tmp_path / "out", "--dry-run").stdout.splitlines()[0]
    assert not (tmp_path / "out").exists()
    mien.label(nested, out=tmp_path / "out")
    write_photos(nested, "new.jpg")
    write_video(nested / "clip.avi", frames=10)
    done = mien("label", nested, "--out", tmp_path / "out", "--every", "5", "--dry-run", "--json-log")
    counts = json.loads(done.stderr)
    assert counts["kinds"] == {"file": 6, "video": 1}
    assert (counts["labeled"], counts["video_frames"]) == (5, 2)
    assert 0 < counts["disk_bytes"] < counts["free_bytes"]
    copied = mien("label", nested, "--out", tmp_path / "other", "--write", "annotated", "--dry-run", "--json-log")
    assert json.loads(copied.stderr)["disk_bytes"] > 10 * 400_000, "ten frames, larger than their compressed video"
    scenes = mien("label", nested / "clip.avi", "--out", tmp_path / "other", "--scenes", "--dry-run").stdout
    assert "1 video of unknown length" in scenes
    assert "0 frames" not in scenes
    command = ("label", nested, "--out", tmp_path / "out", "--dry-run")
    assert "5 of these are labeled already" in mien(*command).stdout
    assert "already" not in mien(*command, "--new-run").stdout
    assert "2 of the others are labeled in this run" in mien(*command, "--limit", "2", "--every", "5").stdout
    limited = json.loads(mien(*command, "--limit", "2", "--every", "5", "--json-log").stderr)
    assert (limited["to_label"], counts["to_label"]) == (2, 3)
    assert 0 < limited["disk_bytes"] < counts["disk_bytes"]
    assert "already" not in mien(*command, "--write", "crops").stdout, "all are labeled again"
    (nested / "gone.jpg").symlink_to("nothing")
    mien.label(nested, "--write", "crops", out=tmp_path / "out", exit_code=3)
    assert "7 of these are labeled already" in mien(*command, "--write", "crops").stdout, "with the video"


def test_a_dry_run_is_refused_like_the_run(mien: Mien, nested: Path, tmp_path: Path) -> None:
    for options in (("--out", nested), ("--out", tmp_path / "out", "--boxes", tmp_path / "none.csv")):
        refused = mien("label", nested, *options, "--dry-run")
        assert (refused.exit_code, refused.stderr) == (1, mien("label", nested, *options).stderr)
