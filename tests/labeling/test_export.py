"""Export of reviewed faces as a data set."""

import errno
import os
import shlex
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from mien.app.errors import LabelingError
from mien.app.labeling.review import export
from mien.app.labeling.review.export import write_export
from mien.data.readers.base import open_reader
from tests.labeling.conftest import Labeled, decide
from tests.support.albums import label_folder, rows_of


def test_reviewed_faces_become_class_folders_that_training_reads(
    page: TestClient, own: Labeled, tmp_path: Path
) -> None:
    for file, label in (("0.jpg", "anger"), ("1.jpg", "not_a_face"), ("2.jpg", "surprise")):
        decide(page, file, label)
    target = tmp_path / "my faces"
    said = write_export(own.out, target, everything=False)
    assert "2 faces" in said
    assert shlex.split(said.splitlines()[-1])[-1] == str(target)
    samples = {(sample.label, Path(sample.key).name) for sample in open_reader("folders", target).samples("train")}
    assert samples == {("anger", "0.jpg.face0.png"), ("surprise", "2.jpg.face0.png")}
    write_export(own.out, target, everything=True)
    assert len(open_reader("folders", target).samples("train")) == 6


def test_an_export_replaces_an_earlier_export_only(
    page: TestClient, own: Labeled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(target: Path, reason: str) -> None:
        with pytest.raises(LabelingError, match=reason):
            write_export(own.out, target, everything=False)

    decide(page, "0.jpg", "anger")
    mine, disk, link = tmp_path / "mine" / "train" / "happy" / "0.jpg", tmp_path / "disk", tmp_path / "link"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"mine")
    (tmp_path / "mine" / "manifest.csv").write_text("of,another,program\n", encoding="utf-8")
    refused(own.out / "crops", "is an output of `mien label`")
    refused(mine, r"0\.jpg is a file")
    refused(tmp_path / "mine", "is not listed in")
    assert mine.read_bytes() == b"mine"
    disk.mkdir()
    link.symlink_to(disk)
    for _ in range(2):
        write_export(own.out, link, everything=False)
        assert (link.is_symlink(), len(open_reader("folders", disk).samples("train"))) == (True, 1)
    (disk / "mine.txt").write_text("the only copy")
    refused(disk, r"mine\.txt is not listed in")
    (disk / "mine.txt").unlink()
    (disk / "manifest.csv").write_bytes(b"")
    refused(disk, f"delete {disk}")
    assert (disk / "train" / "anger" / "0.jpg.face0.png").exists()
    current = tmp_path / "empty" / "current"
    current.mkdir(parents=True)
    monkeypatch.chdir(current)
    for target in (Path(), Path("..")):
        refused(target, "is the current folder or contains it")


def test_a_photo_that_took_the_name_of_another_is_not_exported(own: Labeled, tmp_path: Path) -> None:
    photos = own.photos
    label_folder(photos, tmp_path / "own", own.settings, "csv")
    (photos / "1.jpg").replace(photos / "0.jpg")  # They have the same size.
    clip = (photos / "clip.avi").read_bytes()
    (photos / "clip.avi").write_bytes(clip[:-1] + bytes([clip[-1] ^ 1]))
    said = write_export(tmp_path / "own", tmp_path / "faces", everything=True)
    assert "3 faces in" in said
    assert "4 photos not exported:\n  0.jpg is not the image that was labeled" in said
    assert f"1.jpg can no longer be read ({os.strerror(errno.ENOENT)}): label" in said
    assert "clip.avi is not the image that was labeled" in said
    assert {row["file"] for row in rows_of(tmp_path / "faces", "manifest.csv")} == {"2.jpg", "3.jpg", "4.jpg"}


@pytest.mark.parametrize("step", range(2))
def test_an_export_killed_at_any_step_is_repaired_by_the_next(
    own: Labeled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    target, calls = tmp_path / "faces", []
    write_export(own.out, target, everything=True)
    before = sorted(target.rglob("*"))
    real = Path.replace

    def killing(path: Path, other: Path) -> Path:  # The process ends here, and cleans up nothing.
        calls.append(path)
        if len(calls) > step:
            monkeypatch.setattr(export, "_clean", lambda *_: None)
            raise SystemExit
        return real(path, other)

    monkeypatch.setattr(Path, "replace", killing)
    with pytest.raises(SystemExit):
        write_export(own.out, target, everything=True)
    monkeypatch.undo()
    write_export(own.out, target, everything=True)
    assert sorted(target.rglob("*")) == before
    assert {path.name for path in tmp_path.iterdir()} == {"out", "photos", "faces"}
