"""Safety of foreign files and completeness of rows when folders and settings change between runs."""

import os
import zipfile
from pathlib import Path

import pytest

from tests.labeling.conftest import Mien, tree
from tests.support.albums import by_file, write_photos

PICTURES = "csv,annotated,crops,classes"
NAMES = ["a.jpg", "b.jpg", "c.jpg"]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos", *NAMES)


def names_of(rows: list[dict[str, str]]) -> list[str]:
    return [row["file"] for row in rows]


# The output folder


def test_an_output_folder_with_files_of_others_is_rejected_and_kept(mien: Mien, photos: Path) -> None:
    path = mien.out / "annotated" / "mine.jpg"
    path.parent.mkdir(parents=True)
    path.write_text("the only copy")
    for out in (mien.out, photos):
        before = tree(out)
        refused = mien.run(photos, out=out)
        assert refused.exit_code == 1
        assert str(out) in refused.stderr.replace("\n", "")
        assert tree(out) == before
        assert not (out / ".mien").exists()


def test_own_files_among_the_outputs_are_kept(mien: Mien, photos: Path) -> None:
    out = mien.out
    mien.label(photos, "--write", "csv,annotated,crops")
    own = [out / folder / name for folder in ("annotated", "crops", "notes") for name in ("mine.jpg", "deep/too.txt")]
    for path in own:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("the only copy")
    (photos / "a.jpg").unlink()
    mien.label(photos)
    assert not (out / "annotated" / "a.jpg").exists()
    assert not (out / "crops" / "a.jpg.face0.png").exists()
    assert all(path.read_text() == "the only copy" for path in own)


@pytest.mark.parametrize(
    ("first", "then", "names"),
    [
        ("jsonl", PICTURES, ("annotated/b.jpg", "crops/b.jpg.face0.png", "classes/mine.jpg", "labels.csv")),
        (
            PICTURES,
            PICTURES,
            ("annotated/new.jpg", "crops/new.jpg.face0.png", "annotated/new.zip/in.jpg", "classes/train/fear/a.png"),
        ),
    ],
    ids=["a new output", "a new image"],
)
def test_a_file_in_the_place_of_an_output_or_a_new_image_is_reported_and_kept(
    mien: Mien, photos: Path, tmp_path: Path, first: str, then: str, names: tuple[str, ...]
) -> None:
    mien.label(photos, "--write", first)
    write_photos(photos, "new.jpg", first=4)
    with zipfile.ZipFile(photos / "new.zip", "w") as archive:
        archive.write(photos / "a.jpg", "in.jpg")
    for name in names:
        path = mien.out / name
        reported = path if first == then else mien.out / name.split("/", maxsplit=1)[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("the only copy")
        for _ in range(2):
            refused = mien.run(photos, "--write", then)
            assert refused.exit_code == 1
            assert str(reported) in refused.stderr.replace("\n", "")
            assert path.read_text() == "the only copy"
        path.unlink()
    for out in (mien.out, tmp_path / "fresh"):
        mien.label(photos, "--write", f"{first},{then}", out=out)
    assert tree(mien.out) == tree(tmp_path / "fresh")


# Inputs that change


def test_a_link_to_itself_is_one_row(mien: Mien, photos: Path) -> None:
    loops = {"self.jpg": "self.jpg", "pair.jpg": "riap.jpg", "riap.jpg": "pair.jpg"}
    for name, target in loops.items():
        (photos / name).symlink_to(photos / target)
    statuses = by_file(mien.label(photos, exit_code=3), "status")
    assert statuses == dict.fromkeys(NAMES, "ok") | dict.fromkeys(loops, "error")


def test_two_folders_in_turn_into_one_output_end_as_if_labeled_alone(mien: Mien, photos: Path, tmp_path: Path) -> None:
    other = write_photos(tmp_path / "other", "b.jpg", "z.jpg", first=5)
    for folder in (photos, other, photos):
        mien.label(folder, "--write", PICTURES)
    mien.label(photos, "--write", PICTURES, out=tmp_path / "alone")
    assert tree(mien.out) == tree(tmp_path / "alone")


@pytest.mark.parametrize(("others", "runs"), [([], [[], ["--new-run"]]), (["z.jpg"], [[]])])
def test_an_empty_source_is_rejected_and_nothing_changes(
    mien: Mien, photos: Path, tmp_path: Path, others: list[str], runs: list[list[str]]
) -> None:
    sources = [photos, *(write_photos(tmp_path / "other", name) for name in others)]
    labeled = len(mien.label(*sources))
    before = tree(mien.out)
    photos.rename(tmp_path / "unmounted")
    photos.mkdir()
    for options in runs:
        refused = mien.run(*sources, *options)
        assert refused.exit_code == 1
        assert f"No files found in {photos}" in refused.stderr.replace("\n", "")
        assert tree(mien.out) == before
    assert not list((mien.out / ".mien").glob("journal.*.sqlite3"))
    photos.rmdir()
    (tmp_path / "unmounted").rename(photos)
    assert f"{labeled} of {labeled} images already labeled" in mien.run(*sources).stderr


def test_rows_of_a_folder_that_became_unreadable_are_kept(
    mien: Mien, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_photos(photos, "deep/d.jpg")
    mien.label(photos)
    real = os.scandir

    def failing(path: str) -> object:
        if str(path).endswith("deep"):
            raise OSError(5, "Input/output error")
        return real(path)

    monkeypatch.setattr("mien.app.labeling.scan.os.scandir", failing)
    statuses = by_file(mien.label(photos, exit_code=3), "status")
    assert (statuses["deep/d.jpg"], statuses["deep"]) == ("ok", "error")
    assert (mien.out / "annotated" / "deep" / "d.jpg").exists()


def test_a_list_or_pattern_does_not_label_the_output(mien: Mien, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photos)
    for _ in range(2):
        given = b"".join(bytes(path) + b"\n" for path in Path().rglob("*") if path.is_file())
        assert names_of(mien.label("--files-from", "-", out=Path("out"), given=given)) == NAMES
    for pattern in ("*", "*", "**", "**/*.jpg"):
        assert names_of(mien.label(pattern, "--ignore", "out", out=Path("out2"))) == NAMES, pattern


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
        rows = mien.label(*inputs, "--write", PICTURES, given=given.encode())
    assert {row["status"] for row in rows} == {"ok"}
    assert len(set(names_of(rows))) == count, rows
    assert sum(path.is_file() for path in (mien.out / "annotated").rglob("*")) == count


# Outputs of earlier runs


def test_outputs_written_earlier_are_brought_up_to_date(mien: Mien, photos: Path) -> None:
    mien.label(photos, "--write", "csv,jsonl,annotated")
    write_photos(photos, "new.jpg", first=4)
    assert "jsonl, annotated" in mien.run(photos, "--write", "csv,crops").stderr
    assert len(list((mien.out / "crops").glob("*.png"))) == len(list((mien.out / "annotated").glob("*.jpg"))) == 4
    assert "new.jpg" in (mien.out / "labels.jsonl").read_text()
    assert (mien.out / "annotated" / "new.jpg").exists()
    (mien.out / "labels.jsonl").unlink()
    mien.label(photos, "--write", "csv")
    assert not (mien.out / "labels.jsonl").exists()


def test_crops_that_class_folders_needed_become_an_output_and_deleted_images_are_written_again(
    mien: Mien, photos: Path
) -> None:
    mien.label(photos, "--write", "classes,annotated")
    mien.label(photos, "--write", "crops")
    before = tree(mien.out)
    for folder in ("annotated", "crops"):
        next((mien.out / folder).iterdir()).unlink()
    mien.label(photos)
    assert tree(mien.out).items() >= before.items()


@pytest.mark.parametrize("options", [(), ("--hidden",), ("--write", "classes")])
def test_the_results_of_another_run_below_the_input_are_not_labeled(
    mien: Mien, photos: Path, options: tuple[str, ...]
) -> None:
    mien.label(photos, *options, out=photos / "results")
    (photos / "results" / "own.jpg").write_bytes((photos / "a.jpg").read_bytes())
    assert names_of(mien.label(photos, *options, "--write", "csv")) == [*NAMES, "results/own.jpg"]
