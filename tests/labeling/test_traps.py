"""Traps of real collections: cut and uneven videos, files swapped during a run, full disks, limits, archives."""

import importlib.util
import io
import json
import os
import tarfile
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import pytest
from PIL import Image

from mien.app.labeling import containers, run
from mien.app.labeling.batch import BatchLabeler, Threads
from mien.data.contract.decode import formats
from tests.labeling.conftest import Mien, resize
from tests.support import encoded, gradient_image
from tests.support.albums import by_file, face_photo, rows_of, write_video
from tests.support.tiffs import dng
from tests.support.videos import ffmpeg


def jpeg(variant: int) -> bytes:
    return encoded(face_photo(variant=variant), "JPEG")


def write_zip(path: Path, *variants: int) -> None:
    """An archive of photos; every variant has as many bytes as every other."""
    with zipfile.ZipFile(path, "w") as archive:
        for number, variant in enumerate(variants):
            archive.writestr(zipfile.ZipInfo(f"in/{number}.jpg"), jpeg(variant).ljust(9000, b"\0"))


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
    sound = ("-f", "lavfi", "-t", "9", "-i", "anullsrc")  # longer than the video
    ffmpeg("-i", base, *sound, "-c:v", "copy", folder / "long.mkv")
    ffmpeg("-i", base, "-c", "copy", "-output_ts_offset", "20", folder / "late.ts")
    ffmpeg("-ss", "1.1", "-i", base, "-c", "copy", folder / "trimmed.mp4")
    ffmpeg("-i", base, "-c", "copy", "-f", "segment", "-segment_time", "2", folder / "part%d.mkv")
    ffmpeg(*sound, folder / "sound.mp4")
    rows = mien.label(folder, "--every", "16", "--write", "csv")
    odd = [row for row in rows if row["status"] != "ok"]
    assert by_file(odd, "status", "reason") == {"sound.mp4": ("skipped", "no_video")}


def test_frames_per_second_are_even_where_the_frame_rate_is_not(mien: Mien, tmp_path: Path) -> None:
    first, *others = [Image.fromarray(face_photo(variant=number)) for number in range(40)]
    # a GIF, which FFmpeg recognizes by its content, has a duration for each frame
    path, durations_ms = tmp_path / "clip.avi", [20] * 20 + [200] * 20
    first.save(path, "GIF", save_all=True, append_images=others, duration=durations_ms)
    times = [float(row["time_s"]) for row in mien.label(path, "--per-second", "2")]
    assert [int(time * 2) for time in times] == list(range(9)), "one frame in every half second"


# Files swapped during a run


@pytest.mark.parametrize("name", ["2.jpg", "clip.avi", "some.zip"])
@pytest.mark.timeout(60)
def test_a_pipe_that_replaces_a_file_after_the_scan_does_not_block_the_run(
    mien: Mien, photos: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = photos / name
    path.write_bytes(jpeg(2))
    real = Threads.map

    def swapped(*arguments: Any) -> Any:
        path.unlink()
        os.mkfifo(path)
        return real(*arguments)

    monkeypatch.setattr(Threads, "map", swapped)
    assert by_file(mien.label(photos), "status", "reason")[name] == ("skipped", "special_file")


def test_a_labeled_file_that_becomes_a_dead_link_keeps_no_face(mien: Mien, photos: Path) -> None:
    mien.label(photos)
    (photos / "2.jpg").unlink()
    (photos / "2.jpg").symlink_to(photos / "gone.jpg")
    rows = mien.label(photos, "--annotated-px", "100", exit_code=3)  # copies are written again
    columns = ("status", "reason", "face", "label", "image_width")
    assert by_file(rows, *columns)["2.jpg"] == ("error", "not_found", "", "", "")


# The disk


def test_a_disk_that_is_full_at_the_start_is_reported(mien: Mien, photos: Path, small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(b"\0" * 60 * 1024)  # of 64 KB
    done = mien.run(photos, out=small_disk / "out")
    assert (done.exit_code, "no space left" in done.stderr) == (6, True), done.stderr
    (small_disk / "filler").unlink()
    resize(small_disk, "16m")
    assert len(mien.label(photos, out=small_disk / "out")) == 5


# Archives


def test_changes_that_keep_size_and_time_are_noticed_on_request(mien: Mien, photos: Path) -> None:
    def hashes(variant: int, *options: str) -> dict[str, str]:
        write_zip(photos / "some.zip", 0, variant)
        (photos / "3.jpg").write_bytes(jpeg(variant).ljust(9000, b"\0"))
        for name in ("some.zip", "3.jpg"):
            os.utime(photos / name, (0, 0))
        return by_file(mien.label(photos, *options, "--write", "csv"), "file_sha256")

    before = hashes(1)
    assert hashes(5) == before
    after = hashes(5, "--check-hashes")
    assert {name for name in after if after[name] != before[name]} == {"3.jpg", "some.zip/in/1.jpg"}


def test_odd_members_of_archives_are_rows_and_the_others_are_labeled(mien: Mien, folder: Path) -> None:
    names = [f"{'n' * 5_000}.jpg", "deep/" * 1_000 + "b.jpg", "c.jpg"]
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        for name in names:
            archive.writestr(zipfile.ZipInfo(name), jpeg(1))
    kinds = {"s.jpg": tarfile.SYMTYPE, "h.jpg": tarfile.LNKTYPE, "p.jpg": tarfile.FIFOTYPE}
    with tarfile.open(folder / "b.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        for name in ("nul.jpg", "c.jpg", "c.jpg", *kinds):  # as `tar -r` adds a file again
            entry, payload = tarfile.TarInfo(name), b"" if name in kinds else jpeg(2)
            entry.size, entry.type, entry.linkname = len(payload), kinds.get(name, tarfile.REGTYPE), "c.jpg"
            entry.pax_headers = {"path": "n\0ul.jpg"} if name == "nul.jpg" else {}
            archive.addfile(entry, io.BytesIO(payload))
    rows = mien.label(folder, "--write", "csv,annotated,crops")
    labeled = [*(f"a.zip/{name}" for name in names), "b.tar/n\\x00ul.jpg", "b.tar/c.jpg", "b.tar/c~2.jpg"]
    assert by_file(rows, "status", "reason") == dict.fromkeys(labeled, ("ok", "")) | {
        "b.tar/s.jpg": ("skipped", "link"),
        "b.tar/h.jpg": ("skipped", "link"),
        "b.tar/p.jpg": ("skipped", "special_file"),
    }
    assert sum(path.is_file() for path in (mien.out / "annotated").rglob("*")) == 6
    assert "9 of 9 images already labeled" in mien.run(folder).stderr


def test_large_members_of_archives_are_labeled_in_smaller_batches(
    mien: Mien, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_zip(tmp_path / "some.zip", *range(12))
    monkeypatch.setattr(run, "BATCH_BYTES", 20_000)  # a member has 9,000
    label_batch = create_autospec(BatchLabeler.label, side_effect=BatchLabeler.label)
    monkeypatch.setattr(BatchLabeler, "label", label_batch)
    assert len(mien.label(tmp_path / "some.zip")) == 12
    assert [len(call.args[1]) for call in label_batch.call_args_list if call.args[1]] == [3, 3, 3, 3]


# Limits


def test_a_zip_whose_list_of_members_would_fill_the_memory_is_a_row(
    mien: Mien, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_zip(photos / "many.zip", *range(12))
    write_zip(photos / "some.zip", 0)
    monkeypatch.setattr(containers, "MAX_DIRECTORY_BYTES", 200)  # an entry has about 60
    reasons = by_file(mien.label(photos, exit_code=3), "reason")
    assert (reasons["many.zip"], reasons["some.zip/in/0.jpg"], len(reasons)) == ("too_large", "", 7)


# Formats


def test_avif_and_formats_of_scanners_archives_and_old_cameras_are_read(
    mien: Mien, folder: Path, tmp_path: Path
) -> None:
    names, videos = ["a.ppm", "c.tga", "d.jp2", "e.j2k", "i.avif"], ["f.mp4v", "MOVIE_0002", "20241127.235959"]
    for name in names:
        Image.fromarray(face_photo()).save(folder / name)
    for name in videos:
        write_video(tmp_path / "clip.mp4", frames=1).rename(folder / name)
    with zipfile.ZipFile(folder / "h.cbz", "w") as archive:
        archive.write(folder / "c.tga", "c.tga")
    rows = by_file(mien.label(folder, "--write", "csv"), "status", "frame")
    assert rows == dict.fromkeys([*names, "h.cbz/c.tga"], ("ok", "")) | dict.fromkeys(videos, ("ok", "0"))


def test_heic_without_its_package_says_what_to_install_and_is_retried_once_it_is_there(
    mien: Mien, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pillow_heif = pytest.importorskip("pillow_heif", reason="pillow-heif is not installed: HEIC is not tested")
    pillow_heif.from_pillow(Image.fromarray(face_photo(224))).save(tmp_path / "a.heic", quality=90)
    with monkeypatch.context() as missing:
        missing.setattr(importlib.util, "find_spec", lambda _: None)
        formats.cache_clear()
        (row,) = mien.label(tmp_path / "a.heic", exit_code=3)
    formats.cache_clear()
    assert "pip install pillow-heif" in row["error"]
    (row,) = mien.label(tmp_path / "a.heic")
    assert row["status"] == "ok"


def test_photos_that_cannot_be_read_are_errors_whatever_their_name(mien: Mien, folder: Path) -> None:
    for name in ("a.nef", "b.DNG"):  # the first image of these files is a thumbnail
        (folder / name).write_bytes(encoded(face_photo(), "TIFF"))
    for name in ("IMG_0001", "x.jpg_original", "x.mpo"):
        (folder / name).write_bytes(jpeg(1)[:600])
    (folder / "archive.rar").write_bytes(b"Rar!\x1a\x07\x01\0")
    for name in ("notes", "main.ts"):
        (folder / name).write_text("const a = 1;")
    rows = mien.label(folder, exit_code=3)
    statuses = by_file(rows, "status", "reason")
    assert statuses["a.nef"] == statuses["b.DNG"] == statuses["archive.rar"] == ("error", "unsupported")
    assert {statuses[name][0] for name in ("IMG_0001", "x.jpg_original", "x.mpo")} == {"error"}
    assert statuses["notes"] == statuses["main.ts"] == ("skipped", "not_an_image")
    assert "unpack it" in by_file(rows, "error")["archive.rar"]


def test_camera_raw_is_labeled_from_its_full_preview_or_developed(mien: Mien, folder: Path) -> None:
    pytest.importorskip("rawpy", reason="rawpy is not installed: camera raw is not tested")
    upright, other = face_photo(448), gradient_image(448, 448)
    sideways = np.ascontiguousarray(np.rot90(upright))  # orientation 6 turns it back
    full, small = encoded(sideways, "JPEG"), encoded(face_photo(112), "JPEG")
    for name, raw in {
        "a-developed.dng": dng(sideways, orientation=6),
        "b-preview.nef": dng(other, orientation=6, preview=full, preview_px=(448, 448)),
        "c-thumbnail.arw": dng(other, preview=small, preview_px=(112, 112)),
        "d-cut.dng": dng(upright)[:5000],
        "e-plain.png": encoded(upright),
    }.items():
        (folder / name).write_bytes(raw)
    developed, preview, thumbnail, cut, plain = mien.label(folder, "--write", "csv", exit_code=3)
    assert (thumbnail["status"], cut["status"]) == ("no_face", "error")
    for row in (developed, preview):
        for column in ("x", "y", "width", "height"):
            assert float(row[column]) == pytest.approx(float(plain[column]), abs=25), (row["file"], column)


def test_pages_of_a_tiff_are_frames_and_one_page_is_a_still_image(mien: Mien, folder: Path, tmp_path: Path) -> None:
    first, *others = [Image.fromarray(face_photo(variant=number)) for number in range(3)]
    scans, one = encoded(first, "TIFF", save_all=True, append_images=others), encoded(first, "TIFF")
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        for name, payload in (("scans.tif", scans), ("one.tif", one)):
            (folder / name).write_bytes(payload)
            archive.writestr(name, payload)
    command = (folder, "--write", "csv,episodes")
    mien.summary(*command, "--limit", "2")
    assert mien.summary(*command)["new"] == 6
    pages = [(row["frame"], row["time_s"], row["x"]) for row in rows_of(mien.out)]
    assert pages[:4] == pages[4:], "in the archive as in the folder"
    assert [page[:2] for page in pages[:4]] == [("", ""), ("0", ""), ("1", ""), ("2", "")]
    assert len({x for _, _, x in pages[1:4]}) > 1, "pages differ"
    assert rows_of(mien.out, "episodes.csv") == [], "pages are not a video"
    assert mien("review", mien.out, "--export", tmp_path / "faces", "--all").exit_code == 0
    assert len(list((tmp_path / "faces").rglob("*scans.tif*.png"))) == 3, "copies are exported once"


def test_animations_are_frames_on_request_only(mien: Mien, folder: Path) -> None:
    first, *others = [Image.fromarray(face_photo(variant=number)) for number in range(3)]
    names = ["a.gif", "b.webp", "c.png", "d.avif"]
    for name in names:
        first.save(folder / name, save_all=True, append_images=others, duration=[200, 300, 400])
    before, animated, after = (mien.label(folder, *option) for option in ((), ("--animations",), ()))
    assert ([row["file"] for row in before], after) == (names, before)
    frames = [(row["file"], row["frame"], row["time_s"]) for row in animated]
    times = (("0", "0.0"), ("1", "0.2"), ("2", "0.5"))
    assert frames == [(name, *time) for name in names for time in times]
    assert len(list((mien.out / "annotated").rglob("*.jpg"))) == 4, "the copies of the frames are removed again"


def test_files_with_the_same_bytes_are_marked(mien: Mien, photos: Path) -> None:
    (photos / "again.jpg").write_bytes(jpeg(3))
    write_zip(photos / "some.zip", 0, 0)
    copies = [(row["file"], row["duplicate_of"]) for row in mien.label(photos) if row["duplicate_of"]]
    assert copies == [("again.jpg", "3.jpg"), ("some.zip/in/1.jpg", "some.zip/in/0.jpg")]


def test_the_run_file_says_what_ran(mien: Mien, photos: Path) -> None:
    mien.label(photos, "--annotated-px", "300")
    facts = json.loads((mien.out / "run.json").read_text())
    assert (facts["settings"]["model"], facts["options"]["annotated_px"]) == ("tiny.test", 300)
    assert {"mien", "python", "onnxruntime", "opencv", "numpy", "pillow"} <= set(facts["versions"])
    assert (facts["images"], facts["labeled_now"], facts["remaining"]) == ({"ok": 5}, 5, 0)
