"""Compatibility of outputs with the programs that read them, including unusual file names.

Each test is skipped if its program is not installed.
"""

import json
from pathlib import Path

import pytest

from mien.app.settings import Settings
from tests.albums import face_photo, label_folder, rows_of, write_photos
from tests.support import encoded

NAMES = (
    "plain.jpg",
    "carriage\rreturn.jpg",
    "new\nline.jpg",
    "both\r\n.jpg",
    'quo"te, comma;.jpg',
    "=1+1.jpg",
    " space .jpg",
    "tab\t.jpg",
    "two.dots.jpg",
    "ünï 名前.jpg",
    "percent%20&?#.jpg",
    "<b>&amp;.jpg",
)


@pytest.fixture(scope="module")
def written(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("consumers")
    photos = write_photos(base / "photos", *NAMES)
    (photos / "two.dots.png").write_bytes(encoded(face_photo(), "PNG"))
    outputs = ("csv", "files", "jsonl", "parquet", "coco", "label-studio", "fiftyone", "classes")
    settings = Settings(model=artifact, detector="builtin", device="cpu")
    label_folder(photos, base / "out", settings, *outputs)
    return base / "out"


def names_of(written: Path) -> list[str]:
    return [row["file"] for row in rows_of(written)]


def test_every_name_is_in_the_table(written: Path) -> None:
    assert set(names_of(written)) == {*NAMES, "two.dots.png"}


@pytest.mark.parametrize("name", ["labels.csv", "labels.jsonl", "labels.parquet"])
def test_duckdb_reads_the_tables(written: Path, name: str) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed: its reader is not tested")
    names = [row[0] for row in duckdb.sql(f"SELECT file FROM '{written / name}'").fetchall()]  # noqa: S608  # our own
    assert sorted(names) == sorted(names_of(written))


def test_polars_reads_the_tables(written: Path) -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed: its reader is not tested")
    for frame in (
        polars.read_csv(written / "labels.csv"),
        polars.read_ndjson(written / "labels.jsonl"),
        polars.read_parquet(written / "labels.parquet"),
    ):
        assert frame["file"].to_list() == names_of(written)
        assert abs(frame["p_anger"].sum() - polars.read_parquet(written / "labels.parquet")["p_anger"].sum()) < 1e-4


def test_pandas_reads_the_tables(written: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: its reader is not tested")
    frame = pandas.read_csv(written / "labels.csv", lineterminator="\n")
    assert sorted(frame["file"]) == sorted(names_of(written))
    assert sorted(pandas.read_csv(written / "labels.csv")["file"]) == sorted(names_of(written))
    assert list(pandas.read_json(written / "labels.jsonl", lines=True)["file"]) == names_of(written)


def test_pyarrow_reads_the_table(written: Path) -> None:
    arrow = pytest.importorskip("pyarrow.csv", reason="pyarrow is not installed: its reader is not tested")
    options = arrow.ParseOptions(newlines_in_values=True)
    assert arrow.read_csv(written / "labels.csv", parse_options=options)["file"].to_pylist() == names_of(written)


def test_pycocotools_reads_boxes_and_keypoints(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    coco = pytest.importorskip("pycocotools.coco", reason="pycocotools is not installed: its reader is not tested")
    read = coco.COCO(str(written / "coco.json"))
    assert {image["file_name"] for image in read.loadImgs(read.getImgIds())} == set(names_of(written))
    assert len(read.loadAnns(read.getAnnIds())) == len(names_of(written))
    assert read.loadCats(read.getCatIds())[0]["keypoints"][3:] == ["mouth_left", "mouth_right"]


def test_label_studio_converts_the_tasks(written: Path, tmp_path: Path) -> None:
    reason = "label-studio-sdk is not installed: its converter is not tested"
    converter = pytest.importorskip("label_studio_sdk.converter", reason=reason)
    tasks = json.loads((written / "label_studio.json").read_text(encoding="utf-8"))
    for number, task in enumerate(tasks):  # a person accepts every prediction
        task["id"] = number
        task["annotations"] = [{"id": number, "result": task.pop("predictions")[0]["result"]}]
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    convert = converter.Converter(config=str(written / "label_studio.xml"), project_dir=str(tmp_path))
    convert.convert_to_json_min(str(tmp_path / "tasks.json"), str(tmp_path / "min"), is_dir=False)
    converted = json.loads((tmp_path / "min" / "result.json").read_text())
    assert sum(len(one["expression"]) for one in converted) == len(names_of(written))


def test_torchvision_reads_the_class_folders(written: Path) -> None:
    datasets = pytest.importorskip("torchvision.datasets", reason="torchvision is not installed: it is not tested")
    assert len(datasets.ImageFolder(str(written / "classes" / "train"))) == len(names_of(written))


def test_fiftyone_imports_the_detections(written: Path) -> None:
    importers = pytest.importorskip("fiftyone.utils.data.importers", reason="fiftyone is not installed: not tested")
    importer = importers.FiftyOneImageDetectionDatasetImporter(
        dataset_dir=str(written / "fiftyone"), data_path="data.json"
    )
    with importer:
        found = list(importer)
    assert {Path(path).name for path, _, _ in found} == set(names_of(written))
    assert sum(len(detections.detections) for _, _, detections in found) == len(names_of(written))
