"""Inputs of labeling: folders, lists, videos, files of kinds that are not read, and unusual files."""

import codecs
from collections import Counter
from pathlib import Path

import pytest

from tests.labeling.conftest import Mien
from tests.support import encoded, gradient_image, sample_photo
from tests.support.albums import ODD_NAMES, by_file, face_photo, rows_of, write_photos, write_video

UNREADABLE = {
    "odd/empty.jpg": ("error", "empty"),
    "odd/text.jpg": ("error", "unsupported"),
    "odd/cut.jpg": ("error", "unsupported"),
    "odd/huge.png": ("error", "too_large"),
    "odd/dangling.jpg": ("error", "not_found"),
    "odd/pipe.jpg": ("skipped", "special_file"),
    "odd/notes.txt": ("skipped", "not_an_image"),
    "odd/photos.zip": ("error", "unsupported"),
}
READABLE = {f"odd/{name}" for name in (*ODD_NAMES, "latin-\\xe9.jpg", "linked.jpg")}


def test_unreadable_files_are_rows_with_a_reason_and_odd_names_and_links_are_labeled(mien: Mien, album: Path) -> None:
    assert "already labeled" not in mien.run(album, "--limit", 1).stderr
    rows = {row["file"]: row for row in mien.label(album, exit_code=3)}
    assert {name: (rows[name]["status"], rows[name]["reason"]) for name in UNREADABLE} == UNREADABLE
    assert all(rows[name]["error"] and not rows[name]["face"] for name in UNREADABLE)
    assert {rows[name]["status"] for name in READABLE} == {"ok"}


def test_archives_camera_raw_and_tga_are_rows_that_say_what_to_use(mien: Mien, folder: Path) -> None:
    advice = {"a.zip": "unzip it", "b.CBZ": "unzip it", "c.tar.gz": "unpack it", "d.rar": "unpack it"}
    advice |= {"e.jpg.gz": "unpack it", "f.nef": "exiftool", "g.DNG": "ImageMagick", "h.tga": "ImageMagick"}
    for name in advice:
        (folder / name).write_bytes(encoded(face_photo(), "TIFF"))  # Camera raw is TIFF, too.
    for inputs in ([folder], [folder / name for name in advice]):
        rows = mien.label(*inputs, "--write", "csv", out=mien.out / str(len(inputs)), exit_code=3)
        assert by_file(rows, "status", "reason") == dict.fromkeys(advice, ("error", "unsupported"))
        assert all(advice[row["file"]] in row["error"] for row in rows)


def test_the_photo_of_a_live_photo_is_labeled_and_its_video_is_skipped_and_counted(mien: Mien, tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", "IMG_1.JPG")
    write_video(photos / "IMG_1.mov", frames=6)
    write_video(photos / "talk.mov", frames=4)

    def frames() -> dict[str, int]:
        return Counter(row["file"] for row in mien.label(photos, "--write", "csv") if row["frame"])

    assert frames() == {"talk.mov": 4}
    assert by_file(rows_of(mien.out), "status", "reason")["IMG_1.mov"] == ("skipped", "live_photo")
    summary = mien.run(photos).stdout
    assert "1 file skipped (1 live_photo)" in summary
    assert "YuNet" not in summary, "every photo has a face"
    (photos / "sky.png").write_bytes(encoded(gradient_image(64, 64)))
    assert "YuNet finds more faces: run `mien models pull`" in mien.run(photos).stdout
    (photos / "IMG_1.JPG").unlink()
    assert frames() == {"IMG_1.mov": 6, "talk.mov": 4}, "without its photo, it is a video"


def test_whole_images_are_one_face_each_and_crops_of_a_run_are_labeled_as_the_run_did(
    mien: Mien, folder: Path, tmp_path: Path
) -> None:
    (folder / "a.jpg").symlink_to(sample_photo())
    (detected,) = mien.label(folder, "--write", "csv,crops")
    (crop,) = mien.label(mien.out / "crops", "--whole", "--write", "csv", out=tmp_path / "again")
    assert (crop["label"], crop["p_anger"]) == (detected["label"], detected["p_anger"])
    (whole,) = mien.label(folder, "--whole", "--write", "csv", out=tmp_path / "whole")
    assert (whole["face"], float(whole["x"]), float(whole["width"]), whole["notes"]) == ("0", 0, 512, "")


def test_folders_files_and_patterns_select_inputs_and_each_is_labeled_once(mien: Mien, tmp_path: Path) -> None:
    nested = write_photos(tmp_path / "photos", "a.jpg", "b.PNG", "deep/c.jpg", "deep/raw/d.jpg", ".secret/e.jpg")
    (deep := nested / "deep", nested / "link")[1].symlink_to(nested / "deep", target_is_directory=True)
    (nested / "link.jpg").symlink_to(nested / "a.jpg")
    other = write_photos(tmp_path / "other", "f.jpg")
    inside = ["photos/a.jpg", "photos/b.PNG", "photos/deep/c.jpg", "photos/deep/raw/d.jpg"]
    for inputs, names in {
        (nested,): ["a.jpg", "b.PNG", "deep/c.jpg", "deep/raw/d.jpg", "link.jpg"],
        (nested, "--ignore", "raw/", "--ignore", "*.PNG"): ["a.jpg", "deep/c.jpg", "link.jpg"],
        (nested, other, "--ignore", "link*"): ["other/f.jpg", *inside],
        (
            *(deep / "c.jpg", nested, f"{deep}/raw/../raw/d.jpg", deep, nested / ".secret/e.jpg"),
            *("--ignore", "link*"),
        ): ["e.jpg", *inside],
    }.items():
        rows = mien.label(*inputs, "--write", "csv", out=tmp_path / f"out {len(names)} {len(inputs)}")
        assert [row["file"] for row in rows] == names
    mien.refuses("does not exist", f"{nested}/**/*.jpg")  # The shell expands patterns.


def test_names_are_read_from_a_list_of_lines_quoted_paths_or_nul_in_utf_8(
    mien: Mien, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write_photos(tmp_path / "photos", "a.jpg", '"b"'))
    mien.refuses("--files-from none.txt does not exist", "--files-from", "none.txt")
    assert not mien.out.exists()
    # Quotes belong to a name between NUL; "Copy as path" of Windows adds them.
    for given in (b'a.jpg\0"b"\0gone.jpg\0', b'"a.jpg"\r\n""b""\r\n"gone.jpg"'):
        rows = mien.label("--files-from", "-", "--write", "csv", exit_code=3, given=given)
        assert by_file(rows, "status") == {"a.jpg": "ok", '"b"': "ok", "gone.jpg": "error"}
    mien.refuses("Save the list as UTF-8", "--files-from", "-", given=codecs.BOM_UTF16_LE + "a.jpg".encode("utf-16-le"))
