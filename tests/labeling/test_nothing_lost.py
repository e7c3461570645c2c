"""Safety of foreign files and completeness of rows when folders, disks and settings change between runs."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.labeling.conftest import Mien, tree
from tests.support import encoded, tiny_artifact
from tests.support.albums import by_file, face_photo, rows_of, write_photos, write_video

PICTURES = "csv,annotated,crops"
NAMES = ["a.jpg", "b.jpg", "c.jpg"]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos", *NAMES)


def names_of(rows: list[dict[str, str]]) -> list[str]:
    return [row["file"] for row in rows]


# Files of others


def test_an_output_folder_with_files_of_others_or_without_its_journal_is_rejected(
    mien: Mien, photos: Path, tmp_path: Path
) -> None:
    mien.label(photos, "--write", "csv")
    shutil.rmtree(mien.out / ".mien")
    for out in (photos, mien.out):
        mien.refuses(f"{out} contains files, but no journal", photos, out=out)
        assert not (out / ".mien").exists()


def test_a_file_in_the_place_of_an_output_or_of_a_picture_is_reported_and_kept(mien: Mien, photos: Path) -> None:
    outputs = {"annotated/b.jpg": "annotated", "crops/mine.jpg": "crops", "labels.csv": "labels.csv"}
    pictures = {name: name for name in ("annotated/new.jpg", "crops/new.jpg.face0.png")}
    pictures["annotated/new.mp4/frame_00000000.jpg"] = "annotated/new.mp4"
    for earlier, names in (("jsonl", outputs), (PICTURES, pictures)):
        mien.label(photos, "--write", earlier)
        if names is pictures:
            write_video(write_photos(photos, "new.jpg", first=4) / "new.mp4", frames=1)
        for name, reported in names.items():
            (mien.out / name).parent.mkdir(exist_ok=True)
            (mien.out / name).write_text("the only copy")
            mien.refuses(f"{mien.out / reported} exists", photos, "--write", PICTURES)
            (mien.out / name).unlink()
            if reported != name:
                (mien.out / reported).rmdir()
    assert len(mien.label(photos, "--write", PICTURES)) == 5


def test_pictures_follow_their_photos_and_videos_and_files_of_others_beside_them_are_kept(
    mien: Mien, photos: Path, tmp_path: Path
) -> None:
    two = np.hstack([face_photo(variant=0), face_photo(variant=1)])
    (photos / "a.jpg").write_bytes(encoded(two, "JPEG"))
    for name in ("IMG_1", "IMG_2"):
        (photos / name).write_bytes(encoded(face_photo(), "JPEG"))
    write_photos(photos, "left.jpg", "same.jpg")
    write_video(photos / "left.avi", frames=2)
    mien.label(photos, "--write", PICTURES)
    assert {path.name for path in (mien.out / "crops").iterdir()} >= {"a.jpg.face1.png", "same.jpg.face0.png"}
    own = [mien.out / folder / name for folder in ("annotated", "crops", "notes") for name in ("mine.jpg", "deep/too")]
    for path in own:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("the only copy")

    write_photos(photos, "a.jpg", "c.jpg", "new.jpg", first=4)
    (photos / "IMG_1").write_text("no longer an image")
    (photos / "IMG_2").write_bytes(b"")
    for name in ("b.jpg", "left.jpg", "left.avi"):
        (photos / name).unlink()
    (photos / "b.jpg").symlink_to(photos / "gone.jpg")
    for name in ("annotated/same.jpg", "crops/same.jpg.face0.png"):
        (mien.out / name).unlink()
    statuses = by_file(mien.label(photos, "--write", "csv", exit_code=3), "status", "reason", "face", "image_width")
    assert (statuses["IMG_1"][0], statuses["IMG_2"][0]) == ("skipped", "skipped")
    assert statuses["b.jpg"] == ("error", "not_found", "", "")
    assert all(path.read_text() == "the only copy" for path in own)
    mien.label(photos, "--write", PICTURES, out=tmp_path / "fresh", exit_code=3)
    others = {str(path.relative_to(mien.out)) for path in own}
    assert {name: value for name, value in tree(mien.out).items() if name not in others} == tree(tmp_path / "fresh")


# Inputs that change


def test_another_folder_is_rejected_and_is_added_or_replaces(mien: Mien, photos: Path, tmp_path: Path) -> None:
    other = write_photos(tmp_path / "other", "b.jpg", "z.jpg", first=5)
    mien.label(photos, "--write", PICTURES)
    mien.refuses(f"has the results of {photos}", other, "--write", PICTURES)
    both = ["a.jpg", "b.jpg", "c.jpg", "other/b.jpg", "other/z.jpg"]
    assert names_of(mien.label(photos, other, "--write", PICTURES)) == both
    assert "5 of 5 files already labeled" in mien.run(other, photos, "--write", PICTURES).stderr
    (other / "z.jpg").unlink()
    assert names_of(mien.label(photos, other, "--write", PICTURES)) == both[:4]
    assert names_of(mien.label(other, "--replace", "--write", PICTURES)) == ["b.jpg"]
    mien.label(other, "--write", PICTURES, out=tmp_path / "alone")
    assert tree(mien.out) == tree(tmp_path / "alone")


def test_files_that_left_are_counted_and_a_folder_that_became_empty_or_unreadable_loses_no_row(
    mien: Mien, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_photos(photos, "deep/d.jpg", "deep/er/e.jpg")
    mien.label(photos, "--write", PICTURES)
    real = os.scandir

    def failing(path: str) -> object:
        if str(path).endswith("deep"):
            raise OSError(5, "Input/output error")
        return real(path)

    with monkeypatch.context() as patched:
        patched.setattr("mien.app.labeling.inputs.os.scandir", failing)
        statuses = by_file(mien.label(photos, exit_code=3), "status")
    assert (statuses["deep/er/e.jpg"], statuses["deep"]) == ("ok", "error")
    assert (mien.out / "annotated" / "deep" / "d.jpg").exists()
    for name in ("a.jpg", "deep/d.jpg"):  # A folder below still has a file.
        (photos / name).unlink()
    assert "3 files of the earlier run are gone" in mien.run(photos, "--write", PICTURES).stdout
    (photos / "deep" / "er" / "e.jpg").unlink()
    mien.refuses(f"No files found in {photos / 'deep' / 'er'}", photos, "--write", PICTURES)
    assert names_of(mien.label(photos, "--replace", "--write", PICTURES)) == ["b.jpg", "c.jpg"]


def test_outputs_of_this_and_of_other_runs_among_the_inputs_are_not_labeled(
    mien: Mien, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos)
    for _ in range(2):
        given = b"".join(bytes(path) + b"\n" for path in Path().rglob("*") if path.is_file())
        assert names_of(mien.label("--files-from", "-", out=Path("out"), given=given)) == NAMES
    assert names_of(mien.label(*NAMES, "out", "--replace", out=Path("out"))) == NAMES, "as the shell expands *"
    (photos / "out" / "own.jpg").write_bytes((photos / "a.jpg").read_bytes())
    assert names_of(mien.label(photos, "--write", "csv")) == [*NAMES, "out/own.jpg"]


def test_errors_are_tried_again_by_a_rerun_of_a_finished_run_and_do_not_hold_up_an_unfinished_one(
    mien: Mien, photos: Path
) -> None:
    (photos / "a.jpg").write_bytes(b"")
    for labeled in range(1, 4):
        rows = mien.label(photos, "--write", "csv", "--limit", "1", exit_code=3)
        assert names_of(rows) == NAMES[:labeled]
    assert mien.run(photos, "--write", "csv", "--quiet").exit_code == 3
    assert json.loads((mien.out / "run.json").read_text())["labeled_now"] == 1


@pytest.mark.parametrize(
    ("files", "inputs", "count"),
    [
        (["q.jpg", "elsewhere/q.jpg"], ["--files-from", "-"], 3),
        (["x/q.jpg", "y/q.jpg", "d/q.jpg"], ["d", "x/q.jpg", "y/q.jpg"], 3),
        (["in/b.png.jpg/x", "in/b.png.jpg~/x", "in/c.jpg.face0.png/x", "in/c.jpg", "in/b.png"], ["in"], 5),
        (["in/\\xff.jpg", "in/\\\\xff.jpg", "in/\\x5cxff.jpg", "in/\udcff.jpg"], ["in"], 4),
    ],
    ids=["absolute and relative", "folder beside files", "folder named like a copy", "bytes and escapes"],
)
def test_every_file_has_its_own_row_and_copy(
    mien: Mien, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], inputs: list[str], count: int
) -> None:
    write_photos(tmp_path, *files)
    monkeypatch.chdir(tmp_path)
    given = f"q.jpg\n{tmp_path}/elsewhere/q.jpg\n../{tmp_path.name}/elsewhere/q.jpg\n"
    rows = mien.label(*inputs, "--write", PICTURES, given=given.encode())
    assert {row["status"] for row in rows} == {"ok"}
    assert len(set(names_of(rows))) == count, rows
    assert sum(path.is_file() for path in (mien.out / "annotated").rglob("*")) == count


# Disks, processes and models


def test_a_full_disk_stops_the_run_cleanly_and_it_resumes_when_there_is_space(
    mien: Mien, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (disk := tmp_path / "disk").mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"a small disk needs the right to mount: {mounted.stderr.decode().strip()}")
    request.addfinalizer(lambda: subprocess.run(["umount", disk], check=True))
    photos, out = write_photos(tmp_path / "many", count=80), disk / "out"
    command = (photos, "--write", PICTURES, "--workers", "1")
    mien.refuses("no space left", *command, out=out, exit_code=6)
    subprocess.run(["mount", "-o", "remount,size=1000k", disk], check=True)
    full = mien.run(*command, out=out)
    assert (full.exit_code, "no space left" in full.stderr) == (6, True), full.stderr
    assert not (out / "labels.csv").exists()
    assert not list((out / ".mien" / "part").iterdir())
    copies = list((out / "annotated").rglob("*.jpg"))
    assert 0 < len(copies) < 80
    assert all(path.read_bytes().endswith(b"\xff\xd9") for path in copies), "one is half written"
    subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
    assert "already labeled" in mien.run(*command, out=out).stderr
    mien.label(*command)
    assert tree(out) == tree(mien.out)


def test_a_second_process_is_refused_and_leaves_the_output_of_the_first(mien: Mien, photos: Path) -> None:
    os.mkfifo(names := photos.with_name("names.txt"))  # The first process scans until the pipe is closed.
    first = mien.start("label", "--files-from", names, "--quiet", "--out", mien.out)
    with names.open("w") as pipe:  # It waits for its reader, which has locked the folder.
        mien.refuses(f"in use by process {first.pid}", photos, exit_code=5)
        pipe.writelines(f"{path}\n" for path in photos.iterdir())
    assert first.wait() == 0
    assert names_of(rows_of(mien.out)) == [str(photos / name) for name in NAMES]


def test_another_model_or_setting_is_rejected_and_nothing_changes(mien: Mien, photos: Path, tmp_path: Path) -> None:
    mien.label(photos)
    model = tiny_artifact(tmp_path / "other.model", temperature=3.0)
    for options, change in (
        (("--model", model), "model tiny.test -> other.model"),
        (("--every", "5"), "sampling 2 per second -> every 5"),
        (("--annotated-px", "100"), "annotated px 1600 -> 100"),
        (("--whole",), "detector builtin -> none"),
    ):
        mien.refuses(change, photos, *options)
    assert "3 of 3 files already labeled" in mien.run(photos).stderr
