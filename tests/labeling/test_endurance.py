"""Constant memory for any number of files, and runs with an image on which a stage fails."""

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from benchmarks.labeling import make_photos
from mien.app.inference.labeler import Labeler
from mien.app.inference.records import Photo
from mien.app.video.reader import VideoFrame
from mien.data.contract import Array
from tests.labeling.conftest import Mien
from tests.support import ROOT
from tests.support.albums import by_file, write_photos, write_video


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak in the unit of Linux")
def test_memory_of_eight_hundred_files_is_that_of_a_fifth_of_them(mien: Mien, tmp_path: Path) -> None:
    thirty, peaks_mb = write_photos(tmp_path / "thirty", count=30), []
    for count in (160, 800):
        make_photos(tmp_path / str(count), thirty, count)
        options = ("--workers", "2", "--write", "csv,jsonl,coco,report", "--out", tmp_path / f"out{count}")
        command = [sys.executable, "-m", "mien", "label", tmp_path / str(count), *options]
        with subprocess.Popen(command, cwd=ROOT, env=mien.environment, stdout=subprocess.DEVNULL) as process:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        peaks_mb.append(used.ru_maxrss / 1024)
    assert peaks_mb[1] - peaks_mb[0] < 25


def test_an_image_or_a_video_on_which_a_stage_fails_is_a_row_and_the_others_are_labeled(
    mien: Mien, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison, prepare = (photos / "2.jpg").read_bytes(), Labeler.prepare

    def failing(pipeline: Labeler, payload: bytes, **options: bool) -> Photo:
        if payload == poison:
            raise RuntimeError("the network has no answer")
        return prepare(pipeline, payload, **options)

    for name in ("1.avi", "3.avi"):
        write_video(photos / name, frames=2)
    monkeypatch.setattr(Labeler, "prepare", failing)
    monkeypatch.setattr(VideoFrame, "pixels", Mock(side_effect=[RuntimeError("no known type"), MemoryError]))
    rows = mien.label(photos, exit_code=3)
    assert len(rows) == 7
    errors = [row for row in rows if row["status"] == "error"]
    assert by_file(errors, "reason", "error") == {
        "1.avi": ("failed", "RuntimeError: no known type"),
        "2.jpg": ("failed", "RuntimeError: the network has no answer"),
        "3.avi": ("too_large", "out of memory"),
    }


def test_a_photo_whose_faces_cannot_be_classified_is_a_row_but_a_model_that_fails_for_every_photo_ends_the_run(
    mien: Mien, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classify, calls = Labeler.classify, []

    def failing(pipeline: Labeler, crops: Array) -> Array:
        calls.append(len(crops))
        if len(calls) in (1, 4):  # They are the whole batch, and then its third photo.
            raise MemoryError
        return classify(pipeline, crops)

    with monkeypatch.context() as patched:
        patched.setattr(Labeler, "classify", Mock(side_effect=RuntimeError("the GPU is gone")))
        mien.refuses("the GPU is gone", photos)
    monkeypatch.setattr(Labeler, "classify", failing)
    rows = mien.label(photos, exit_code=3)
    assert calls == [5, 1, 1, 1, 1, 1]
    assert [row["reason"] for row in rows] == ["", "", "too_large", "", ""]
