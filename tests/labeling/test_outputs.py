"""Consistency and format of all outputs."""

import base64
import csv
import errno
import io
import itertools
import json
import re
import shutil
import xml.etree.ElementTree as ET
import zipfile
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import unquote

import numpy as np
import pytest
from PIL import Image, ImageCms
from pyarrow import parquet
from rich.console import Console

from mien.app.inference.video import Sound, Video
from mien.app.labeling.columns import FACE_COLUMNS, FILE_COLUMNS
from mien.app.labeling.images import annotated_path, anonymized_path, video_path
from mien.app.labeling.journal import open_journal
from mien.app.labeling.options import DEFAULT_OUTPUTS
from mien.app.labeling.outputs import episodes, load_output, output_names, timeline, update_outputs, xlsx
from mien.app.labeling.records import STILL
from mien.app.labeling.summary import print_summary
from mien.data.contract import LABELS, LANDMARKS, Array, decode
from mien.data.readers.folders import Folders
from tests.labeling.conftest import ALL, Labeled, Mien
from tests.support import ROOT
from tests.support.albums import by_file, face_photo, label_folder, rows_of, write_photos, write_video
from tests.support.videos import ffmpeg

GUIDE = ROOT / "docs" / "labeling.md"


def test_the_table_has_the_documented_columns_and_one_row_per_face_or_file(finished: Labeled) -> None:
    rows = rows_of(finished.out)
    assert list(rows[0]) == [column.name for column in FACE_COLUMNS]
    assert {(row["file"], row["status"]) for row in rows if row["face"] == ""} == {
        ("none.png", "no_face"),
        ("<b>&amp;.jpg", "error"),
        ("notes.txt", "skipped"),
    }
    assert sum(row["face"] != "" for row in rows) == 7


def test_annotated_copies_keep_the_color_profile_of_rgb_images(mien: Mien, folder: Path) -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    gray = profile[:16] + b"GRAY" + profile[20:]
    profiles = {"a.jpg": profile, "b.png": profile, "c.webp": profile, "d.tif": profile, "e.jpg": gray, "f.jpg": b""}
    for name, own in profiles.items():
        Image.fromarray(face_photo()).save(folder / name, icc_profile=own)
    mien.label(folder, "--write", "csv,annotated,anonymized")
    for name, own in profiles.items():
        with Image.open(mien.out / annotated_path(name, STILL)) as drawn:
            assert drawn.info.get("icc_profile", b"") == (own if own == profile else b""), name
        with Image.open(mien.out / anonymized_path(name, STILL)) as anonymous:
            assert "icc_profile" not in anonymous.info, "a profile can name a person's device"


def lines_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "labels.jsonl").read_text(encoding="utf-8").splitlines()]


def test_json_lines_and_parquet_equal_the_csv(finished: Labeled) -> None:
    lines = lines_of(finished.out)
    assert parquet.read_table(finished.out / "labels.parquet").to_pylist() == lines
    texts = {type(None): lambda _: "", bool: lambda value: str(value).lower(), float: lambda value: value}
    for row, line in zip(rows_of(finished.out), lines, strict=True):
        read = {name: float(row[name]) if isinstance(value, float) else row[name] for name, value in line.items()}
        assert read == {name: texts.get(type(value), str)(value) for name, value in line.items()}


def sheet_of(workbook: Path, number: int) -> list[list[object]]:
    """Rows of a sheet of a workbook; None for empty cells."""
    main = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
    with zipfile.ZipFile(workbook) as archive:
        root = ET.fromstring(archive.read(f"xl/worksheets/sheet{number}.xml"))  # noqa: S314  # our own
    rows: list[list[object]] = []
    for row in root.iter(f"{main}row"):
        values: dict[int, object] = {}
        for cell in row:
            letters = (cell.get("r") or "").rstrip("0123456789")
            place = sum(26**power * (ord(letter) - 64) for power, letter in enumerate(reversed(letters))) - 1
            text, kind = "".join(cell.itertext()), cell.get("t")
            values[place] = text if kind == "inlineStr" else text == "1" if kind == "b" else float(text)
        rows.append([values.get(place) for place in range(len(rows[0] if rows else values))])
    return rows


def test_the_workbook_has_the_rows_of_both_tables_as_numbers_and_texts(
    finished: Labeled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = lines_of(finished.out)
    header, *faces = sheet_of(finished.out / "labels.xlsx", 1)
    assert [dict(zip(header, row, strict=True)) for row in faces] == [
        {name: value or None if isinstance(value, str) else value for name, value in line.items()} for line in lines
    ]
    files = sheet_of(finished.out / "labels.xlsx", 2)
    assert [row[0] for row in files[1:]] == [row["file"] for row in rows_of(finished.out, "files.csv")]
    monkeypatch.setattr(xlsx, "MAX_ROWS", 4)
    copy = shutil.copytree(finished.out, tmp_path / "out")
    update_outputs(copy, "xlsx")
    parts = [sheet_of(copy / "labels.xlsx", number) for number in (1, 2, 3, 4)]
    assert [row for part in parts for row in part[1:]] == faces, "more rows than fit on a sheet"


def test_a_workbook_that_does_not_fit_on_the_disk_is_an_error_of_the_disk(
    finished: Labeled, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    file = Mock(**{"write.side_effect": itertools.chain([full], itertools.repeat(0)), "tell.return_value": 0})
    monkeypatch.setattr(xlsx, "open_output", lambda *_: nullcontext(file))
    with closing(open_journal(finished.out)) as journal, pytest.raises(OSError, match="No space left"):
        xlsx.render(journal)


def test_csv_tables_have_the_separator_and_the_decimal_sign_of_a_country(
    mien: Mien, photos: Path, tmp_path: Path
) -> None:
    options = ("--write", "csv,files,jsonl", "--csv-separator", ";", "--csv-decimal", ",")
    mien.label(photos, *options)
    with (mien.out / "labels.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter=";"))
    lines = lines_of(mien.out)
    assert [float(row["confidence"].replace(",", ".")) for row in rows] == [line["confidence"] for line in lines]
    assert all("," in row["x"] and "." not in row["x"] for row in rows)
    assert (mien.out / "files.csv").read_text(encoding="utf-8").startswith("file;status;")
    again = mien.label(photos, "--boxes", mien.out / "labels.csv", "--write", "csv", out=tmp_path / "again")
    assert [float(row["x"]) for row in again] == [line["x"] for line in lines], "such a table is read back"
    assert mien.run(photos, "--csv-decimal", ",", out=tmp_path / "no").exit_code == 2


def test_the_files_table_has_one_row_per_file_and_aggregates_videos(finished: Labeled) -> None:
    rows = by_file(rows_of(finished.out, "files.csv"), "frames", "faces")
    assert set(rows) == {path.name for path in finished.photos.iterdir()}
    assert (rows["clip.avi"], rows["none.png"]) == (("2", "2"), ("", "0"))
    table = parquet.read_table(finished.out / "files.parquet")
    assert (table.column_names, table.num_rows) == ([column.name for column in FILE_COLUMNS], len(rows))


def test_an_annotated_video_has_every_frame_a_box_that_moves_and_its_sound(
    mien: Mien, folder: Path, tmp_path: Path
) -> None:
    def portrait_at(left: int) -> Array:
        image = np.full((240, 320, 3), 90, np.uint8)
        image[60:172, left : left + 112] = face_photo()
        return image

    silent = write_video(tmp_path / "silent.avi", images=[portrait_at(20 + 8 * number) for number in range(17)], rate=8)
    ffmpeg("-i", silent, "-f", "lavfi", "-t", "2", "-i", "sine", "-c:v", "copy", "-c:a", "mp2", folder / "clip.avi")
    rows = mien.label(folder, "--write", "csv,video")
    left = {int(row["frame"]): float(row["x"]) for row in rows}
    assert list(left) == [0, 4, 8, 12, 16], "two per second"
    video = mien.out / "video" / "clip.avi.mp4"
    with Video(str(folder / "clip.avi")) as source, Video(str(video)) as drawn:
        pairs = list(zip(source, drawn, strict=True))
    for before, after in pairs:
        assert after.time_s == pytest.approx(before.time_s, abs=0.03)
        changed = np.abs(after.pixels().astype(int) - before.pixels()).max(axis=2)[100:110] > 60
        first, share = before.number // 4 * 4, before.number % 4 / 4
        expected = left[first] + share * (left.get(first + 4, 0) - left[first])
        assert np.flatnonzero(changed.any(axis=0))[0] == pytest.approx(expected, abs=4), before.number
    with Sound(str(video)) as sound:
        blocks = [frame.to_ndarray() for frame, _ in sound.frames()]
    assert sum(block.shape[1] for block in blocks) / 44_100 == pytest.approx(2, abs=0.1)
    assert np.hstack(blocks).std() > 0.05
    written = video.stat().st_mtime_ns
    mien.label(folder)
    assert video.stat().st_mtime_ns == written, "nothing has changed"
    mien.label(folder, "--start", "0.5", "--end", "1.5")
    with Video(str(video)) as drawn:
        assert [frame.time_s for frame in drawn] == pytest.approx([number / 8 for number in range(8)], abs=0.03)
    (folder / "clip.avi").rename(folder / "other.avi")
    mien.label(folder)
    assert [path.name for path in (mien.out / "video").iterdir()] == ["other.avi.mp4"]


def test_copies_of_different_names_have_different_names() -> None:
    suffixes = ("", ".img", ".img.jpg", ".jpg", ".jpg.img.jpg", ".png", ".png.jpg", ".png.img.jpg", ".png.jpg.jpg")
    photos = [f"a{suffix}" for suffix in suffixes]
    videos = ["b", "b.mp4", "b.mov", "b.mov.mp4", "b.video", "b.video.mp4", "b.mov.video.mp4"]
    assert len({annotated_path(name, STILL) for name in photos}) == len(photos)
    assert len({video_path(name) for name in videos}) == len(videos)


def test_coco_boxes_keypoints_and_categories_point_at_each_other(finished: Labeled) -> None:
    coco = json.loads((finished.out / "coco.json").read_text(encoding="utf-8"))
    images = {image["id"]: image for image in coco["images"]}
    assert len(images) == 5 + 1 + 2
    assert coco["info"]["precision"] == "fp32"
    assert [category["name"] for category in coco["categories"]] == list(LABELS)
    assert len(coco["annotations"]) == 7
    for annotation in coco["annotations"]:
        assert annotation["image_id"] in images
        assert len(annotation["keypoints"]) == 15
        assert annotation["area"] == pytest.approx(annotation["bbox"][2] * annotation["bbox"][3], abs=0.1)


def test_label_studio_tasks_count_in_percent_and_have_their_configuration(finished: Labeled) -> None:
    tasks = json.loads((finished.out / "label_studio.json").read_text(encoding="utf-8"))
    assert len(tasks) == 6
    assert tasks[0]["predictions"][0]["model_version"] == "tiny.test fp32"
    row = next(row for row in rows_of(finished.out) if row["file"] == "0.jpg")
    (region,) = tasks[0]["predictions"][0]["result"]
    assert region["value"]["x"] * region["original_width"] / 100 == pytest.approx(float(row["x"]), abs=0.06)
    assert region["value"]["rectanglelabels"] == [row["label"]]
    config = ET.fromstring((finished.out / "label_studio.xml").read_text(encoding="utf-8"))  # noqa: S314  # our own
    assert config.tag == "View", "of Label Studio's configurations"
    assert [label.get("value") for label in config.iter("Label")] == list(LABELS)


def test_fiftyone_labels_count_in_fractions_and_name_existing_files(finished: Labeled) -> None:
    data = json.loads((finished.out / "fiftyone" / "data.json").read_text(encoding="utf-8"))
    labels = json.loads((finished.out / "fiftyone" / "labels.json").read_text(encoding="utf-8"))
    assert set(data) == set(labels["labels"])
    assert all(Path(path).is_file() for path in data.values())
    for objects in labels["labels"].values():
        for one in objects:
            assert one["label"] in labels["classes"]
            assert all(-0.5 <= value <= 1.5 for value in one["bounding_box"])


def test_class_folders_are_read_by_the_reader_of_training_data(finished: Labeled) -> None:
    samples = Folders(finished.out / "classes").samples("train")
    assert len(samples) == 7
    counts = {label: sum(sample.label == label for sample in samples) for label in LABELS}
    assert {label: count for label, count in counts.items() if count} == finished.outcome.labels


def test_annotated_copies_keep_the_image_and_show_the_box(finished: Labeled) -> None:
    row = next(row for row in rows_of(finished.out) if row["file"] == "1.jpg")
    with Image.open(finished.out / "annotated" / "1.jpg") as image:
        drawn = np.asarray(image.convert("RGB")).astype(int)
    photo = decode((finished.photos / "1.jpg").read_bytes()).astype(int)
    assert drawn.shape == photo.shape
    middle_y = round(float(row["y"]) + float(row["height"]) * 0.6)
    left = round(float(row["x"]))
    assert np.abs(drawn - photo)[middle_y, left - 1 : left + 2].max() > 40
    assert (finished.out / "annotated" / "none.png.jpg").is_file()
    assert (finished.out / "annotated" / "clip.avi" / "frame_00000001.jpg").is_file()


@pytest.fixture(scope="module")
def report(finished: Labeled) -> str:
    return (finished.out / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def cards(report: str) -> list[dict[str, Any]]:
    """The faces in the data of the report."""
    data = json.loads(report.partition('type="application/json">')[2].partition("</script>")[0])
    return list(data["faces"])


def test_the_report_escapes_markup_and_needs_no_network(
    finished: Labeled, report: str, cards: list[dict[str, Any]]
) -> None:
    assert "&lt;b&gt;&amp;amp;.jpg" in report
    assert not [text for text in ("<b>&amp;.jpg", "http://", "https://") if text in report]
    assert re.search(r">photos, labeled <time>20\d\d-\d\d-\d\d \d\d:\d\d.*</time>, model tiny.test in fp32", report)
    timelines = (finished.out / "timeline.html").read_text(encoding="utf-8")
    assert not [path for path in (finished.photos.parent, Path.home()) if str(path) in report + timelines]
    assert len(cards) == 7
    assert all(decode(base64.b64decode(card["thumb"])).shape == (96, 96, 3) for card in cards)
    assert all((finished.out / unquote(card["link"])).is_file() for card in cards)
    assert all("small" in card["reasons"] for card in cards)


def test_the_report_counts_like_the_terminal(finished: Labeled, report: str) -> None:
    console = Console(file=io.StringIO(), width=200)
    print_summary(finished.outcome, console)
    said = console.file.getvalue()
    for hint in (f"{finished.out}/report.html", f"mien review {finished.out}", "see why 1 file failed"):
        assert hint in said
    assert "--sample" not in said, "7 faces are too few"
    tiles = {name: count for count, name in re.findall(r"<div class=tile><b>([\d,]+)</b>([\w ]+)</div>", report)}
    for words in ("faces in", "images;", "without a face", "with an error", "file skipped"):
        (count,) = re.findall(rf"([\d,]+) {words}", said)
        assert tiles[words.removesuffix(" in").removesuffix(";")] == count, words
    assert "1 file skipped (1 not_an_image)" in said
    assert "images/s with 1 worker: read" in said
    assert "7 of 7 faces are small; such labels are right about 71% of the time" in " ".join(said.split())
    assert "<option value=small>small (7)" in report
    for label, count in finished.outcome.labels.items():
        assert f"#label={label}" in report
        assert re.search(rf"{label} +{count} ", said)
        assert f"<option value={label}>{label} ({count})" in report


def test_every_output_has_a_line_of_help_and_is_in_the_guide() -> None:
    guide = GUIDE.read_text(encoding="utf-8")
    assert set(DEFAULT_OUTPUTS) <= set(output_names())
    assert set(ALL) == set(output_names())
    for name in output_names():
        assert load_output(name).HELP
        assert f"`{name}`" in guide, f"docs/labeling.md does not name the output {name}"


def test_every_column_is_in_the_guide_with_its_unit() -> None:
    guide = GUIDE.read_text(encoding="utf-8")
    shared = {column.name for column in FACE_COLUMNS}
    of_files = [column for column in FILE_COLUMNS if column.name not in shared]
    for column in (*FACE_COLUMNS, *of_files, *timeline.COLUMNS, *episodes.COLUMNS, *episodes.TIME_COLUMNS):
        if column.name.startswith("p_") or column.name[:-2] in LANDMARKS:  # one line for all of them
            assert f"`{column.name}`" in guide
        else:
            line = f"| `{column.name}` | {column.type} | {column.unit} | {column.meaning} |"
            assert line in guide, f"docs/labeling.md lacks: {line}"


@pytest.mark.parametrize("safe", [False, True])
def test_formulas_are_marked_as_text_on_request(finished: Labeled, tmp_path: Path, safe: bool) -> None:
    names = ["=1+1.jpg", "+a.jpg", "-b.jpg", "@c.jpg", "d.jpg"]
    photos, out = write_photos(tmp_path / "photos", *names), tmp_path / "out"
    for _ in range(2):  # class folders are compared with their earlier manifest
        label_folder(photos, out, finished.settings, "csv", "classes", spreadsheet_safe=safe)
    mark = "'" if safe else ""
    files = {f"{mark}{name}" for name in names[:4]} | {"d.jpg"}
    for table in ("labels.csv", "classes/manifest.csv"):
        assert (out / table).read_bytes().startswith(b"\xef\xbb\xbf") == safe, "Excel expects it"
        assert {row["file"] for row in rows_of(out, table)} == files
    assert {sample.attributes["photo"] for sample in Folders(out / "classes").samples("train")} == files
