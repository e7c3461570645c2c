"""Output folder: a second process, a full disk, and another model."""

import os
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from mien.app.inference import classifier
from tests.labeling.conftest import Mien, resize, tree
from tests.support import tiny_artifact
from tests.support.albums import make_album, rows_of, write_video


def test_a_full_disk_stops_the_run_cleanly_and_it_resumes_when_there_is_space(
    mien: Mien, tmp_path: Path, small_disk: Path
) -> None:
    album = make_album(tmp_path / "album", 120, containers=False)
    out = small_disk / "out"
    resize(small_disk, "1200k")
    full = mien("label", album, "--out", out, "--write", "csv,annotated,crops", "--quiet")
    assert full.exit_code == 6, full.stderr
    assert "no space left" in full.stderr
    assert not (out / "labels.csv").exists()
    assert not list((out / ".mien" / "part").iterdir())
    for path in (out / "annotated").rglob("*.jpg"):
        assert path.read_bytes().endswith(b"\xff\xd9"), f"{path} is half written"
    resize(small_disk, "64m")
    again = mien("label", album, "--out", out, "--write", "csv,annotated,crops")
    assert again.exit_code == 3
    assert "already labeled" in again.stderr
    mien.label(album, "--write", "csv,annotated,crops", out=tmp_path / "whole", exit_code=3)
    assert tree(out) == tree(tmp_path / "whole")


def test_a_video_that_does_not_fit_on_the_disk_stops_the_run_and_is_written_when_there_is_space(
    mien: Mien, tmp_path: Path, small_disk: Path
) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (16, 240, 320, 3), np.uint8)
    video, out = write_video(tmp_path / "noise.avi", images=noise, rate=8), small_disk / "out"
    resize(small_disk, "700k")
    full = mien("label", video, "--out", out, "--write", "video", "--quiet")
    assert (full.exit_code, "no space left" in full.stderr) == (6, True)
    resize(small_disk, "64m")
    mien.label(video, "--write", "video", out=out)
    assert (out / "video" / "noise.avi.mp4").stat().st_size > 700_000


def test_a_second_process_is_refused_and_leaves_the_output_of_the_first(
    mien: Mien, photos: Path, tmp_path: Path
) -> None:
    names = tmp_path / "names.txt"
    os.mkfifo(names)  # the first process scans until the pipe is closed
    first = mien.start("label", "--files-from", names, "--quiet", "--out", tmp_path / "out")
    with names.open("w") as pipe:  # waits for its reader, which has locked the folder
        refused = mien("label", photos, "--out", tmp_path / "out")
        pipe.writelines(f"{path}\n" for path in photos.iterdir())
    assert refused.exit_code == 5
    assert f"in use by process {first.pid}" in refused.stderr.replace("\n", "")
    assert first.wait() == 0
    names.unlink()
    names.write_text("".join(f"{path}\n" for path in photos.iterdir()))
    mien.label("--files-from", names, out=tmp_path / "whole")
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_another_model_or_setting_is_rejected_and_a_new_run_keeps_the_earlier_ones(
    mien: Mien, photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    mien.label(photos, out=out)
    before = tree(out)
    other = tiny_artifact(tmp_path / "other.model", temperature=3.0)
    refused = mien("label", photos, "--out", out, "--model", other)
    assert refused.exit_code == 1
    assert "model tiny.test -> other.model" in refused.stderr
    assert "--new-run" in refused.stderr
    assert tree(out) == before
    assert "5 of 5 images already labeled" in mien("label", photos, "--out", out).stderr

    changed = mien("label", photos, "--out", out, "--model", other, "--new-run")
    assert "already labeled" not in changed.stderr
    assert {row["model"] for row in rows_of(out)} == {"other.model"}
    mien.label(photos, "--new-run", out=out)
    kept = [out / ".mien" / f"journal.{number}.sqlite3" for number in (1, 2)]
    for path, model in zip(kept, ("tiny.test", "other.model"), strict=True):
        with sqlite3.connect(path) as journal:
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
        return {row["precision"] for row in mien.label(photos, "--model", model, *options, out=tmp_path / "out")}

    assert precisions(first, "--limit", "1") == {expected}
    assert precisions(then) == {expected}
    assert precisions(then, "--new-run") != {expected}
