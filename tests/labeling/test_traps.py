"""Traps of real collections: cut and uneven videos, files swapped during a run, full disks, limits, archives."""

import errno
import importlib.util
import io
import json
import os
import tarfile
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, create_autospec

import numpy as np
import pytest
from PIL import Image

from mien.app.labeling import batch, containers, run, summary
from mien.app.labeling.batch import BatchLabeler, Threads
from mien.data.contract.decode import formats
from tests.labeling.conftest import Mien, resize
from tests.support import encoded, gradient_image, sample_photo
from tests.support.albums import by_file, face_photo, rows_of, write_video
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
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    rows = mien.label(path, "--every", "5", "--write", "csv,files", exit_code=3)
    (whole,) = rows_of(mien.out, "files.csv")
    assert (whole["status"], whole["reason"]) == ("error", "corrupt")
    assert "of 6.0 s: truncated or damaged" in whole["error"]
    assert Counter(row["status"] for row in rows if row["frame"])["ok"] in range(2, 6)


def test_videos_that_are_whole_have_no_error(mien: Mien, folder: Path, tmp_path: Path) -> None:
    plain, base = write_video(tmp_path / "a.mp4", frames=32, rate=8.0), tmp_path / "b.mp4"
    ffmpeg("-i", plain, "-c:v", "libx264", "-g", "8", base)
    cover = tmp_path / "cover.jpg"
    cover.write_bytes(jpeg(0))
    sound = ("-f", "lavfi", "-t", "9", "-i", "anullsrc")  # longer than the video
    for suffix in ("mkv", "ts", "mp4"):
        ffmpeg("-i", base, *sound, "-c:v", "copy", folder / f"long.{suffix}")
        ffmpeg("-i", base, "-c", "copy", "-output_ts_offset", "20", folder / f"late.{suffix}")
        ffmpeg("-ss", "1.1", "-i", base, "-c", "copy", folder / f"trimmed.{suffix}")
    ffmpeg("-i", base, *sound, "-c:v", "wmv2", folder / "long.wmv")
    ffmpeg("-i", base, "-c", "copy", "-f", "segment", "-segment_time", "2", folder / "part%d.mkv")
    ffmpeg("-i", base, "-vf", "tpad=stop_mode=clone:stop_duration=4", "-c:v", "libtheora", folder / "theora.ogv")
    covers = ("-map", "0", "-map", "1", "-c", "copy", "-disposition:v:0", "attached_pic")
    ffmpeg("-i", cover, "-i", base, *covers, folder / "cover.m4v")
    ffmpeg(*sound, folder / "sound.mp4")
    (folder / "empty.mp4").touch()
    mien.label(folder, "--every", "16", "--write", "files", exit_code=3)
    rows = rows_of(mien.out, "files.csv")
    odd = {name: values for name, values in by_file(rows, "status", "reason").items() if values != ("ok", "")}
    assert odd == {"sound.mp4": ("skipped", "no_video"), "empty.mp4": ("error", "empty")}
    assert by_file(rows, "frames")["cover.m4v"] == "2"


def test_scenes_give_one_frame_each(mien: Mien, tmp_path: Path) -> None:
    dark, light = np.zeros((144, 176, 3), np.uint8), np.full((144, 176, 3), 220, np.uint8)
    scenes = (dark, light, dark)  # with slow changes, which are no cut
    images = [scene + np.uint8(number) for scene in scenes for number in range(10)]
    rows = mien.label(write_video(tmp_path / "clip.avi", images=images), "--scenes")
    assert [row["frame"] for row in rows] == ["0", "10", "20"]


def test_a_cut_between_labeled_frames_separates_people(mien: Mien, tmp_path: Path) -> None:
    person = face_photo(160)
    tinted = (person * np.array([0.5, 0.7, 1.0])).astype(np.uint8)  # similar enough to be one person otherwise
    path = write_video(tmp_path / "clip.avi", images=[person] * 10 + [tinted] * 10)
    mien.label(path, "--every", "4", "--write", "timeline")
    assert [row["person"] for row in rows_of(mien.out, "timeline.csv")] == ["1"] * 3 + ["2"] * 2


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
    columns = ("status", "reason", "error", "face", "label", "image_width", "image_height")
    rows = mien.label(photos, "--annotated-px", "100", exit_code=3)  # copies are written again
    assert by_file(rows, *columns)["2.jpg"] == ("error", "not_found", "the link points to nothing", "", "", "", "")


# The disk


@pytest.mark.parametrize("free", [0, 4, 12])
def test_a_disk_that_is_full_at_the_start_is_reported(mien: Mien, photos: Path, small_disk: Path, free: int) -> None:
    (small_disk / "filler").write_bytes(b"\0" * (64 - free) * 1024)
    done = mien.run(photos, out=small_disk / "out")
    assert done.exit_code == 6, done.stderr
    assert "no space left" in done.stderr
    assert "Traceback" not in done.stderr
    (small_disk / "filler").unlink()
    resize(small_disk, "16m")
    assert len(mien.label(photos, out=small_disk / "out")) == 5


# Archives


def test_changes_that_keep_size_and_time_are_noticed_on_request(mien: Mien, photos: Path) -> None:
    def write(variant: int) -> None:
        write_zip(photos / "some.zip", 0, variant, 2)
        (photos / "3.jpg").write_bytes(jpeg(variant).ljust(9000, b"\0"))
        for name in ("some.zip", "3.jpg"):
            os.utime(photos / name, (0, 0))

    def hashes(*options: str) -> dict[str, str]:
        return by_file(mien.label(photos, *options, "--write", "csv"), "file_sha256")

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
    process = mien.start("label", photos, "--write", "csv", "--ignore", Path(ignored).name, "--out", out)
    printed, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert os.fsencode(out) in printed
    facts = json.loads(Path(out, "run.json").read_text())
    assert (facts["images"], facts["options"]["ignore"]) == ({"ok": 5}, ["caf\\xe9.jpg"])


def test_odd_members_of_archives_are_rows_and_the_others_are_labeled(mien: Mien, folder: Path) -> None:
    long, photo = "n" * 5_000, Image.open(io.BytesIO(jpeg(1)))
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        for name in (f"{long}.jpg", "deep/" * 1_000 + "b.jpg", "c.jpg"):
            archive.writestr(zipfile.ZipInfo(name), jpeg(1))
    pages = encoded(photo, "TIFF", save_all=True, append_images=[photo])
    files = [("nul.jpg", jpeg(2)), ("c.jpg", jpeg(2)), *[("scan.tif", pages)] * 2]  # as `tar -r` adds a file again
    with tarfile.open(folder / "b.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        for name, payload in files:
            entry = tarfile.TarInfo(name)
            entry.size, entry.pax_headers = len(payload), {"path": "n\0ul.jpg"} if name == "nul.jpg" else {}
            archive.addfile(entry, io.BytesIO(payload))
        for name, kind in (("s.jpg", tarfile.SYMTYPE), ("h.jpg", tarfile.LNKTYPE), ("p.jpg", tarfile.FIFOTYPE)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "c.jpg"
            archive.addfile(entry)
    rows = mien.label(folder, "--write", "csv,annotated,crops")
    labeled = [f"a.zip/{long}.jpg", f"a.zip/{'deep/' * 1_000}b.jpg", "a.zip/c.jpg", "b.tar/n\\x00ul.jpg", "b.tar/c.jpg"]
    labeled += ["b.tar/scan.tif", "b.tar/scan~2.tif"]
    assert by_file(rows, "status", "reason") == dict.fromkeys(labeled, ("ok", "")) | {
        "b.tar/s.jpg": ("skipped", "link"),
        "b.tar/h.jpg": ("skipped", "link"),
        "b.tar/p.jpg": ("skipped", "special_file"),
    }
    scans = [(row["file"], row["frame"]) for row in rows if "scan" in row["file"]]
    assert scans == [(name, frame) for name in labeled[-2:] for frame in ("0", "1")]
    assert sum(path.is_file() for path in (mien.out / "annotated").rglob("*")) == 9
    assert "12 of 12 images already labeled" in mien.run(folder).stderr


def test_large_members_of_archives_are_labeled_in_smaller_batches(
    mien: Mien, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_zip(tmp_path / "some.zip", *range(12))
    whole = mien.label(tmp_path / "some.zip", out=tmp_path / "whole")
    monkeypatch.setattr(run, "BATCH_BYTES", 20_000)  # a member has 9,000
    label_batch = create_autospec(BatchLabeler.label, side_effect=BatchLabeler.label)
    monkeypatch.setattr(BatchLabeler, "label", label_batch)
    for limit in ("2", "12"):  # the batches do not depend on what is labeled already
        rows = mien.label(tmp_path / "some.zip", "--limit", limit)
    assert [len(call.args[1]) for call in label_batch.call_args_list if call.args[1]] == [2, 1, 3, 3, 3]
    assert rows == whole


# Limits


def test_a_zip_whose_list_of_members_would_fill_the_memory_is_a_row(
    mien: Mien, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_zip(photos / "many.zip", *range(12))
    write_zip(photos / "some.zip", 0)
    monkeypatch.setattr(containers, "MAX_DIRECTORY_BYTES", 200)  # an entry has about 60
    reasons = by_file(mien.label(photos, exit_code=3), "reason")
    assert (reasons["many.zip"], reasons["some.zip/in/0.jpg"], len(reasons)) == ("too_large", "", 7)


def test_what_is_labeled_of_an_unfinished_video_stays_in_the_outputs(mien: Mien, tmp_path: Path) -> None:
    write_video(tmp_path / "clip.avi", frames=10)
    command, crops = (tmp_path / "clip.avi", "--write", "csv,crops", "--limit"), mien.out / "crops"
    for labeled in (4, 8, 10):
        rows = mien.label(*command, "4")
        assert len(rows) == len(list(crops.rglob("*.png"))) == labeled
        next(crops.rglob("*.png")).unlink()  # written again by the next run
        mien.label(*command, "1")


def test_a_raised_limit_retries_only_what_was_too_large(mien: Mien, photos: Path) -> None:
    (photos / "large.jpg").write_bytes(encoded(face_photo(300), "JPEG"))
    write_zip(photos / "some.zip", 0)
    low = replace(mien, environment=mien.environment | {"MIEN_MAX_BYTES": "8000"})
    rows = low.label(photos, exit_code=3)
    assert {row["file"] for row in rows if row["reason"] == "too_large"} == {"large.jpg", "some.zip/in/0.jpg"}
    assert mien.summary(photos)["new"] == 2
    assert {row["status"] for row in rows_of(mien.out)} == {"ok"}


def test_large_scans_are_read(mien: Mien, tmp_path: Path) -> None:
    Image.new("L", (7_800, 7_800)).save(tmp_path / "scan.png")  # 61 megapixels
    (row,) = mien.label(tmp_path / "scan.png", "--whole", "--write", "csv")
    assert row["status"] == "ok"


def test_small_and_uncertain_faces_are_left_out_and_come_back(mien: Mien, photos: Path) -> None:
    faces = mien.label(photos, "--write", "csv,jsonl,report")
    least, side = sorted(float(row["confidence"]) for row in faces)[2], min(float(row["width"]) for row in faces)
    chosen = mien.summary(photos, "--min-confidence", str(least - 1e-5), "--write", "csv")
    kept = [row["file"] for row in rows_of(mien.out) if row["face"]]
    assert kept == [row["file"] for row in faces if float(row["confidence"]) >= least]
    assert (mien.out / "labels.jsonl").read_text().count('"filtered"') == 5 - len(kept)
    assert (chosen["new"], chosen["statuses"]) == (0, {"ok": len(kept), "filtered": 5 - len(kept)})
    assert {row["status"] for row in mien.label(photos, "--min-face", str(side + 500))} == {"filtered"}
    assert mien.label(photos) == faces


def test_faces_that_may_be_missing_are_told_in_row_and_summary(mien: Mien, folder: Path, tmp_path: Path) -> None:
    with Image.open(sample_photo()) as portrait:
        person = np.asarray(portrait.resize((220, 220)))
    for name, height in (("large.png", 1300), ("panorama.png", 1000)):
        image = np.full((height, 3300, 3), 90, np.uint8)
        for x in (40, 1650, 3000):
            image[700:920, x : x + 220] = person
        Image.fromarray(image).save(folder / name, compress_level=1)
    assert "1 image: searched at reduced size" in mien.run(folder, "--write", "csv,files").stdout
    for table in ("labels.csv", "files.csv"):
        notes = by_file(rows_of(mien.out, table), "notes")
        assert notes == {"large.png": "reduced_search", "panorama.png": ""}
    assert sum(row["file"] == "panorama.png" for row in rows_of(mien.out)) == 3
    command = (folder, "--small-faces", "--max-faces", "2", "--write", "csv")
    found = mien.label(*command, out=tmp_path / "small")
    assert [(row["file"], row["notes"]) for row in found] == [
        (name, "max_faces") for name in ("large.png", "panorama.png") for _ in range(2)
    ]
    again = mien.run(*command, out=tmp_path / "small")
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
    rows = {row["file"]: row for row in mien.label(folder, "--write", "csv")}
    assert {name for name, row in rows.items() if row["status"] != "ok"} == {"notes"}
    videos = {name for name, row in rows.items() if row["frame"] == "0"}
    assert videos == {"f.mp4v", "g.qt", "MOVIE_0002", "20241127.235959"}
    assert "h.cbz/c.tga" in rows
    assert mien("review", mien.out, "--export", tmp_path / "faces", "--all").exit_code == 0


def test_an_archive_that_is_not_read_is_an_error_that_says_what_to_do(mien: Mien, folder: Path) -> None:
    names = ("00001.ppm.bz2", "B.7Z", "a.rar", "c.cbr")
    for name in names:
        (folder / name).write_bytes(b"Rar!\x1a\x07\x01\0")
    done = mien.run(folder)
    assert done.exit_code == 3
    assert "read 4 archives: unpack it" in done.stdout
    rows = rows_of(mien.out)
    assert by_file(rows, "status", "reason") == dict.fromkeys(names, ("error", "unsupported"))
    assert all("unpack it" in row["error"] for row in rows)


def test_heic_without_its_package_says_what_to_install_and_is_retried_once_it_is_there(
    mien: Mien, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pillow_heif = pytest.importorskip("pillow_heif", reason="pillow-heif is not installed: HEIC is not tested")
    pillow_heif.from_pillow(Image.fromarray(face_photo(224))).save(tmp_path / "a.heic", quality=90)
    command = "pip install pillow-heif"
    with monkeypatch.context() as missing:
        missing.setattr(importlib.util, "find_spec", lambda _: None)
        formats.cache_clear()
        done = mien.run(tmp_path / "a.heic")
        assert command in mien("doctor").stdout
    formats.cache_clear()
    assert done.exit_code == 3
    assert f"read 1 file with pillow-heif: {command}, and rerun" in done.stdout
    assert command in rows_of(mien.out)[0]["error"]
    (row,) = mien.label(tmp_path / "a.heic")
    assert row["status"] == "ok"


def test_images_of_a_narrow_range_are_stretched_in_pixels_copies_and_review_and_say_so(
    mien: Mien, folder: Path, tmp_path: Path
) -> None:
    colors = face_photo(224).astype(np.uint16)
    face = np.asarray(Image.fromarray(face_photo(224)).convert("L")).astype(np.uint16)
    for name, image in {"plain": face * 257, "thermal": face + 30_000, "colors": colors * 16}.items():
        (folder / f"{name}.tif").write_bytes(tiff(image))
    (folder / "planes.tif").write_bytes(tiff(colors * 257, planes=True))
    page = Image.fromarray(face + 30_000)
    page.save(folder / "pages.tif", save_all=True, append_images=[page])
    assert "4 images: a small part of the range" in mien.run(folder, "--write", "csv,annotated").stdout
    rows = [(row["file"], row["frame"], row["status"], row["notes"]) for row in rows_of(mien.out)]
    assert rows == [
        ("colors.tif", "", "ok", "stretched"),
        ("pages.tif", "0", "ok", "stretched"),
        ("pages.tif", "1", "ok", "stretched"),
        ("plain.tif", "", "ok", ""),
        ("planes.tif", "", "error", ""),
        ("thermal.tif", "", "ok", "stretched"),
    ]
    with Image.open(mien.out / "annotated" / "colors.tif.jpg") as copy:
        assert np.asarray(copy.convert("L")).mean() > face.mean(), "it was nearly black"
    assert mien("review", mien.out, "--export", tmp_path / "faces", "--all").exit_code == 0
    crops = [np.asarray(Image.open(path).convert("L")) for path in (tmp_path / "faces").rglob("*.png")]
    assert len(crops) == 5
    assert min(crop.std() for crop in crops) > 20


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
    mien.label(folder, "--write", "files", exit_code=3)
    statuses = by_file(rows_of(mien.out, "files.csv"), "status", "reason")
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
    labeled = mien.label(folder, "--write", "csv", exit_code=3)
    rows = {row["file"].split(".")[0]: row for row in labeled}
    assert [row["status"] for row in labeled] == ["ok", "ok", "no_face", "error", "ok"]
    for name in ("a-developed", "b-preview"):
        for column in ("x", "y", "width", "height"):
            assert float(rows[name][column]) == pytest.approx(float(rows["e-plain"][column]), abs=25), (name, column)
    assert mien("review", mien.out, "--export", tmp_path / "faces", "--all").exit_code == 0


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
    mien.summary(*command, "--limit", "2")
    mien.summary(*command, exit_code=3)
    rows = rows_of(mien.out)
    files = {row["file"]: row for row in rows_of(mien.out, "files.csv")}
    pages = [(row["frame"], row["time_s"], row["x"]) for row in rows if row["file"] == "scans.TIF"]
    assert [page[:2] for page in pages] == [("0", ""), ("1", ""), ("2", "")]
    assert len({x for _, _, x in pages}) > 1, "pages differ"
    for place in ("", "a.zip/", "b.tar/"):
        own = [row for row in rows if row["file"] == f"{place}scans.TIF"]
        assert [(row["frame"], row["time_s"], row["x"]) for row in own] == pages
        assert [row["frame"] for row in rows if row["file"] == f"{place}one.tif"] == [""]
        whole = files[f"{place}scans.TIF"]
        assert (whole["frames"], whole["faces"], files[f"{place}one.tif"]["frames"]) == ("3", "3", "")
    assert (mien.out / "annotated" / "scans.TIF" / "frame_00000002.jpg").exists()
    assert rows_of(mien.out, "timeline.csv") == []
    assert mien.summary(*command, exit_code=3)["new"] == 0
    assert mien("review", mien.out, "--export", tmp_path / "faces", "--all").exit_code == 0
    assert len(list((tmp_path / "faces").rglob("*scans.TIF*.png"))) == 3, "copies are exported once"
    assert {row["person"] for row in rows_of(tmp_path / "faces", "manifest.csv")} == {""}, "pages are no video"


@pytest.mark.parametrize("outputs", ["csv,annotated", "csv"])
def test_animations_are_frames_on_request_only(mien: Mien, folder: Path, tmp_path: Path, outputs: str) -> None:
    first, *others = [Image.fromarray(face_photo(variant=number)) for number in range(3)]
    for name in ("a.gif", "b.webp", "c.png", "d.avif"):
        first.save(folder / name, save_all=True, append_images=others, duration=[200, 300, 400])
    first.save(folder / "still.gif")
    with zipfile.ZipFile(folder / "e.zip", "w") as archive:
        archive.write(folder / "a.gif", "a.gif")

    def label(*options: str) -> list[dict[str, str]]:
        mien.run(folder, *options, "--write", outputs, "--limit", "4")
        rows = mien.label(folder, *options, "--write", outputs)
        assert {row["status"] for row in rows} == {"ok"}
        assert sum(json.loads((mien.out / "run.json").read_text())["faces"].values()) == len(rows)
        copies = list((mien.out / "annotated").rglob("*.jpg"))
        assert len(copies) == (len(rows) if "annotated" in outputs else 0)
        return rows

    before, animated, after = label(), label("--animations"), label()
    names = ["a.gif", "b.webp", "c.png", "d.avif", "e.zip/a.gif"]
    assert [row["file"] for row in before] == [*names, "still.gif"]
    assert before == after
    for name in names:
        frames = [(row["frame"], row["time_s"], row["x"]) for row in animated if row["file"] == name]
        assert [frame[:2] for frame in frames] == [("0", "0.0"), ("1", "0.2"), ("2", "0.5")], name
        assert by_file(before, "x")[name] == frames[0][2]
    assert mien("review", mien.out, "--export", tmp_path / "faces", "--all").exit_code == 0


# What a run tells


def test_a_log_of_json_lines_holds_nothing_else(mien: Mien, photos: Path) -> None:
    video = write_video(photos / "cut.mkv", frames=30)
    payload = bytearray(video.read_bytes())
    payload[len(payload) // 3 : len(payload) // 2] = b"\xff" * (len(payload) // 2 - len(payload) // 3)
    video.write_bytes(payload)
    (photos / "cut.png").write_bytes(encoded(face_photo(), "PNG")[:-40])
    _, said = mien.start("label", photos, "--write", "csv", "--out", mien.out, "--json-log").communicate(timeout=100)
    events = Counter(json.loads(line)["event"] for line in said.splitlines())
    assert (events["summary"], events["error"]) == (1, 2), "the photo, and a damaged frame of the video"


def test_an_error_is_one_json_line_too(
    mien: Mien, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, said = mien.start("label", photos, "--workers=many", "--json-log").communicate()
    errors = {
        "valid integer": said,  # by Typer
        "expected one or more of annotated": mien.run(photos, "--write=cvs", "--json-log").stderr,
        "nowhere does not exist": mien.run(tmp_path / "nowhere", "--json-log").stderr,
    }
    monkeypatch.setattr(batch, "open_pipeline", Mock(side_effect=RuntimeError("a bug")))
    errors["RuntimeError: a bug"] = mien.run(photos, "--json-log").stderr
    for (message, line), code in zip(errors.items(), (2, 2, 1, 1), strict=True):
        failure = json.loads(line)
        assert (message in failure["error"], failure["code"]) == (True, code), line


def test_an_output_that_is_redirected_to_a_full_disk_is_one_line(
    mien: Mien, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summary, "print_summary", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    done = mien.run(photos, "--write", "csv")
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (1, "mien: [Errno 28] No space left on device")
    assert len(rows_of(mien.out)) == 5


def test_files_with_the_same_bytes_are_marked(mien: Mien, photos: Path) -> None:
    (photos / "again.jpg").write_bytes(jpeg(3))
    write_zip(photos / "some.zip", 0, 0)
    mien.label(photos, "--write", "csv,files")
    for table in ("labels.csv", "files.csv"):
        copies = {name: first for name, first in by_file(rows_of(mien.out, table), "duplicate_of").items() if first}
        assert copies == {"again.jpg": "3.jpg", "some.zip/in/1.jpg": "some.zip/in/0.jpg"}, table


def test_the_run_file_says_what_ran(mien: Mien, photos: Path) -> None:
    mien.label(photos, "--min-face", "30")
    facts = json.loads((mien.out / "run.json").read_text())
    assert facts["settings"]["model"] == "tiny.test"
    assert facts["options"]["min_face_px"] == 30
    assert {"mien", "python", "onnxruntime", "opencv", "numpy", "pillow"} <= set(facts["versions"])
    assert (facts["images"], facts["labeled_now"], facts["remaining"]) == ({"ok": 5}, 5, 0)
    assert facts["seconds"] >= facts["seconds_labeling"] > 0
    assert facts["inputs"] == [str(photos)]
