"""Safety of foreign files and completeness of rows when folders and settings change between runs."""

import os
import zipfile
from pathlib import Path

import pytest

from tests.labeling.conftest import Mien, tree
from tests.support.albums import write_photos

PICTURES = "csv,annotated,crops,classes"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos", "a.jpg", "b.jpg", "c.jpg")


# The output folder


def test_an_output_folder_with_files_of_others_is_rejected_and_kept(mien: Mien, photos: Path, tmp_path: Path) -> None:
    path = tmp_path / "out" / "annotated" / "mine.jpg"
    path.parent.mkdir(parents=True)
    path.write_text("the only copy")
    for out in (tmp_path / "out", photos):
        before = tree(out)
        refused = mien("label", photos, "--out", out)
        assert refused.exit_code == 1
        assert str(out) in refused.stderr.replace("\n", "")
        assert tree(out) == before
        assert not (out / ".mien").exists()


def test_own_files_among_the_outputs_are_kept(mien: Mien, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    mien.label(photos, "--write", "csv,annotated,crops", out=out)
    own = [out / folder / name for folder in ("annotated", "crops", "notes") for name in ("mine.jpg", "deep/too.txt")]
    for path in own:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("the only copy")
    (photos / "a.jpg").unlink()
    mien.label(photos, out=out)
    assert not (out / "annotated" / "a.jpg").exists()
    assert not (out / "crops" / "a.jpg.face0.png").exists()
    assert all(path.read_text() == "the only copy" for path in own)


@pytest.mark.parametrize(
    ("first", "then", "name"),
    [
        ("jsonl", "annotated", "annotated/b.jpg"),
        ("jsonl", "crops", "crops/b.jpg.face0.png"),
        ("jsonl", "classes", "classes/mine.jpg"),
        ("jsonl", "csv", "labels.csv"),
        ("jsonl", "fiftyone", "fiftyone/data.json"),
        ("jsonl", "report", "report.html"),
        (PICTURES, PICTURES, "annotated/new.jpg"),
        (PICTURES, PICTURES, "crops/new.jpg.face0.png"),
        (PICTURES, PICTURES, "annotated/new.zip/in.jpg"),
        (PICTURES, PICTURES, "classes/train/fear/a.png"),
    ],
)
def test_a_file_in_the_place_of_an_output_or_a_new_image_is_reported_and_kept(
    mien: Mien, photos: Path, tmp_path: Path, first: str, then: str, name: str
) -> None:
    out = tmp_path / "out"
    reported = out / (name if first == then else name.split("/", maxsplit=1)[0])
    mien.label(photos, "--write", first, out=out)
    (out / name).parent.mkdir(parents=True, exist_ok=True)
    (out / name).write_text("the only copy")
    write_photos(photos, "new.jpg", first=4)
    with zipfile.ZipFile(photos / "new.zip", "w") as archive:
        archive.write(photos / "a.jpg", "in.jpg")
    for _ in range(2):
        refused = mien("label", photos, "--out", out, "--write", then)
        assert refused.exit_code == 1
        assert str(reported) in refused.stderr.replace("\n", "")
        assert (out / name).read_text() == "the only copy"
    (out / name).unlink()
    for folder in (out, tmp_path / "fresh"):
        mien.label(photos, "--write", f"{first},{then}", out=folder)
    assert tree(out) == tree(tmp_path / "fresh")


# Inputs that change


def test_a_link_to_itself_is_one_row(mien: Mien, photos: Path, tmp_path: Path) -> None:
    loops = {"self.jpg": "self.jpg", "pair.jpg": "riap.jpg", "riap.jpg": "pair.jpg"}
    for name, target in loops.items():
        (photos / name).symlink_to(photos / target)
    rows = mien.label(photos, out=tmp_path / "out", exit_code=3)
    photographs = dict.fromkeys(("a.jpg", "b.jpg", "c.jpg"), "ok")
    assert {row["file"]: row["status"] for row in rows} == photographs | dict.fromkeys(loops, "error")


def test_two_folders_in_turn_into_one_output_end_as_if_labeled_alone(mien: Mien, photos: Path, tmp_path: Path) -> None:
    other, out = write_photos(tmp_path / "other", "b.jpg", "z.jpg", first=5), tmp_path / "out"
    for folder in (photos, other, photos):
        mien.label(folder, "--write", PICTURES, out=out)
    mien.label(photos, "--write", PICTURES, out=tmp_path / "alone")
    assert tree(out) == tree(tmp_path / "alone")


@pytest.mark.parametrize(("others", "options"), [((), ()), (("z.jpg",), ()), ((), ("--new-run",))])
def test_an_empty_source_is_rejected_and_nothing_changes(
    mien: Mien, photos: Path, tmp_path: Path, others: tuple[str, ...], options: tuple[str, ...]
) -> None:
    out, count = tmp_path / "out", 3 + len(others)
    command = ("label", photos, *([write_photos(tmp_path / "other", *others)] if others else []), "--out", out)
    mien(*command, "--quiet")
    before = tree(out)
    photos.rename(tmp_path / "unmounted")
    photos.mkdir()
    refused = mien(*command, *options)
    assert refused.exit_code == 1
    assert f"No files found in {photos}" in refused.stderr.replace("\n", "")
    assert tree(out) == before
    assert not list((out / ".mien").glob("journal.*.sqlite3"))
    photos.rmdir()
    (tmp_path / "unmounted").rename(photos)
    assert f"{count} of {count} images already labeled" in mien(*command).stderr


def test_rows_of_a_folder_that_became_unreadable_are_kept(
    mien: Mien, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_photos(photos, "deep/d.jpg")
    mien.label(photos, out=tmp_path / "out")
    real = os.scandir

    def failing(path: str) -> object:
        if str(path).endswith("deep"):
            raise OSError(5, "Input/output error")
        return real(path)

    monkeypatch.setattr("mien.app.labeling.scan.os.scandir", failing)
    statuses = {row["file"]: row["status"] for row in mien.label(photos, out=tmp_path / "out", exit_code=3)}
    assert (statuses["deep/d.jpg"], statuses["deep"]) == ("ok", "error")
    assert (tmp_path / "out" / "annotated" / "deep" / "d.jpg").exists()


def test_a_list_or_pattern_does_not_label_the_output(
    mien: Mien, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos)
    for _ in range(2):
        given = b"".join(bytes(path) + b"\n" for path in Path().rglob("*") if path.is_file())
        rows = mien.label("--files-from", "-", out=Path("out"), given=given)
        assert [row["file"] for row in rows] == ["a.jpg", "b.jpg", "c.jpg"]
    for pattern in ("*", "**", "**/*.jpg") * 2:
        rows = mien.label(pattern, "--ignore", "out", out=Path("out2"))
        assert [row["file"] for row in rows] == ["a.jpg", "b.jpg", "c.jpg"], pattern


# Names


@pytest.mark.parametrize(
    ("files", "inputs", "count"),
    [
        (["q.jpg", "elsewhere/q.jpg"], ["--files-from", "-"], 3),
        (["x/q.jpg", "y/q.jpg", "d/q.jpg"], ["d", "x/q.jpg", "y/q.jpg"], 3),
        (["q.jpg", "d/q.jpg", "d/e/q.jpg"], ["*", "--ignore", "out"], 3),
        (["in/b.png.jpg/x", "in/b.png.jpg~/x", "in/c.jpg.face0.png/x", "in/c.jpg", "in/b.png"], ["in"], 5),
        (["in/\\xff.jpg", "in/\\\\xff.jpg", "in/\\x5cxff.jpg", "in/\udcff.jpg"], ["in"], 4),
    ],
    ids=["absolute and relative", "folder beside files", "pattern", "folder named like a copy", "bytes and escapes"],
)
def test_every_file_has_its_own_row_and_copy(
    mien: Mien, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], inputs: list[str], count: int
) -> None:
    write_photos(tmp_path, *files)
    monkeypatch.chdir(tmp_path)
    given = f"q.jpg\n{tmp_path}/elsewhere/q.jpg\n../{tmp_path.name}/elsewhere/q.jpg\n"
    for _ in range(2):
        rows = mien.label(*inputs, "--write", PICTURES, out=Path("out"), given=given.encode())
    assert {row["status"] for row in rows} == {"ok"}
    assert len({row["file"] for row in rows}) == count, rows
    assert sum(path.is_file() for path in Path("out/annotated").rglob("*")) == count


# Outputs of earlier runs


def test_outputs_written_earlier_are_brought_up_to_date(mien: Mien, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    mien.label(photos, "--write", "csv,jsonl,annotated", out=out)
    write_photos(photos, "new.jpg", first=4)
    again = mien("label", photos, "--out", out, "--write", "csv,crops")
    assert "jsonl, annotated" in again.stderr
    assert len(list((out / "crops").glob("*.png"))) == len(list((out / "annotated").glob("*.jpg"))) == 4
    assert "new.jpg" in (out / "labels.jsonl").read_text()
    assert (out / "annotated" / "new.jpg").exists()
    (out / "labels.jsonl").unlink()
    mien.label(photos, "--write", "csv", out=out)
    assert not (out / "labels.jsonl").exists()


def test_crops_that_class_folders_needed_become_an_output_and_deleted_images_are_written_again(
    mien: Mien, photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    mien.label(photos, "--write", "classes,annotated", out=out)
    mien.label(photos, "--write", "crops", out=out)
    before = tree(out)
    for folder in ("annotated", "crops"):
        next((out / folder).iterdir()).unlink()
    mien.label(photos, out=out)
    assert tree(out).items() >= before.items()


@pytest.mark.parametrize("options", [(), ("--hidden",), ("--write", "classes")])
def test_the_results_of_another_run_below_the_input_are_not_labeled(
    mien: Mien, photos: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    mien.label(photos, *options, out=photos / "results")
    (photos / "results" / "own.jpg").write_bytes((photos / "a.jpg").read_bytes())
    rows = mien.label(photos, *options, "--write", "csv", out=tmp_path / "out")
    assert [row["file"] for row in rows] == ["a.jpg", "b.jpg", "c.jpg", "results/own.jpg"]
