"""Inputs of labeling: folders, patterns, lists, archives, videos and unusual files."""

import codecs
import itertools
import json
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


def test_two_frames_per_second_are_labeled_by_default_and_one_line_says_so(mien: Mien, folder: Path) -> None:
    for name in ("a.avi", "b.avi"):
        write_video(folder / name, frames=16, rate=8.0)
    assert mien.run(folder, "--write", "csv").stderr.count("--every 1") == 1
    times = [row["time_s"] for row in rows_of(mien.out) if row["file"] == "a.avi"]
    assert times == ["0.0", "0.5", "1.0", "1.5"]
    assert "--every" not in mien.run(folder, "--write", "csv", "--every", "1").stderr
    assert len(rows_of(mien.out)) == 32


def test_the_photo_of_a_live_photo_counts_and_its_video_is_an_option(mien: Mien, tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", "IMG_1.JPG", "IMG_2.JPG", "talk.jpg")
    write_video(photos / "IMG_1.mov", frames=6)
    write_video(photos / "IMG_3.mov", frames=6)
    write_video(photos / "talk.mov", frames=12)  # too long to be one

    def frames(*options: str) -> dict[str, int]:
        return Counter(row["file"] for row in mien.label(photos, *options, "--write", "csv") if row["frame"])

    assert frames() == {"IMG_3.mov": 6, "talk.mov": 12}
    (live,) = (row for row in rows_of(mien.out) if row["file"] == "IMG_1.mov")
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
        ("", "a.jpg b.PNG c.jpg d.jpg link.jpg"),
        ("--no-recursive", "a.jpg b.PNG link.jpg"),
        ("--ignore raw --ignore *.PNG", "a.jpg c.jpg link.jpg"),
        ("--ignore deep/raw/*", "a.jpg b.PNG c.jpg link.jpg"),
        ("--symlinks skip", "a.jpg b.PNG c.jpg d.jpg"),
        ("--symlinks follow", "a.jpg b.PNG c.jpg d.jpg link.jpg"),  # each folder once
        ("--hidden", "a.jpg b.PNG c.jpg d.jpg e.jpg link.jpg"),
    ],
)
def test_options_select_inputs(mien: Mien, nested: Path, options: str, expected: str) -> None:
    rows = mien.label(nested, "--write", "csv", *options.split())
    assert sorted(Path(row["file"]).name for row in rows) == expected.split()


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


@pytest.mark.parametrize(
    ("given", "options"),
    [
        (b'a.jpg\n"b"\ngone.jpg\n', []),  # the quotes belong to the name
        (b'a.jpg\0"b"\0gone.jpg\0', ["--null"]),
        (codecs.BOM_UTF16_BE + 'a.jpg\r\n"b"\r\ngone.jpg'.encode("utf-16-be"), []),
        (b'"a.jpg"\r\n""b""\r\n"gone.jpg"', []),
    ],
    ids=["lines", "NUL", "UTF-16 big endian", "copied as paths"],
)
def test_names_are_read_from_standard_input(
    mien: Mien, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: bytes, options: list[str]
) -> None:
    monkeypatch.chdir(write_photos(tmp_path / "photos", "a.jpg", '"b"'))
    rows = mien.label("--files-from", "-", *options, "--write", "csv", exit_code=3, given=given)
    assert by_file(rows, "status") == {"a.jpg": "ok", '"b"': "ok", "gone.jpg": "error"}


def test_a_list_with_nul_characters_names_the_missing_option(mien: Mien, nested: Path) -> None:
    done = mien.run("--files-from", "-", given=bytes(nested / "a.jpg") + b"\0")
    assert done.exit_code == 1
    assert "--null" in done.stderr


def test_a_dry_run_counts_and_writes_nothing(mien: Mien, nested: Path) -> None:
    def planned(*options: str, source: Path = nested) -> str:
        return mien.run(source, "--dry-run", *options).stdout

    def counts(*options: str) -> dict[str, int]:
        facts: dict[str, int] = json.loads(mien.run(nested, "--dry-run", "--every", "5", "--json-log", *options).stderr)
        return facts

    assert "5 files" in planned().splitlines()[0]
    assert not mien.out.exists()
    mien.label(nested)
    write_photos(nested, "new.jpg")
    write_video(nested / "clip.avi", frames=10)
    whole, limited = counts(), counts("--limit", "2")
    assert whole["kinds"] == {"file": 6, "video": 1}
    assert (whole["labeled"], whole["video_frames"], whole["to_label"], limited["to_label"]) == (5, 2, 3, 2)
    assert 0 < limited["disk_bytes"] < whole["disk_bytes"] < whole["free_bytes"]
    scenes = planned("--new-run", "--scenes", source=nested / "clip.avi")
    assert "1 video of unknown length" in scenes
    assert "0 frames" not in scenes
    assert counts("--every", "1", "--new-run", "--write", "annotated")["disk_bytes"] > 10 * 400_000, "ten large copies"
    assert "5 of these are labeled already" in planned()
    assert "already" not in planned("--new-run")
    assert "2 of the others are labeled in this run" in planned("--limit", "2", "--every", "5")
    assert "already" not in planned("--write", "crops"), "all are labeled again"
    (nested / "gone.jpg").symlink_to("nothing")
    mien.label(nested, "--write", "crops", exit_code=3)
    assert "7 of these are labeled already" in planned("--write", "crops"), "with the video"


def test_a_dry_run_is_refused_like_the_run(mien: Mien, nested: Path, tmp_path: Path) -> None:
    for out, options in ((nested, ()), (mien.out, ("--boxes", tmp_path / "none.csv"))):
        refused = mien.run(nested, *options, "--dry-run", out=out)
        assert (refused.exit_code, refused.stderr) == (1, mien.run(nested, *options, out=out).stderr)
