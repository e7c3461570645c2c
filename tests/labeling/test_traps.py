"""Traps of real collections: cut and uneven videos, files swapped during a run, formats."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mien.app.labeling.executors import Threads
from mien.data.contract import decode
from tests.labeling.conftest import Mien
from tests.support import encoded, sample_photo
from tests.support.albums import by_file, face_photo, ffmpeg, write_video


def jpeg(variant: int) -> bytes:
    return encoded(face_photo(variant=variant), "JPEG")


# Videos


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


# Files swapped during a run


@pytest.mark.timeout(60)
def test_a_pipe_that_replaces_a_file_after_the_scan_does_not_block_the_run(
    mien: Mien, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced, real = [photos / "2.jpg", photos / "clip.avi"], Threads.run
    replaced[1].write_bytes(jpeg(2))

    def swapped(*arguments: Any) -> Any:
        for path in replaced:
            path.unlink()
            os.mkfifo(path)
        return real(*arguments)

    monkeypatch.setattr(Threads, "run", swapped)
    reasons = by_file(mien.label(photos), "status", "reason")
    assert {reasons[path.name] for path in replaced} == {("skipped", "special_file")}


# Formats


def test_photos_that_cannot_be_read_are_errors_whatever_their_name(mien: Mien, folder: Path) -> None:
    for name in ("IMG_0001", "x.jpg_original", "x.mpo"):
        (folder / name).write_bytes(jpeg(1)[:600])
    for name in ("notes", "main.ts"):
        (folder / name).write_text("const a = 1;")
    rows = mien.label(folder, exit_code=3)
    statuses = by_file(rows, "status", "reason")
    assert {statuses[name][0] for name in ("IMG_0001", "x.jpg_original", "x.mpo")} == {"error"}
    assert statuses["notes"] == statuses["main.ts"] == ("skipped", "not_an_image")


def test_a_jpeg_without_its_end_is_labeled_as_far_as_it_goes_and_beyond_a_half_it_is_an_error(
    mien: Mien, folder: Path, tmp_path: Path
) -> None:
    photo, noted = sample_photo(), ("ok", "", "incomplete")
    with Image.open(photo) as image:
        image.convert("RGB").save(progressive := tmp_path / "progressive.jpg", progressive=True, quality=90)
    whole = encoded(decode(photo.read_bytes()), "JPEG", quality=90)
    expected = {"a-whole.jpg": ("ok", "", ""), "b-no-marker.jpg": noted, "c-last-percent.jpg": noted}
    expected |= {"d-progressive.jpg": noted, "e-beyond-half.jpg": ("error", "corrupt", "")}
    cuts = (whole, whole[:-2], whole[: len(whole) * 99 // 100], None, whole[: len(whole) * 4 // 10])
    for name, payload in zip(expected, cuts, strict=True):
        cut = progressive.read_bytes()
        (folder / name).write_bytes(cut[: len(cut) * 7 // 10] if payload is None else payload)
    rows = mien.label(folder, "--write", "csv,annotated", exit_code=3)
    assert by_file(rows, "status", "reason", "notes") == expected
    labels = [row["label"] for row in rows if row["label"]]
    assert len(labels) == 4
    assert mien("review", mien.out, "--export", tmp_path / "faces", "--all").stdout.startswith("4 faces")
