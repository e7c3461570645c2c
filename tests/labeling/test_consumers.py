"""Compatibility of outputs with the programs that read them, including unusual file names.

Each test is skipped if its program is not installed.
"""

import json
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
    outputs = ("csv", "files", "jsonl", "parquet", "coco", "label-studio", "fiftyone", "classes")
    label_folder(photos, base / "out", settings, *outputs)
    return base / "out"


def installed(program: str) -> Any:
    return pytest.importorskip(program, reason=f"{program} is not installed: its reader is not tested")


def duckdb_names(duckdb: Any, path: Path) -> list[str]:
    return [row[0] for row in duckdb.sql(f"SELECT file FROM '{path}'").fetchall()]  # noqa: S608  # our own


def arrow_names(csv: Any, path: Path) -> list[str]:
    return csv.read_csv(path, parse_options=csv.ParseOptions(newlines_in_values=True))["file"].to_pylist()


@pytest.mark.parametrize(
    ("library", "table", "read"),
    [
        ("csv", "labels.csv", lambda _csv, path: [row["file"] for row in rows_of(path.parent)]),
        *(("duckdb", f"labels.{suffix}", duckdb_names) for suffix in ("csv", "jsonl", "parquet")),
        ("polars", "labels.csv", lambda polars, path: polars.read_csv(path)["file"].to_list()),
        ("polars", "labels.jsonl", lambda polars, path: polars.read_ndjson(path)["file"].to_list()),
        ("polars", "labels.parquet", lambda polars, path: polars.read_parquet(path)["file"].to_list()),
        ("pandas", "labels.csv", lambda pandas, path: list(pandas.read_csv(path)["file"])),
        ("pandas", "labels.jsonl", lambda pandas, path: list(pandas.read_json(path, lines=True)["file"])),
        ("pyarrow.csv", "labels.csv", arrow_names),
    ],
)
def test_the_tables_are_read(written: Path, library: str, table: str, read: Callable[[Any, Path], list[str]]) -> None:
    assert sorted(read(installed(library), written / table)) == ALL


def test_pycocotools_reads_boxes_and_keypoints(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read = installed("pycocotools.coco").COCO(str(written / "coco.json"))
    assert {image["file_name"] for image in read.loadImgs(read.getImgIds())} == set(ALL)
    assert len(read.loadAnns(read.getAnnIds())) == len(ALL)
    assert read.loadCats(read.getCatIds())[0]["keypoints"][3:] == ["mouth_left", "mouth_right"]


def test_label_studio_converts_the_tasks(written: Path, tmp_path: Path) -> None:
    converter = installed("label_studio_sdk.converter")
    tasks = json.loads((written / "label_studio.json").read_text(encoding="utf-8"))
    for number, task in enumerate(tasks):  # a person accepts every prediction
        task["id"] = number
        task["annotations"] = [{"id": number, "result": task.pop("predictions")[0]["result"]}]
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    convert = converter.Converter(config=str(written / "label_studio.xml"), project_dir=str(tmp_path))
    convert.convert_to_json_min(str(tmp_path / "tasks.json"), str(tmp_path / "min"), is_dir=False)
    converted = json.loads((tmp_path / "min" / "result.json").read_text())
    assert sum(len(one["expression"]) for one in converted) == len(ALL)


def test_torchvision_reads_the_class_folders(written: Path) -> None:
    assert len(installed("torchvision.datasets").ImageFolder(str(written / "classes" / "train"))) == len(ALL)


def test_fiftyone_imports_the_detections(written: Path) -> None:
    importers = installed("fiftyone.utils.data.importers")
    importer = importers.FiftyOneImageDetectionDatasetImporter(
        dataset_dir=str(written / "fiftyone"), data_path="data.json"
    )
    with importer:
        found = list(importer)
    assert {Path(path).name for path, _, _ in found} == set(ALL)
    assert sum(len(detections.detections) for _, _, detections in found) == len(ALL)
