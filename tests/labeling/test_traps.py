"""Traps of real collections: cut and uneven videos, files swapped during a run, full disks, limits, archives."""

import errno
import importlib.util
import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock, create_autospec

import numpy as np
import pytest
from PIL import Image

from mien import app
from mien.app.labeling import batch, containers, run, summary
from mien.app.labeling.batch import BatchLabeler, Threads
from mien.data.contract.decode import formats
from tests.labeling.conftest import Mien, resize
from tests.support import encoded, gradient_image, sample_photo
from tests.support.albums import face_photo, rows_of, write_video
from tests.support.tiffs import dng, tiff
from tests.support.videos import ffmpeg, with_index_first


def jpeg(variant: int) -> bytes:
    return encoded(face_photo(variant=variant), "JPEG")


def write_zip(path: Path, *variants: int) -> None:
    """An archive of photos; every variant has as many bytes as every other."""
    with zipfile.ZipFile(path, "w") as archive:
        for number, variant in enumerate(variants):
            archive.writestr(zipfile.ZipInfo(f"in/{number}.jpg"), jpeg(variant).ljust(9000, b"\0"))


# Videos


@pytest.mark.parametrize("name", ["clip.mp4", "clip.mkv"])
def test_a_third_of_a_video_is_an_error_and_its_frames_are_labeled(mien: Mien, tmp_path: Path, name: str) -> None:
    path = write_video(tmp_path / name, frames=60, rate=10.0)
    if name.endswith("mp4"):
        with_index_first(path)
    mien.label(path, "--every", "10", out=tmp_path / "whole")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    rows = mien.label(path, "--every", "5", "--write", "csv,files", out=tmp_path / "out", exit_code=3)
    (whole,) = rows_of(tmp_path / "out", "files.csv")
    assert (whole["status"], whole["reason"]) == ("error", "corrupt")
    assert "of 6.0 s: truncated or damaged" in whole["error"]
    frames = [row for row in rows if row["frame"]]
    assert 2 <= len(frames) <= 5
    assert {row["status"] for row in frames} == {"ok"}


def test_videos_that_are_whole_have_no_error(mien: Mien, folder: Path, tmp_path: Path) -> None:
    plain, base = write_video(tmp_path / "a.mp4", frames=32, rate=8.0), tmp_path / "b.mp4"
    ffmpeg("-i", plain, "-c:v", "libx264", "-g", "8", base)
    cover = tmp_path / "cover.jpg"
    cover.write_bytes(jpeg(0))
    sound = ("-f", "lavfi", "-t", "9", "-i", "anullsrc")  # longer than the video
    for name in ("long.mkv", "long.ts", "long.wmv", "long.mp4"):
        codec = ("-c:v", "wmv2") if name.endswith("wmv") else ("-c:v", "copy")
        ffmpeg("-i", base, *sound, *codec, folder / name)
    for name in ("late.mp4", "late.mkv", "late.ts"):
        ffmpeg("-i", base, "-c", "copy", "-output_ts_offset", "20", folder / name)
    for name in ("trimmed.mp4", "trimmed.mkv"):
        ffmpeg("-ss", "1.1", "-i", base, "-c", "copy", folder / name)
    ffmpeg("-i", base, "-c", "copy", "-f", "segment", "-segment_time", "2", folder / "part%d.mkv")
    ffmpeg("-i", base, "-vf", "tpad=stop_mode=clone:stop_duration=4", "-c:v", "libtheora", folder / "theora.ogv")
    covers = ("-map", "0", "-map", "1", "-c", "copy", "-disposition:v:0", "attached_pic")
    ffmpeg("-i", cover, "-i", base, *covers, folder / "cover.m4v")
    ffmpeg(*sound, folder / "sound.mp4")
    (folder / "empty.mp4").touch()
    mien.label(folder, "--every", "4", "--write", "files", out=tmp_path / "out", exit_code=3)
    rows = {row["file"]: row for row in rows_of(tmp_path / "out", "files.csv")}
    assert (rows["sound.mp4"]["status"], rows.pop("sound.mp4")["reason"]) == ("skipped", "no_video")
    assert (rows["empty.mp4"]["status"], rows.pop("empty.mp4")["reason"]) == ("error", "empty")
    assert {name: row["error"] for name, row in rows.items() if row["status"] != "ok"} == {}
    assert rows["cover.m4v"]["frames"] == "8"


def test_scenes_give_one_frame_each(mien: Mien, tmp_path: Path) -> None:
    dark, light = np.zeros((144, 176, 3), np.uint8), np.full((144, 176, 3), 220, np.uint8)
    scenes = (dark, light, dark)  # with slow changes, which are no cut
    images = [scene + np.uint8(number) for scene in scenes for number in range(10)]
    rows = mien.label(write_video(tmp_path / "clip.avi", images=images), "--scenes", out=tmp_path / "out")
    assert [row["frame"] for row in rows] == ["0", "10", "20"]


def test_a_cut_between_labeled_frames_separates_people(mien: Mien, tmp_path: Path) -> None:
    person = face_photo(160)
    tinted = (person * np.array([0.5, 0.7, 1.0])).astype(np.uint8)  # similar enough to be one person otherwise
    path = write_video(tmp_path / "clip.avi", images=[person] * 10 + [tinted] * 10)
    mien.label(path, "--every", "4", "--write", "timeline", out=tmp_path / "out")
    assert [row["person"] for row in rows_of(tmp_path / "out", "timeline.csv")] == ["1"] * 3 + ["2"] * 2


def test_frames_per_second_are_even_where_the_frame_rate_is_not(mien: Mien, tmp_path: Path) -> None:
    first, *others = [Image.fromarray(face_photo(variant=number)) for number in range(40)]
    # a GIF, which FFmpeg recognizes by its content, has a duration for each frame
    path, durations_ms = tmp_path / "clip.avi", [20] * 20 + [200] * 20
    first.save(path, "GIF", save_all=True, append_images=others, duration=durations_ms)
    times = [float(row["time_s"]) for row in mien.label(path, "--per-second", "2", out=tmp_path / "out")]
    assert [int(time * 2) for time in times] == list(range(9)), "one frame in every half second"


# Files swapped during a run


@pytest.mark.parametrize("name", ["2.jpg", "clip.avi", "some.zip"])
@pytest.mark.timeout(60)
def test_a_pipe_that_replaces_a_file_after_the_scan_does_not_block_the_run(
    mien: Mien, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = photos / name
    path.write_bytes(jpeg(2))
    real = Threads.map

    def swapped(*arguments: Any) -> Any:
        path.unlink()
        os.mkfifo(path)
        return real(*arguments)

    monkeypatch.setattr(Threads, "map", swapped)
    (row,) = [row for row in mien.label(photos, out=tmp_path / "out") if row["file"] == name]
    assert (row["status"], row["reason"]) == ("skipped", "special_file")


def test_a_labeled_file_that_becomes_a_dead_link_keeps_no_face(mien: Mien, photos: Path, tmp_path: Path) -> None:
    mien.label(photos, out=tmp_path / "out")
    (photos / "2.jpg").unlink()
    (photos / "2.jpg").symlink_to(photos / "gone.jpg")
    options = ("--write", "csv,jsonl,coco", "--annotated-px", "100")  # copies are written again
    rows = mien.label(photos, *options, out=tmp_path / "out", exit_code=3)
    (row,) = [row for row in rows if row["file"] == "2.jpg"]
    assert (row["status"], row["reason"], row["error"]) == ("error", "not_found", "the link points to nothing")
    assert {row[name] for name in ("face", "label", "image_width", "image_height")} == {""}


# The disk


@pytest.mark.parametrize("free", [0, 4, 12])
def test_a_disk_that_is_full_at_the_start_is_reported(mien: Mien, photos: Path, small_disk: Path, free: int) -> None:
    (small_disk / "filler").write_bytes(b"\0" * (64 - free) * 1024)
    done = mien("label", photos, "--out", small_disk / "out")
    assert done.exit_code == 6, done.stderr
    assert "no space left" in done.stderr
    assert "Traceback" not in done.stderr
    (small_disk / "filler").unlink()
    resize(small_disk, "16m")
    assert len(mien.label(photos, out=small_disk / "out")) == 5


# Archives


def test_changes_that_keep_size_and_time_are_noticed_on_request(mien: Mien, photos: Path, tmp_path: Path) -> None:
    def write(variant: int) -> None:
        write_zip(photos / "some.zip", 0, variant, 2)
        (photos / "3.jpg").write_bytes(jpeg(variant).ljust(9000, b"\0"))
        for name in ("some.zip", "3.jpg"):
            os.utime(photos / name, (0, 0))

    def hashes(*options: str) -> dict[str, str]:
        return {row["file"]: row["file_sha256"] for row in mien.label(photos, *options, out=tmp_path / "out")}

    write(1)
    before = hashes()
    write(5)
    assert hashes() == before
    after = hashes("--check-hashes")
    assert {name for name in after if after[name] != before[name]} == {"3.jpg", "some.zip/in/1.jpg"}


def test_ignored_patterns_count_for_patterns_lists_and_members(
    mien: Mien, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos)
    write_zip(Path("some.zip"), 0, 1)
    given = b"0.jpg\n1.jpg\nsome.zip\n"
    for arguments, names in {
        ("*",): {"0.jpg", "2.jpg", "3.jpg", "4.jpg", "some.zip/in/0.jpg"},
        ("--files-from", "-"): {"0.jpg", "some.zip/in/0.jpg"},
    }.items():
        rows = mien.label(*arguments, "--ignore", "1.jpg", out=tmp_path / f"out{len(names)}", given=given)
        assert {row["file"] for row in rows} == names
    assert mien.label("some.zip", "--ignore", "in/*", out=tmp_path / "none") == []


def test_patterns_and_output_folders_can_have_names_that_are_not_utf8(
    mien: Mien, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignored, out = (os.fsdecode(os.fsencode(tmp_path) + name) for name in (b"/photos/caf\xe9.jpg", b"/out\xe9"))
    Path(ignored).write_bytes((photos / "0.jpg").read_bytes())
    monkeypatch.setitem(mien.environment, "PYTHONIOENCODING", "utf-8:strict")  # as in most locales
    process = mien.start("label", photos, "--ignore", Path(ignored).name, "--out", out)
    printed, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert os.fsencode(out) in printed
    facts = json.loads(Path(out, "run.json").read_text())
    assert (facts["images"], facts["options"]["ignore"]) == ({"ok": 5}, ["caf\\xe9.jpg"])


def test_odd_members_of_archives_are_rows_and_the_others_are_labeled(mien: Mien, folder: Path, tmp_path: Path) -> None:
    long = "n" * 5_000
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        for name in (f"{long}.jpg", "deep/" * 1_000 + "b.jpg", "c.jpg"):
            archive.writestr(zipfile.ZipInfo(name), jpeg(1))
    with tarfile.open(folder / "b.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        for name, path in (("nul.jpg", "n\0ul.jpg"), ("c.jpg", None)):
            entry = tarfile.TarInfo(name)
            entry.size, entry.pax_headers = len(jpeg(2)), {"path": path} if path else {}
            archive.addfile(entry, io.BytesIO(jpeg(2)))
        for name, kind in (("s.jpg", tarfile.SYMTYPE), ("h.jpg", tarfile.LNKTYPE), ("p.jpg", tarfile.FIFOTYPE)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "c.jpg"
            archive.addfile(entry)
    rows = mien.label(folder, "--write", "csv,annotated,crops", out=tmp_path / "out")
    assert {row["file"]: (row["status"], row["reason"]) for row in rows} == {
        f"a.zip/{long}.jpg": ("ok", ""),
        f"a.zip/{'deep/' * 1_000}b.jpg": ("ok", ""),
        "a.zip/c.jpg": ("ok", ""),
        "b.tar/n\\x00ul.jpg": ("ok", ""),
        "b.tar/c.jpg": ("ok", ""),
        "b.tar/s.jpg": ("skipped", "link"),
        "b.tar/h.jpg": ("skipped", "link"),
        "b.tar/p.jpg": ("skipped", "special_file"),
    }
    assert sum(path.is_file() for path in (tmp_path / "out" / "annotated").rglob("*")) == 5
    assert "8 of 8 images already labeled" in mien("label", folder, "--out", tmp_path / "out").stderr


def test_members_of_the_same_name_are_labeled_alike(mien: Mien, tmp_path: Path) -> None:
    pages = io.BytesIO()
    photo = Image.open(io.BytesIO(jpeg(1)))
    photo.save(pages, "TIFF", save_all=True, append_images=[photo])
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for _ in range(2):  # as `tar -r` adds a file again
            entry = tarfile.TarInfo("scan.tif")
            entry.size = len(pages.getvalue())
            archive.addfile(entry, io.BytesIO(pages.getvalue()))
    rows = mien.label(tmp_path / "a.tar", out=tmp_path / "out")
    expected = [(name, frame) for name in ("a.tar/scan.tif", "a.tar/scan~2.tif") for frame in ("0", "1")]
    assert [(row["file"], row["frame"]) for row in rows] == expected


def test_large_members_of_archives_are_labeled_in_smaller_batches(
    mien: Mien, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_zip(tmp_path / "some.zip", *range(12))
    whole = mien.label(tmp_path / "some.zip", out=tmp_path / "whole")
    monkeypatch.setattr(run, "BATCH_BYTES", 20_000)  # a member has 9,000
    label_batch = create_autospec(BatchLabeler.label, side_effect=BatchLabeler.label)
    monkeypatch.setattr(BatchLabeler, "label", label_batch)
    for limit in ("2", "12"):  # the batches do not depend on what is labeled already
        rows = mien.label(tmp_path / "some.zip", "--limit", limit, out=tmp_path / "out")
    assert [len(call.args[1]) for call in label_batch.call_args_list if call.args[1]] == [2, 1, 3, 3, 3]
    assert rows == whole


# Limits


def test_a_zip_whose_list_of_members_would_fill_the_memory_is_a_row(
    mien: Mien, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_zip(photos / "many.zip", *range(12))
    write_zip(photos / "some.zip", 0)
    monkeypatch.setattr(containers, "MAX_DIRECTORY_BYTES", 200)  # an entry has about 60
    rows = mien.label(photos, out=tmp_path / "out", exit_code=3)
    assert {row["file"]: row["reason"] for row in rows if row["status"] != "ok"} == {"many.zip": "too_large"}
    assert "some.zip/in/0.jpg" in {row["file"] for row in rows}


def test_what_is_labeled_of_an_unfinished_video_stays_in_the_outputs(mien: Mien, tmp_path: Path) -> None:
    write_video(tmp_path / "clip.avi", frames=10)
    command, crops = (tmp_path / "clip.avi", "--write", "csv,crops", "--limit"), tmp_path / "out" / "crops"
    for labeled in (4, 8, 10):
        rows = mien.label(*command, "4", out=tmp_path / "out")
        assert len(rows) == len(list(crops.rglob("*.png"))) == labeled
        next(crops.rglob("*.png")).unlink()  # written again by the next run
        mien.label(*command, "1", out=tmp_path / "out")


def test_a_raised_limit_retries_only_what_was_too_large(mien: Mien, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (photos / "large.jpg").write_bytes(encoded(face_photo(300), "JPEG"))
    write_zip(photos / "some.zip", 0)
    low = Mien(mien.environment | {"MIEN_MAX_BYTES": "8000"})
    rows = low.label(photos, out=out, exit_code=3)
    assert {row["file"] for row in rows if row["reason"] == "too_large"} == {"large.jpg", "some.zip/in/0.jpg"}
    assert mien.summary(photos, out=out)["new"] == 2
    assert {row["status"] for row in rows_of(out)} == {"ok"}


def test_large_scans_are_read(mien: Mien, tmp_path: Path) -> None:
    Image.new("L", (7_800, 7_800)).save(tmp_path / "scan.png")  # 61 megapixels
    (row,) = mien.label(tmp_path / "scan.png", "--write", "csv", out=tmp_path / "out")
    assert row["status"] == "no_face"


def test_small_and_uncertain_faces_are_left_out_and_come_back(mien: Mien, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    faces = mien.label(photos, "--write", "csv,jsonl,report", out=out)
    least, side = sorted(float(row["confidence"]) for row in faces)[2], min(float(row["width"]) for row in faces)
    chosen = mien.summary(photos, "--min-confidence", str(least - 1e-5), "--write", "csv", out=out)
    kept = [row["file"] for row in rows_of(out) if row["face"]]
    assert kept == [row["file"] for row in faces if float(row["confidence"]) >= least]
    assert (out / "labels.jsonl").read_text().count('"filtered"') == 5 - len(kept)
    assert (chosen["new"], chosen["statuses"]) == (0, {"ok": len(kept), "filtered": 5 - len(kept)})
    assert {row["status"] for row in mien.label(photos, "--min-face", str(side + 500), out=out)} == {"filtered"}
    assert mien.label(photos, out=out) == faces


def test_faces_that_may_be_missing_are_told_in_row_and_summary(mien: Mien, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Image.open(sample_photo()) as portrait:
        person = np.asarray(portrait.resize((220, 220)))
    for name, width, height in (("large.png", 3600, 2400), ("panorama.png", 8000, 1000)):
        image = np.full((height, width, 3), 90, np.uint8)
        for x in (40, width // 2, width - 300):
            image[700:920, x : x + 220] = person
        Image.fromarray(image).save(folder / name, compress_level=1)
    done = mien("label", folder, "--out", out, "--write", "csv,files")
    assert "1 image: searched at reduced size" in done.stdout
    for table in ("labels.csv", "files.csv"):
        assert {row["file"]: row["notes"] for row in rows_of(out, table)} == {
            "large.png": "reduced_search",
            "panorama.png": "",
        }
    assert sum(row["file"] == "panorama.png" for row in rows_of(out)) == 3
    found = mien.label(folder, "--small-faces", "--max-faces", "2", out=tmp_path / "small")
    assert [row["file"] for row in found] == ["large.png"] * 2 + ["panorama.png"] * 2
    assert {row["notes"] for row in found} == {"max_faces"}
    again = mien("label", folder, "--out", tmp_path / "small", "--small-faces", "--max-faces", "2")
    assert "2 images: the photo has more faces than the limit" in again.stdout, "also in a run that labels nothing"


# Formats


def test_avif_and_formats_of_scanners_archives_and_old_cameras_are_read(
    mien: Mien, folder: Path, tmp_path: Path
) -> None:
    face = Image.fromarray(face_photo())
    for name in ("a.ppm", "b.pgm", "c.tga", "d.jp2", "e.j2k", "i.avif"):
        (face.convert("L") if name == "b.pgm" else face).save(folder / name)
    face.save(folder / "IMG_1.ppm", "JPEG")
    (folder / "notes").write_text("words")
    video = write_video(tmp_path / "clip.mp4", frames=1).read_bytes()
    for name in ("f.mp4v", "g.qt", "MOVIE_0002", "20241127.235959"):
        (folder / name).write_bytes(video)
    with zipfile.ZipFile(folder / "h.cbz", "w") as archive:
        archive.write(folder / "c.tga", "c.tga")
    rows = {row["file"]: row for row in mien.label(folder, "--write", "csv", out=tmp_path / "out")}
    assert {name for name, row in rows.items() if row["status"] != "ok"} == {"notes"}
    assert {name for name, row in rows.items() if row["frame"] == "0"} == {
        "f.mp4v",
        "g.qt",
        "MOVIE_0002",
        "20241127.235959",
    }
    assert "h.cbz/c.tga" in rows
    assert mien("review", tmp_path / "out", "--export", tmp_path / "faces", "--all").exit_code == 0


@pytest.mark.parametrize("name", ["a.rar", "B.7Z", "c.cbr", "00001.ppm.bz2"])
def test_an_archive_that_is_not_read_is_an_error_that_says_what_to_do(mien: Mien, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"Rar!\x1a\x07\x01\0")
    done = mien("label", tmp_path / name, "--out", tmp_path / "out")
    assert done.exit_code == 3
    assert "read 1 archive: unpack it" in done.stdout
    (row,) = rows_of(tmp_path / "out")
    assert (row["status"], row["reason"]) == ("error", "unsupported")
    assert "unpack it" in row["error"]


def test_heic_without_its_package_says_what_to_install_and_is_retried_once_it_is_there(
    mien: Mien, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pillow_heif = pytest.importorskip("pillow_heif", reason="pillow-heif is not installed: HEIC is not tested")
    pillow_heif.from_pillow(Image.fromarray(face_photo(224))).save(tmp_path / "a.heic", quality=90)
    command, out = "pip install pillow-heif", tmp_path / "out"
    with monkeypatch.context() as missing:
        missing.setattr(importlib.util, "find_spec", lambda _: None)
        formats.cache_clear()
        done = mien("label", tmp_path / "a.heic", "--out", out)
        assert command in mien("doctor").stdout
    formats.cache_clear()
    assert done.exit_code == 3
    assert f"read 1 file with pillow-heif: {command}, and rerun" in done.stdout
    assert command in rows_of(out)[0]["error"]
    (row,) = mien.label(tmp_path / "a.heic", out=out)
    assert row["status"] == "ok"


def test_images_of_a_narrow_range_are_stretched_in_pixels_copies_and_review_and_say_so(
    mien: Mien, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    colors = face_photo(224).astype(np.uint16)
    face = np.asarray(Image.fromarray(face_photo(224)).convert("L")).astype(np.uint16)
    values = {"plain": face * 257, "thermal": face + 30_000, "counts": face.astype(np.uint32), "colors": colors * 16}
    for name, image in values.items():
        (folder / f"{name}.tif").write_bytes(tiff(image))
    (folder / "planes.tif").write_bytes(tiff(colors * 257, planes=True))
    page = Image.fromarray(values["thermal"])
    page.save(folder / "pages.tif", save_all=True, append_images=[page])
    done = mien("label", folder, "--out", out, "--write", "csv,annotated")
    assert done.exit_code == 3
    assert "5 images: a small part of the range" in done.stdout
    rows = {(row["file"], row["frame"]): row for row in rows_of(out)}
    assert (rows["planes.tif", ""]["status"], rows["planes.tif", ""]["reason"]) == ("error", "unsupported")
    assert {name for name, row in rows.items() if row["notes"] == "stretched"} == {
        ("thermal.tif", ""), ("counts.tif", ""), ("colors.tif", ""), ("pages.tif", "0"), ("pages.tif", "1"),
    }  # fmt: skip
    assert sum(row["status"] == "ok" for row in rows.values()) == 6
    with Image.open(out / "annotated" / "colors.tif.jpg") as copy:
        assert np.asarray(copy.convert("L")).mean() > face.mean(), "it was nearly black"
    assert mien("review", out, "--export", tmp_path / "faces", "--all").exit_code == 0
    crops = list((tmp_path / "faces").rglob("*.png"))
    assert len(crops) >= 4
    for path in crops:
        with Image.open(path) as crop:
            assert np.asarray(crop.convert("L")).std() > 20, path


def test_photos_that_cannot_be_read_are_errors_whatever_their_name(mien: Mien, folder: Path, tmp_path: Path) -> None:
    for name in ("a.nef", "b.DNG", "c.arw"):  # the first image of these files is a thumbnail
        (folder / name).write_bytes(encoded(face_photo(), "TIFF"))
    for name in ("IMG_0001", "x.jpg_original", "x.mpo"):
        (folder / name).write_bytes(jpeg(1)[:600])
    (folder / "x.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + b"\0" * 100)
    (folder / "notes").write_text("words")
    (folder / "main.ts").write_text("const a = 1;")
    write_video(folder / "clip.avi", frames=3)
    (folder / "clip.avi").rename(folder / "clip.flv")
    mien.label(folder, "--write", "files", out=tmp_path / "out", exit_code=3)
    statuses = {row["file"]: (row["status"], row["reason"]) for row in rows_of(tmp_path / "out", "files.csv")}
    assert {statuses[name] for name in ("a.nef", "b.DNG", "c.arw")} == {("error", "unsupported")}
    assert {statuses[name][0] for name in ("IMG_0001", "x.jpg_original", "x.mpo", "x.heic")} == {"error"}
    assert statuses["notes"] == statuses["main.ts"] == ("skipped", "not_an_image")
    assert statuses["clip.flv"] == ("ok", "")


def test_camera_raw_is_labeled_from_its_full_preview_or_developed(mien: Mien, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("rawpy", reason="rawpy is not installed: camera raw is not tested")
    upright, other = face_photo(448), gradient_image(448, 448)
    sideways = np.ascontiguousarray(np.rot90(upright))  # orientation 6 turns it back
    full, small = encoded(sideways, "JPEG"), encoded(face_photo(112), "JPEG")
    (folder / "a-developed.dng").write_bytes(dng(sideways, orientation=6))
    (folder / "b-preview.nef").write_bytes(
        dng(gradient_image(448, 448), orientation=6, preview=full, preview_px=(448, 448))
    )
    (folder / "c-thumbnail.arw").write_bytes(dng(other, preview=small, preview_px=(112, 112)))
    (folder / "d-cut.dng").write_bytes(dng(upright)[:5000])
    Image.fromarray(upright).save(folder / "e-plain.png")
    labeled = mien.label(folder, "--write", "csv", out=tmp_path / "out", exit_code=3)
    rows = {row["file"].split(".")[0]: row for row in labeled}
    assert [row["status"] for row in labeled] == ["ok", "ok", "no_face", "error", "ok"]
    for name in ("a-developed", "b-preview"):
        for column in ("x", "y", "width", "height"):
            assert float(rows[name][column]) == pytest.approx(float(rows["e-plain"][column]), abs=25), (name, column)
    assert mien("review", tmp_path / "out", "--export", tmp_path / "faces", "--all").exit_code == 0


def test_pages_of_a_tiff_are_frames_and_one_page_is_a_still_image(mien: Mien, folder: Path, tmp_path: Path) -> None:
    first, *others = [Image.fromarray(face_photo(variant=number)) for number in range(3)]
    first.save(folder / "scans.TIF", save_all=True, append_images=others)
    first.save(folder / "one.tif")
    (folder / "cut.tiff").write_bytes((folder / "scans.TIF").read_bytes()[:-20_000])
    with zipfile.ZipFile(folder / "a.zip", "w") as archive, tarfile.open(folder / "b.tar", "w") as tar:
        for name in ("scans.TIF", "one.tif"):
            archive.write(folder / name, name)
            tar.add(folder / name, name)
    command = (folder, "--write", "csv,files,annotated,timeline")
    mien.summary(*command, "--limit", "2", out=tmp_path / "out")
    mien.summary(*command, out=tmp_path / "out", exit_code=3)
    rows = rows_of(tmp_path / "out")
    files = {row["file"]: row for row in rows_of(tmp_path / "out", "files.csv")}
    pages = [(row["frame"], row["time_s"], row["x"]) for row in rows if row["file"] == "scans.TIF"]
    assert [page[:2] for page in pages] == [("0", ""), ("1", ""), ("2", "")]
    assert len({x for _, _, x in pages}) > 1, "pages differ"
    for place in ("", "a.zip/", "b.tar/"):
        own = [row for row in rows if row["file"] == f"{place}scans.TIF"]
        assert [(row["frame"], row["time_s"], row["x"]) for row in own] == pages
        assert [row["frame"] for row in rows if row["file"] == f"{place}one.tif"] == [""]
        whole = files[f"{place}scans.TIF"]
        assert (whole["frames"], whole["faces"], files[f"{place}one.tif"]["frames"]) == ("3", "3", "")
    assert (tmp_path / "out" / "annotated" / "scans.TIF" / "frame_00000002.jpg").exists()
    assert rows_of(tmp_path / "out", "timeline.csv") == []
    assert mien.summary(*command, out=tmp_path / "out", exit_code=3)["new"] == 0
    assert mien("review", tmp_path / "out", "--export", tmp_path / "faces", "--all").exit_code == 0
    assert len(list((tmp_path / "faces").rglob("*scans.TIF*.png"))) == 3, "copies are exported once"
    assert {row["person"] for row in rows_of(tmp_path / "faces", "manifest.csv")} == {""}, "pages are no video"


@pytest.mark.parametrize("outputs", ["csv,annotated", "csv"])
def test_animations_are_frames_on_request_only(mien: Mien, folder: Path, tmp_path: Path, outputs: str) -> None:
    out = tmp_path / "out"
    first, *others = [Image.fromarray(face_photo(variant=number)) for number in range(3)]
    for name in ("a.gif", "b.webp", "c.png", "d.avif"):
        first.save(folder / name, save_all=True, append_images=others, duration=[200, 300, 400])
    first.save(folder / "still.gif")
    with zipfile.ZipFile(folder / "e.zip", "w") as archive:
        archive.write(folder / "a.gif", "a.gif")
    rows: dict[str, list[dict[str, str]]] = {}
    for step in ("before", "frames", "again", "after"):
        options = ["--animations"] if step in ("frames", "again") else []
        mien("label", folder, *options, "--write", outputs, "--out", out, "--limit", "4")
        rows[step] = mien.label(folder, *options, "--write", outputs, out=out)
        assert {row["status"] for row in rows[step]} == {"ok"}
        assert sum(json.loads((out / "run.json").read_text())["faces"].values()) == len(rows[step]), step
        copies = {str(path.relative_to(out)) for path in (out / "annotated").rglob("*.jpg")}
        assert len(copies) == (len(rows[step]) if "annotated" in outputs else 0), step
    names = ["a.gif", "b.webp", "c.png", "d.avif", "e.zip/a.gif"]
    assert [row["file"] for row in rows["before"]] == [*names, "still.gif"]
    assert rows["before"] == rows["after"]
    assert rows["frames"] == rows["again"]
    for name in names:
        frames = [(row["frame"], row["time_s"]) for row in rows["frames"] if row["file"] == name]
        assert frames == [("0", "0.0"), ("1", "0.2"), ("2", "0.5")], name
        (still,) = [row for row in rows["before"] if row["file"] == name]
        assert still["x"] == next(row["x"] for row in rows["frames"] if row["file"] == name)
    assert mien("review", out, "--export", tmp_path / "faces", "--all").exit_code == 0


# What a run tells


def test_a_log_of_json_lines_holds_nothing_else(mien: Mien, photos: Path, tmp_path: Path) -> None:
    video = write_video(photos / "cut.mkv", frames=30)
    payload = bytearray(video.read_bytes())
    payload[len(payload) // 3 : len(payload) // 2] = b"\xff" * (len(payload) // 2 - len(payload) // 3)
    video.write_bytes(payload)
    (photos / "cut.png").write_bytes(encoded(face_photo(), "PNG")[:-40])
    process = mien.start("label", photos, "--out", tmp_path / "out", "--json-log")
    _, said = process.communicate(timeout=100)
    events = Counter(json.loads(line)["event"] for line in said.splitlines())
    assert (events["summary"], events["error"]) == (1, 2), "the photo, and a damaged frame of the video"
    assert mien("label", tmp_path / "nowhere", "--out", tmp_path / "out2", "--json-log").stderr.startswith("{")


@pytest.mark.parametrize(
    ("option", "message"), [("--workers=many", "valid integer"), ("--write=cvs", "expected one or more of annotated")]
)
def test_a_usage_error_is_one_json_line_too(option: str, message: str, photos: Path) -> None:
    command = [sys.executable, "-m", "mien", "label", str(photos), option, "--json-log"]
    done = subprocess.run(command, cwd=Path(app.__file__).parents[1], capture_output=True, text=True, check=False)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert message in json.loads(line)["error"]


def test_an_unexpected_error_is_a_json_line_too(
    mien: Mien, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "open_pipeline", Mock(side_effect=RuntimeError("a bug")))
    done = mien("label", photos, "--out", tmp_path / "out", "--json-log")
    assert done.exit_code == 1
    assert "RuntimeError: a bug" in json.loads(done.stderr)["error"]


def test_an_output_that_is_redirected_to_a_full_disk_is_one_line(
    mien: Mien, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summary, "print_summary", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    done = mien("label", photos, "--out", tmp_path / "out", "--write", "csv")
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (1, "mien: [Errno 28] No space left on device")
    assert len(rows_of(tmp_path / "out")) == 5


def test_files_with_the_same_bytes_are_marked(mien: Mien, photos: Path, tmp_path: Path) -> None:
    (photos / "again.jpg").write_bytes(jpeg(3))
    write_zip(photos / "some.zip", 0, 0)
    mien.label(photos, "--write", "csv,files", out=tmp_path / "out")
    for table in ("labels.csv", "files.csv"):
        found = {row["file"]: row["duplicate_of"] for row in rows_of(tmp_path / "out", table)}
        assert {name: first for name, first in found.items() if first} == {
            "again.jpg": "3.jpg",
            "some.zip/in/1.jpg": "some.zip/in/0.jpg",
        }, table


def test_the_run_file_says_what_ran(mien: Mien, photos: Path, tmp_path: Path) -> None:
    mien.label(photos, "--min-face", "30", out=tmp_path / "out")
    facts = json.loads((tmp_path / "out" / "run.json").read_text())
    assert facts["settings"]["model"] == "tiny.test"
    assert facts["options"]["min_face_px"] == 30
    assert {"mien", "python", "onnxruntime", "opencv", "numpy", "pillow"} <= set(facts["versions"])
    assert (facts["images"], facts["labeled_now"], facts["remaining"]) == ({"ok": 5}, 5, 0)
    assert facts["seconds"] >= facts["seconds_labeling"] > 0
    assert facts["inputs"] == [str(photos)]
