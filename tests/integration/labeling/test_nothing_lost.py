"""Safety of foreign files and completeness of rows when folders and settings change between runs."""

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.albums import face_photo, rows_of, write_photos
from tests.integration.labeling.conftest import Mien, tree
from tests.support import encoded

PICTURES = "csv,annotated,crops,classes"


def status_of(out: Path) -> dict[str, str]:
    return {row["file"]: row["status"] for row in rows_of(out)}


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
    assert mien("label", photos, "--out", out, "--write", "csv,annotated,crops", "--quiet").exit_code == 0
    own = [out / folder / name for folder in ("annotated", "crops", "notes") for name in ("mine.jpg", "deep/too.txt")]
    for path in own:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("the only copy")
    (photos / "a.jpg").unlink()
    assert mien("label", photos, "--out", out, "--quiet").exit_code == 0
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
    assert mien("label", photos, "--out", out, "--write", first, "--quiet").exit_code == 0
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
        assert mien("label", photos, "--out", folder, "--write", f"{first},{then}", "--quiet").exit_code == 0
    assert tree(out) == tree(tmp_path / "fresh")


def test_an_export_replaces_an_earlier_export_only(mien: Mien, photos: Path, tmp_path: Path) -> None:
    out, faces = tmp_path / "out", tmp_path / "faces"
    mien("label", photos, "--out", out, "--write", PICTURES, "--quiet")
    before = tree(out)
    assert mien("review", out, "--export", out / "classes").exit_code == 1
    assert tree(out) == before
    for _ in range(2):
        assert mien("review", out, "--export", faces, "--all").exit_code == 0
    (faces / "mine.txt").write_text("the only copy")
    refused = mien("review", out, "--export", faces, "--all")
    assert refused.exit_code == 1
    assert "mine.txt" in refused.stderr
    other = tmp_path / "other"
    other.mkdir()
    (other / "manifest.csv").write_text("my,own\n")
    assert mien("review", out, "--export", other, "--all").exit_code == 1
    assert (other / "manifest.csv").read_text() == "my,own\n"


# Inputs that change


def test_a_link_to_itself_is_one_row(mien: Mien, photos: Path, tmp_path: Path) -> None:
    (photos / "self.jpg").symlink_to(photos / "self.jpg")
    (photos / "pair.jpg").symlink_to(photos / "riap.jpg")
    (photos / "riap.jpg").symlink_to(photos / "pair.jpg")
    assert mien("label", photos, "--out", tmp_path / "out", "--quiet").exit_code == 3
    found = status_of(tmp_path / "out")
    assert {name: found[name] for name in ("a.jpg", "b.jpg", "c.jpg")} == dict.fromkeys(
        ("a.jpg", "b.jpg", "c.jpg"), "ok"
    )
    assert {name for name, status in found.items() if status == "error"} == {"self.jpg", "pair.jpg", "riap.jpg"}


def test_two_folders_in_turn_into_one_output_end_as_if_labeled_alone(mien: Mien, photos: Path, tmp_path: Path) -> None:
    other, out = write_photos(tmp_path / "other", "b.jpg", "z.jpg", first=5), tmp_path / "out"
    for folder in (photos, other, photos):
        assert mien("label", folder, "--out", out, "--write", PICTURES, "--quiet").exit_code == 0
    mien("label", photos, "--out", tmp_path / "alone", "--write", PICTURES, "--quiet")
    assert tree(out) == tree(tmp_path / "alone")


def test_a_mistyped_input_leaves_no_output_folder(mien: Mien, photos: Path, tmp_path: Path) -> None:
    assert mien("label", photos, tmp_path / "mistyped", "--out", tmp_path / "out").exit_code == 1
    assert not (tmp_path / "out").exists()


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
    out = tmp_path / "out"
    mien("label", photos, "--out", out, "--quiet")
    real = os.scandir

    def failing(path: str) -> object:
        if str(path).endswith("deep"):
            raise OSError(5, "Input/output error")
        return real(path)

    monkeypatch.setattr("mien.app.labeling.scan.os.scandir", failing)
    assert mien("label", photos, "--out", out, "--quiet").exit_code == 3
    assert (status_of(out)["deep/d.jpg"], status_of(out)["deep"]) == ("ok", "error")
    assert (out / "annotated" / "deep" / "d.jpg").exists()


def list_of(folder: Path) -> bytes:
    return b"".join(bytes(path) + b"\n" for path in sorted(folder.rglob("*")) if path.is_file())


def test_a_list_or_pattern_does_not_label_the_output(
    mien: Mien, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos)
    for _ in range(2):
        done = mien("label", "--files-from", "-", "--out", "out", "--quiet", given=list_of(Path()))
        assert done.exit_code == 0
    assert sorted(status_of(Path("out"))) == ["a.jpg", "b.jpg", "c.jpg"]
    for pattern in ("*", "**", "**/*.jpg"):
        for _ in range(2):
            assert mien("label", pattern, "--out", "out2", "--ignore", "out", "--quiet").exit_code == 0
        assert sorted(status_of(Path("out2"))) == ["a.jpg", "b.jpg", "c.jpg"], pattern


# Names


def absolute_and_relative(base: Path) -> list[str | Path]:
    write_photos(base, "q.jpg")
    write_photos(base / "elsewhere", "q.jpg", first=1)
    (base / "list.txt").write_text(f"q.jpg\n{base / 'elsewhere' / 'q.jpg'}\n../{base.name}/elsewhere/q.jpg\n")
    return ["--files-from", "list.txt"]


def a_folder_beside_files(base: Path) -> list[str | Path]:
    write_photos(base, "x/q.jpg", "y/q.jpg", "d/q.jpg")
    return ["d", "x/q.jpg", "y/q.jpg"]


def a_pattern_of_files_and_folders(base: Path) -> list[str | Path]:
    write_photos(base, "q.jpg", "d/q.jpg", "d/e/q.jpg")
    return ["*", "--ignore", "out"]


def a_folder_named_like_a_copy(base: Path) -> list[str | Path]:
    write_photos(base / "in", "b.png.jpg/x.jpg", "b.png.jpg~/x.jpg", "c.jpg.face0.png/x.jpg", "c.jpg")
    (base / "in" / "b.png").write_bytes(encoded(face_photo(), "PNG"))
    return ["in"]


def bytes_and_a_literal_escape(base: Path) -> list[str | Path]:
    write_photos(base / "in", "\\xff.jpg", "\\\\xff.jpg", "\\x5cxff.jpg")
    with open(os.fsencode(base) + b"/in/\xff.jpg", "wb") as file:  # noqa: PTH123  # not UTF-8, so not a Path
        file.write(encoded(face_photo(variant=3), "JPEG"))
    return ["in"]


@pytest.mark.parametrize(
    ("made", "count"),
    [
        (absolute_and_relative, 3),
        (a_folder_beside_files, 3),
        (a_pattern_of_files_and_folders, 3),
        (a_folder_named_like_a_copy, 5),
        (bytes_and_a_literal_escape, 4),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_every_file_has_its_own_row_and_copy(
    mien: Mien, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Callable[[Path], list[str | Path]], count: int
) -> None:
    arguments = made(tmp_path)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        done = mien("label", *arguments, "--out", "out", "--write", PICTURES, "--quiet")
        assert done.exit_code == 0, done.stderr
    rows = {row["file"] for row in rows_of(Path("out"))}
    assert len(rows) == count, rows
    assert sum(path.is_file() for path in Path("out/annotated").rglob("*")) == count


# Outputs of earlier runs


def test_outputs_written_earlier_are_brought_up_to_date(mien: Mien, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    mien("label", photos, "--out", out, "--write", "csv,jsonl,annotated", "--quiet")
    write_photos(photos, "new.jpg", first=4)
    again = mien("label", photos, "--out", out, "--write", "csv,crops")
    assert "jsonl, annotated" in again.stderr
    assert len(list((out / "crops").glob("*.png"))) == len(list((out / "annotated").glob("*.jpg"))) == 4
    assert "new.jpg" in (out / "labels.jsonl").read_text()
    assert (out / "annotated" / "new.jpg").exists()
    (out / "labels.jsonl").unlink()
    assert mien("label", photos, "--out", out, "--write", "csv", "--quiet").exit_code == 0
    assert not (out / "labels.jsonl").exists()


def test_crops_that_class_folders_needed_become_an_output(mien: Mien, photos: Path, tmp_path: Path) -> None:
    assert mien("label", photos, "--out", tmp_path / "out", "--write", "classes").exit_code == 0
    assert mien("label", photos, "--out", tmp_path / "out", "--write", "crops").exit_code == 0


def test_deleted_copies_and_crops_are_written_again(mien: Mien, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ("label", photos, "--out", out, "--write", "csv,annotated,crops")
    assert mien(*command).exit_code == 0
    before = {path: path.read_bytes() for path in [*out.glob("annotated/*"), *out.glob("crops/*")]}
    (copy, crop) = next(out.glob("annotated/*")), next(out.glob("crops/*"))
    copy.unlink()
    crop.unlink()
    assert mien(*command).exit_code == 0
    assert {path: path.read_bytes() for path in [*out.glob("annotated/*"), *out.glob("crops/*")]} == before


@pytest.mark.parametrize("options", [(), ("--hidden",), ("--write", "classes")])
def test_the_results_of_another_run_below_the_input_are_not_labeled(
    mien: Mien, photos: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    assert mien("label", photos, "--out", photos / "results", *options).exit_code == 0
    (photos / "results" / "own.jpg").write_bytes((photos / "a.jpg").read_bytes())
    assert mien("label", photos, "--out", tmp_path / "out", *options, "--write", "csv").exit_code == 0
    named = {row["file"] for row in rows_of(tmp_path / "out")}
    assert named == {path.name for path in photos.glob("*.jpg")} | {"results/own.jpg"}
