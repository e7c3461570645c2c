"""Inputs of labeling: folders, lists, photos, videos, and files that are unusual, damaged or swapped during a run."""

import codecs
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mien.app.labeling.executors import Threads
from mien.data.contract import decode
from tests.labeling.conftest import ODD_NAMES, UNREADABLE, Labeled, Mien
from tests.support import encoded, gradient_image, sample_photo
from tests.support.albums import by_file, ffmpeg, rows_of, write_photos, write_video


def test_unreadable_files_are_rows_with_a_reason_and_odd_names_and_links_are_labeled(album: Labeled) -> None:
    rows = {row["file"].removeprefix("odd/"): row for row in rows_of(album.out)}
    links = {"dangling.jpg": (b"", "error", "not_found", "link"), "pipe.jpg": (b"", "skipped", "special_file", "pipe")}
    unreadable, readable = UNREADABLE | links, {*ODD_NAMES, "latin-\\xe9.jpg", "linked.jpg", "twice.jpg"}
    for name, (_, status, reason, error) in unreadable.items():
        assert (rows[name]["status"], rows[name]["reason"], rows[name]["face"]) == (status, reason, ""), name
        assert error in rows[name]["error"] != "", name
    assert {rows[name]["status"] for name in readable} == {"ok"}
    assert rows.keys() - unreadable.keys() - readable - {"locked.jpg"} == {
        "clip.avi", *(f"{number:02d}.{'jpg' if number % 7 else 'png'}" for number in range(100))
    }  # fmt: skip


def test_the_photo_of_a_live_photo_is_labeled_and_its_video_is_skipped_and_counted(mien: Mien, folder: Path) -> None:
    write_photos(folder, "IMG_1.JPG")
    write_video(folder / "IMG_1.mov", frames=6)
    write_video(folder / "talk.mov", frames=4)

    def frames() -> dict[str, int]:
        return Counter(row["file"] for row in mien.label(folder, "--write", "csv") if row["frame"])

    assert "already labeled" not in mien.run(folder, "--limit", "1").stderr, "the first run"
    assert frames() == {"talk.mov": 4}
    assert by_file(rows_of(mien.out), "status", "reason")["IMG_1.mov"] == ("skipped", "live_photo")
    summary = mien.run(folder).stdout
    assert "1 file skipped (1 live_photo)" in summary
    assert "YuNet" not in summary, "every photo has a face"
    (folder / "sky.png").write_bytes(encoded(gradient_image(64, 64)))
    assert "YuNet finds more faces: run `mien models pull`" in mien.run(folder).stdout
    (folder / "IMG_1.JPG").unlink()
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
        (nested / "b.PNG", nested / "a.jpg"): ["a.jpg", "b.PNG"],
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
    Path("list.txt").write_bytes(given)
    mien.refuses("has the results of standard input. Name these", "--files-from", "list.txt")
    mien.refuses("Save the list as UTF-8", "--files-from", "-", given=codecs.BOM_UTF16_LE + "a.jpg".encode("utf-16-le"))


@pytest.mark.timeout(60)
def test_a_pipe_that_replaces_a_file_after_the_scan_does_not_block_the_run(
    mien: Mien, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced, run = (photos / "2.jpg", write_video(photos / "clip.avi", frames=2)), Threads.run

    def swapped(*arguments: Any) -> Any:
        for path in replaced:
            path.unlink()
            os.mkfifo(path)
        return run(*arguments)

    monkeypatch.setattr(Threads, "run", swapped)
    reasons = by_file(mien.label(photos), "status", "reason")
    assert {reasons[path.name] for path in replaced} == {("skipped", "special_file")}


# Damage


def test_a_third_of_a_video_is_an_error_and_its_frames_are_labeled(mien: Mien, tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.mkv", frames=60, rate=10.0)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    rows = mien.label(path, "--every", "5", "--write", "csv", exit_code=3)
    (whole,) = (row for row in rows if not row["frame"])
    assert (whole["status"], whole["reason"]) == ("error", "corrupt")
    assert "of 6.0 s: truncated or damaged" in whole["error"]
    assert Counter(row["status"] for row in rows if row["frame"])["ok"] in range(2, 6)


def test_videos_that_are_whole_have_no_error(mien: Mien, folder: Path, tmp_path: Path) -> None:
    base = tmp_path / "b.mp4"
    ffmpeg("-i", write_video(tmp_path / "a.mp4", frames=32, rate=8.0), "-c:v", "libx264", "-g", "8", base)
    sound = ("-f", "lavfi", "-t", "9", "-i", "anullsrc")  # It is longer than the video.
    ffmpeg("-i", base, *sound, "-c:v", "copy", folder / "long.mkv")
    ffmpeg("-i", base, "-c", "copy", "-output_ts_offset", "20", folder / "late.ts")
    ffmpeg("-ss", "1.1", "-i", base, "-c", "copy", folder / "trimmed.mp4")
    ffmpeg("-i", base, "-c", "copy", "-f", "segment", "-segment_time", "2", folder / "part%d.mkv")
    ffmpeg(*sound, folder / "sound.mp4")
    rows = mien.label(folder, "--every", "16", "--write", "csv")
    odd = [row for row in rows if row["status"] != "ok"]
    assert by_file(odd, "status", "reason") == {"sound.mp4": ("skipped", "no_video")}


def test_a_jpeg_without_its_end_is_labeled_as_far_as_it_goes_and_beyond_a_half_it_is_an_error(
    mien: Mien, folder: Path, tmp_path: Path
) -> None:
    whole = encoded(decode(sample_photo().read_bytes()), "JPEG", quality=90)
    with Image.open(sample_photo()) as image:
        progressive = encoded(image.convert("RGB"), "JPEG", progressive=True, quality=90)
    cuts = {"whole": whole, "no-marker": whole[:-2], "last-percent": whole[: len(whole) * 99 // 100]}
    cuts |= {"progressive": progressive[: len(progressive) * 7 // 10], "beyond-half": whole[: len(whole) * 4 // 10]}
    for name, payload in cuts.items():
        (folder / name).write_bytes(payload)
    rows = mien.label(folder, "--write", "csv,annotated", exit_code=3)
    assert by_file(rows, "status", "reason", "notes") == dict.fromkeys(cuts, ("ok", "", "incomplete")) | {
        "whole": ("ok", "", ""),
        "beyond-half": ("error", "corrupt", ""),
    }
    assert sum(row["label"] != "" for row in rows) == 4
    assert mien("review", mien.out, "--export", tmp_path / "faces", "--all").stdout.startswith("4 faces")
