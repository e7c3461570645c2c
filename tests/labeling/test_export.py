"""Export of reviewed faces as a data set."""

import errno
import os
import shlex
import shutil
from pathlib import Path, PurePosixPath
from unittest.mock import Mock

import cv2
import pytest
from fastapi.testclient import TestClient

from mien.app.labeling import files
from mien.app.labeling.files import ForeignFile, OutputRefused, quoted
from mien.app.labeling.outputs import classes
from mien.app.labeling.review import sources
from mien.app.labeling.review.export import write_export
from mien.data.contract import decode
from mien.data.readers.folders import Folders
from tests.labeling.conftest import Labeled, decide
from tests.support import sample_photo
from tests.support.albums import label_folder, rows_of, write_video


def test_reviewed_faces_become_class_folders_that_training_reads(
    page: TestClient, own: Labeled, tmp_path: Path
) -> None:
    decide(page, "0.jpg", "anger")
    decide(page, "1.jpg", "not_a_face")
    decide(page, "2.jpg", "surprise")
    target = tmp_path / "my faces"
    said = write_export(own.out, target, everything=False)
    assert "2 faces" in said
    assert shlex.split(said.splitlines()[-1])[-1] == str(target)
    assert {(sample.label, Path(sample.key).name) for sample in Folders(target).samples("train")} == {
        ("anger", "0.jpg.face0.png"),
        ("surprise", "2.jpg.face0.png"),
    }
    write_export(own.out, target, everything=True)
    assert len(Folders(target).samples("train")) == 6


def test_without_its_manifest_an_export_is_kept_and_the_error_says_how_to_write_it_again(
    page: TestClient, own: Labeled, tmp_path: Path
) -> None:
    decide(page, "0.jpg", "anger")
    target = tmp_path / "faces"
    write_export(own.out, target, everything=False)
    for damage in (b"", b"\xff\xfe", b"image,label,predicted,reviewed,file,frame,face,person,name\n"):
        (target / "manifest.csv").write_bytes(damage)
        with pytest.raises(ForeignFile, match=f"delete {target}"):
            write_export(own.out, target, everything=False)
        assert (target / "train" / "anger" / "0.jpg.face0.png").exists()


def test_an_export_replaces_an_earlier_export_only(
    page: TestClient, own: Labeled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(target: Path, reason: str) -> str:
        with pytest.raises((ForeignFile, OutputRefused), match=reason) as error:
            write_export(own.out, target, everything=False)
        return str(error.value)

    decide(page, "0.jpg", "anger")
    mine, disk, link = tmp_path / "mine" / "train" / "happy" / "0.jpg", tmp_path / "disk", tmp_path / "link"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"mine")
    refused(own.out / "classes", "is an output of `mien label`")
    refused(mine, r"0\.jpg is a file")
    refused(mine / "faces", "cannot write")
    (tmp_path / "mine" / "manifest.csv").write_text("of,another,program\n", encoding="utf-8")
    assert "delete" not in refused(tmp_path / "mine", "Choose a new or empty folder")
    disk.mkdir()
    link.symlink_to(disk)
    for _ in range(2):
        write_export(own.out, link, everything=False)
        assert link.is_symlink()
        assert len(Folders(disk).samples("train")) == 1
    (disk / "mine.txt").write_text("the only copy")
    refused(disk, r"mine\.txt was not written by an export")
    current = tmp_path / "empty" / "current"
    current.mkdir(parents=True)
    monkeypatch.chdir(current)
    for target in (Path(), Path("..")):
        refused(target, "is the current folder or contains it")
    assert not list(current.iterdir())
    assert mine.read_bytes() == b"mine"


def test_an_export_creates_missing_crops_and_decodes_a_video_once(
    own: Labeled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_export(own.out, tmp_path / "with", everything=True)
    shutil.rmtree(own.out / "crops")
    opening = Mock(wraps=sources.Video)
    monkeypatch.setattr(sources, "Video", opening)
    write_export(own.out, tmp_path / "without", everything=True)
    assert opening.call_count == 1
    crops = {path.name: path.read_bytes() for path in (tmp_path / "with").rglob("*.png")}
    assert len(crops) == 7
    assert {path.name: path.read_bytes() for path in (tmp_path / "without").rglob("*.png")} == crops


def test_a_photo_that_took_the_name_of_another_is_not_exported(page: TestClient, own: Labeled, tmp_path: Path) -> None:
    photos = own.photos
    label_folder(photos, tmp_path / "own", own.settings, "csv")
    (photos / "1.jpg").replace(photos / "0.jpg")  # of the same size
    clip = (photos / "clip.avi").read_bytes()
    (photos / "clip.avi").write_bytes(clip[:-1] + bytes([clip[-1] ^ 1]))
    said = write_export(tmp_path / "own", tmp_path / "faces", everything=True)
    assert {path.name for path in tmp_path.iterdir()} == {"out", "own", "photos", "faces"}
    assert "3 faces in" in said
    assert "4 photos not exported:\n  0.jpg is not the image that was labeled" in said
    assert f"1.jpg can no longer be read ({os.strerror(errno.ENOENT)}): label" in said
    assert "clip.avi is not the image that was labeled" in said
    assert {row["file"] for row in rows_of(tmp_path / "faces", "manifest.csv")} == {"2.jpg", "3.jpg", "4.jpg"}


def test_people_of_a_video_are_told_apart_by_their_faces_without_a_report(own: Labeled, tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    names = ("astronaut.jpg", "grace_hopper.jpg", "astronaut.jpg")
    photos = (decode(sample_photo().with_name(name).read_bytes()) for name in names)
    images = [cv2.resize(photo, (512, 512)) for photo in photos]
    write_video(tmp_path / "videos" / "clip.avi", images=images, rate=1.0)
    label_folder(tmp_path / "videos", tmp_path / "own", own.settings, "csv")
    write_export(tmp_path / "own", tmp_path / "faces", everything=True)
    assert [row["person"] for row in rows_of(tmp_path / "faces", "manifest.csv")] == ["1", "2", "1"]


@pytest.mark.parametrize("step", range(2))
def test_an_export_killed_at_any_step_is_repaired_by_the_next(
    own: Labeled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    target, calls = tmp_path / "faces", []
    write_export(own.out, target, everything=True)
    before = sorted(target.rglob("*"))
    real = Path.replace

    def killing(path: Path, other: Path) -> Path:  # the process ends before this renaming, and cleans up nothing
        calls.append(path)
        if len(calls) > step:
            monkeypatch.setattr(classes, "_clean", lambda *_: None)
            raise SystemExit
        return real(path, other)

    monkeypatch.setattr(Path, "replace", killing)
    with pytest.raises(SystemExit):
        write_export(own.out, target, everything=True)
    monkeypatch.undo()
    write_export(own.out, target, everything=True)
    assert sorted(target.rglob("*")) == before
    assert {path.name for path in tmp_path.iterdir()} == {"out", "photos", "faces"}


def test_suggested_commands_are_quoted_for_the_shell_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    path = PurePosixPath("a b's")
    for system, command in (("nt", '"a b\'s"'), ("posix", "'a b'\"'\"'s'")):
        with monkeypatch.context() as patched:
            patched.setattr(files.os, "name", system)
            assert quoted(path) == command
