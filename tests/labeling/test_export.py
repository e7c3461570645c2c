"""Export of reviewed faces as a data set."""

import errno
import os
import shlex
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from fastapi.testclient import TestClient

from mien.app.errors import LabelingError
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
    write_export(own.out, tmp_path / "all", everything=True)
    assert len(open_reader("folders", tmp_path / "all").samples("train")) == 6


def test_an_export_needs_a_new_or_empty_folder_and_is_whole_or_absent(
    page: TestClient, own: Labeled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LabelingError, match=r"no face of .* is reviewed\. Run mien review .*, or add --all"):
        write_export(own.out, tmp_path / "none", everything=False)
    assert not (tmp_path / "none").exists()
    decide(page, "0.jpg", "anger")
    disk, link, mine = tmp_path / "disk", tmp_path / "link", tmp_path / "mine.txt"
    disk.mkdir()
    link.symlink_to(disk)
    mine.write_text("the only copy")
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(LabelingError, match="cannot write"):
            write_export(own.out, link, everything=False)
    assert {path.name for path in tmp_path.iterdir()} == {"out", "photos", "disk", "link", "mine.txt"}
    write_export(own.out, link, everything=False)
    assert (link.is_symlink(), len(open_reader("folders", disk).samples("train"))) == (True, 1)
    for target in (link, mine, own.out / "crops"):
        with pytest.raises(LabelingError, match="is not an empty folder"):
            write_export(own.out, target, everything=True)
    assert (mine.read_text(), len(list(disk.rglob("*.png")))) == ("the only copy", 1)


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
