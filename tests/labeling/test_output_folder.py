"""Output folder: a second process, a full disk, and another model."""

import os
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from mien.app.inference import classifier
from tests.labeling.conftest import Mien, resize, tree
from tests.support import tiny_artifact
from tests.support.albums import rows_of, write_photos, write_video


def test_a_full_disk_stops_the_run_cleanly_and_it_resumes_when_there_is_space(
    mien: Mien, tmp_path: Path, small_disk: Path
) -> None:
    photos, out = write_photos(tmp_path / "photos", count=80), small_disk / "out"
    command = (photos, "--write", "csv,annotated,crops", "--workers", "1")
    resize(small_disk, "1000k")
    full = mien.run(*command, out=out)
    assert full.exit_code == 6, full.stderr
    assert "no space left" in full.stderr
    assert not (out / "labels.csv").exists()
    assert not list((out / ".mien" / "part").iterdir())
    copies = list((out / "annotated").rglob("*.jpg"))
    assert 0 < len(copies) < 80
    assert all(path.read_bytes().endswith(b"\xff\xd9") for path in copies), "one is half written"
    resize(small_disk, "64m")
    assert "already labeled" in mien.run(*command, out=out).stderr
    mien.label(*command)
    assert tree(out) == tree(mien.out)


def test_a_video_that_does_not_fit_on_the_disk_stops_the_run_and_is_written_when_there_is_space(
    mien: Mien, tmp_path: Path, small_disk: Path
) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (16, 240, 320, 3), np.uint8)
    video, out = write_video(tmp_path / "noise.avi", images=noise, rate=8), small_disk / "out"
    resize(small_disk, "700k")
    full = mien.run(video, "--write", "video", out=out)
    assert (full.exit_code, "no space left" in full.stderr) == (6, True)
    resize(small_disk, "64m")
    mien.label(video, "--write", "video", out=out)
    assert (out / "video" / "noise.avi.mp4").stat().st_size > 700_000


def test_a_second_process_is_refused_and_leaves_the_output_of_the_first(
    mien: Mien, photos: Path, tmp_path: Path
) -> None:
    names = tmp_path / "names.txt"
    os.mkfifo(names)  # the first process scans until the pipe is closed
    first = mien.start("label", "--files-from", names, "--quiet", "--out", mien.out)
    with names.open("w") as pipe:  # waits for its reader, which has locked the folder
        refused = mien.run(photos)
        pipe.writelines(f"{path}\n" for path in photos.iterdir())
    assert refused.exit_code == 5
    assert f"in use by process {first.pid}" in refused.stderr.replace("\n", "")
    assert first.wait() == 0
    names.unlink()
    names.write_text("".join(f"{path}\n" for path in photos.iterdir()))
    mien.label("--files-from", names, out=tmp_path / "whole")
    assert tree(mien.out) == tree(tmp_path / "whole")


def test_another_model_or_setting_is_rejected_and_a_new_run_keeps_the_earlier_ones(
    mien: Mien, photos: Path, tmp_path: Path
) -> None:
    mien.label(photos)
    before = tree(mien.out)
    other = tiny_artifact(tmp_path / "other.model", temperature=3.0)
    refused = mien.run(photos, "--model", other)
    assert refused.exit_code == 1
    assert "model tiny.test -> other.model" in refused.stderr
    assert "--new-run" in refused.stderr
    assert tree(mien.out) == before
    assert "5 of 5 images already labeled" in mien.run(photos).stderr

    assert "already labeled" not in mien.run(photos, "--model", other, "--new-run").stderr
    assert {row["model"] for row in rows_of(mien.out)} == {"other.model"}
    mien.label(photos, "--new-run")
    for number, model in enumerate(("tiny.test", "other.model"), start=1):
        with sqlite3.connect(mien.out / ".mien" / f"journal.{number}.sqlite3") as journal:
            assert f'"model": "{model}"' in journal.execute("SELECT value FROM meta WHERE key='facts'").fetchone()[0]
            assert journal.execute("SELECT COUNT(*) FROM items WHERE status='ok'").fetchone()[0] == 5
        journal.close()


@pytest.mark.parametrize(("first", "then", "expected"), [(2.0, 1.0, "int8"), (1.0, 2.0, "fp32")])
def test_a_resumed_run_does_not_change_its_precision(
    mien: Mien, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: float, then: float, expected: str
) -> None:
    model = tiny_artifact(tmp_path / "tiny.test", precisions=("fp32", "fp16", "int8"))
    monkeypatch.setattr(classifier, "has_int8_instructions", lambda: True)

    def precisions(gain: float, *options: str) -> set[str]:
        monkeypatch.setattr(classifier, "speedup", lambda *_: gain)
        return {row["precision"] for row in mien.label(photos, "--model", model, "--write", "csv", *options)}

    assert precisions(first, "--limit", "1") == {expected}
    assert precisions(then) == {expected}
    assert precisions(then, "--new-run") != {expected}
