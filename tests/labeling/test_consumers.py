"""Compatibility of outputs with the programs that read them, including unusual file names.

Each test is skipped if its program is not installed.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mien.app.settings import Settings
from tests.support import encoded
from tests.support.albums import face_photo, label_folder, rows_of, write_photos

NAMES = (
    "plain.jpg", "carriage\rreturn.jpg", "new\nline.jpg", "both\r\n.jpg", 'quo"te, comma;.jpg', "=1+1.jpg",
    " space .jpg", "tab\t.jpg", "two.dots.jpg", "ünï 名前.jpg", "percent%20&?#.jpg", "<b>&amp;.jpg",
)  # fmt: skip
ALL = sorted([*NAMES, "two.dots.png"])


@pytest.fixture(scope="module")
def written(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("consumers")
    photos = write_photos(base / "photos", *NAMES)
    (photos / "two.dots.png").write_bytes(encoded(face_photo(), "PNG"))
    outputs = ("csv", "files", "jsonl", "parquet", "coco", "label-studio", "classes")
    label_folder(photos, base / "out", settings, *outputs)
    return base / "out"


def installed(program: str) -> Any:
    return pytest.importorskip(program, reason=f"{program} is not installed: its reader is not tested")


def duckdb_names(duckdb: Any, path: Path) -> list[str]:
    return [row[0] for row in duckdb.sql(f"SELECT file FROM '{path}'").fetchall()]  # noqa: S608  # our own


@pytest.mark.parametrize(
    ("library", "table", "read"),
    [
        ("csv", "labels.csv", lambda _csv, path: [row["file"] for row in rows_of(path.parent)]),
        *(("duckdb", f"labels.{suffix}", duckdb_names) for suffix in ("csv", "jsonl", "parquet")),
        ("polars", "labels.csv", lambda polars, path: polars.read_csv(path)["file"].to_list()),
        ("pandas", "labels.csv", lambda pandas, path: list(pandas.read_csv(path)["file"])),
    ],
)
def test_the_tables_are_read(written: Path, library: str, table: str, read: Callable[[Any, Path], list[str]]) -> None:
    assert sorted(read(installed(library), written / table)) == ALL


def test_pycocotools_reads_boxes_and_keypoints(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read = installed("pycocotools.coco").COCO(str(written / "coco.json"))
    assert {image["file_name"] for image in read.loadImgs(read.getImgIds())} == set(ALL)
    assert len(read.loadAnns(read.getAnnIds())) == len(ALL)
    assert read.loadCats(read.getCatIds())[0]["keypoints"][3:] == ["mouth_left", "mouth_right"]
