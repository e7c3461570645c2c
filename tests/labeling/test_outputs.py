"""Consistency and format of all outputs."""

import base64
import io
import json
import re
import xml.etree.ElementTree as ET
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import cv2
import numpy as np
import pytest
from PIL import Image, ImageCms
from rich.console import Console
from xlsxwriter.utility import xl_rowcol_to_cell

from mien.app.cli.label import print_summary
from mien.app.labeling.report import render_strips
from mien.app.labeling.run import Progress
from mien.app.labeling.tables import COLUMNS
from mien.app.settings import load_settings
from mien.app.video.episodes import Moment
from mien.app.video.reader import Video
from mien.data.contract import LABELS, LANDMARKS, decode
from tests.labeling.conftest import Labeled, Mien, page_data
from tests.support import labeled_face, sample_photo
from tests.support.albums import by_file, face_photo, label_folder, rows_of, write_video


def test_the_table_has_its_columns_and_a_row_per_face_or_image_without_one(finished: Labeled) -> None:
    rows = rows_of(finished.out)
    assert b"\r" not in (finished.out / "labels.csv").read_bytes()
    assert list(rows[0]) == list(COLUMNS)
    statuses = {"none.png": "no_face", "<b>&amp;.jpg": "error", "=1+1": "skipped"}
    assert by_file([row for row in rows if row["face"] == ""], "status") == statuses
    assert sum(row["face"] != "" for row in rows) == 7
    assert {row["file"] for row in rows} == {path.name for path in finished.photos.iterdir()}
    run = json.loads((finished.out / "run.json").read_text())
    assert (run["settings"]["model"], run["options"]["annotated_px"], run["inputs"]) == (
        *("tiny.test", 1600),
        [str(finished.photos)],
    )
    assert {"mien", "python", "onnxruntime", "opencv", "numpy", "pillow"} <= set(run["versions"])
    assert run["images"] == {"ok": 7, "no_face": 1, "error": 1, "skipped": 1}
    assert (run["labeled_now"], run["remaining"], run["left"]) == (10, 0, 0)


def test_annotated_copies_keep_the_color_profile_of_the_photo(mien: Mien, folder: Path) -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    Image.fromarray(face_photo()).save(folder / "a.jpg", icc_profile=profile)
    mien.label(folder, "--write", "annotated")
    with Image.open(mien.out / "annotated" / "a.jpg") as image:
        assert image.info["icc_profile"] == profile


def test_json_lines_and_the_workbook_have_the_rows_of_the_csv_as_numbers_and_texts(finished: Labeled) -> None:
    texts = {type(None): lambda _: "", bool: lambda value: str(value).lower(), float: lambda value: value}
    lines = [json.loads(line) for line in (finished.out / "labels.jsonl").read_text(encoding="utf-8").splitlines()]
    for row, line in zip(rows_of(finished.out), lines, strict=True):
        read = {name: float(row[name]) if isinstance(value, float) else row[name] for name, value in line.items()}
        assert read == {name: texts.get(type(value), str)(value) for name, value in line.items()}
    with zipfile.ZipFile(finished.out / "labels.xlsx") as archive:
        names = re.findall('sheet name="(.*?)"', archive.read("xl/workbook.xml").decode())
        sheets = [ET.fromstring(archive.read(f"xl/worksheets/sheet{1 + index}.xml")) for index in range(len(names))]  # noqa: S314
    assert names == ["faces", "faces 2", "faces 3", "faces 4"]
    types = {"inlineStr": str, "b": lambda text: text == "1", None: float}
    for index, (sheet, count) in enumerate(zip(sheets, (3, 3, 3, 1), strict=True)):
        assert [pane.get("topLeftCell") for pane in sheet.findall(".//{*}pane")] == ["B2"]
        table = [dict(zip(COLUMNS, COLUMNS, strict=True)), *lines[3 * index :][:count]]
        for number, (row, line) in enumerate(zip(sheet.findall(".//{*}row"), table, strict=True)):
            assert {cell.get("r"): types[cell.get("t")]("".join(cell.itertext())) for cell in row} == {
                xl_rowcol_to_cell(number, column): value
                for column, value in enumerate(line.values())
                if value not in (None, "")
            }


def test_an_annotated_video_has_every_frame_and_a_box_that_moves(mien: Mien, folder: Path) -> None:
    images = np.full((17, 240, 320, 3), 90, np.uint8)
    for number, image in enumerate(images):
        image[60:172, 20 + 8 * number : 132 + 8 * number] = face_photo()
    write_video(folder / "clip.avi", images=images, rate=8)
    left = {int(row["frame"]): float(row["x"]) for row in mien.label(folder, "--write", "csv,video")}
    assert list(left) == [0, 4, 8, 12, 16], "two per second"
    video = mien.out / "video" / "clip.avi.mp4"
    with Video(str(folder / "clip.avi")) as source, Video(str(video)) as drawn:
        for before, after in zip(source, drawn, strict=True):
            assert after.time_s == pytest.approx(before.time_s, abs=0.03)
            changed = np.abs(after.pixels().astype(int) - before.pixels()).max(axis=2)[100:110] > 60
            expected = np.interp(before.number, list(left), list(left.values()))
            assert np.flatnonzero(changed.any(axis=0))[0] == pytest.approx(expected, abs=4), before.number


def test_coco_has_the_faces_and_images_of_the_table(finished: Labeled) -> None:
    coco = json.loads((finished.out / "coco.json").read_text(encoding="utf-8"))
    assert {category["id"]: category["name"] for category in coco["categories"]} == dict(enumerate(LABELS, start=1))
    names = {image["id"]: image["file_name"] for image in coco["images"]}
    assert list(names) == list(range(1, 5 + 1 + 2 + 1))
    rows = [row for row in rows_of(finished.out) if row["face"]]
    for number, (row, annotation) in enumerate(zip(rows, coco["annotations"], strict=True), start=1):
        x, y, width, height = (float(row[name]) for name in ("x", "y", "width", "height"))
        points = [value for name in LANDMARKS for value in (float(row[f"{name}_x"]), float(row[f"{name}_y"]), 2)]
        expected = {"id": number, "image_id": annotation["image_id"], "category_id": LABELS.index(row["label"]) + 1}
        expected |= {"bbox": [x, y, width, height], "area": pytest.approx(width * height, abs=0.06), "iscrowd": 0}
        expected |= {"keypoints": points, "num_keypoints": 5, "score": float(row["confidence"])}
        attributes = {name: float(row[name]) for name in ("uncertainty", "roll", "sharpness")}
        assert annotation == expected | {"attributes": attributes}
        assert names[annotation["image_id"]] == row["file"]


def test_the_report_escapes_markup_needs_no_network_and_names_no_folder_of_the_user(finished: Labeled) -> None:
    report = (finished.out / "report.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;&amp;amp;.jpg" in report
    assert not [text for text in ("<b>&amp;.jpg", "http://", "https://") if text in report]
    assert not [path for path in (finished.photos.parent, Path.home()) if str(path) in report]
    cards = page_data(report)["faces"]
    assert len(cards) == 7
    assert all(decode(base64.b64decode(card["thumb"].partition(",")[2])).shape == (96, 96, 3) for card in cards)
    assert all((finished.out / unquote(card["link"])).is_file() for card in cards)
    assert all("small" in card["reasons"] for card in cards)


def test_the_report_counts_like_the_terminal(finished: Labeled) -> None:
    console = Console(file=io.StringIO(), width=200)
    print_summary(finished.run, console, finished.out)
    said = " ".join(console.file.getvalue().split())
    assert f"mien review {finished.out}" in said
    data = page_data((finished.out / "report.html").read_text(encoding="utf-8"))
    assert data["counts"] == {
        "photos": 7, "videos": 1, "frames": 2, "uncertain": finished.run["uncertain"], "no_face": 1, "error": 1,
        "skipped": 1, "reviewed": 0, "corrected": 0, "not_a_face": 0,
    }  # fmt: skip
    assert "7 of 7 faces are small" in said
    assert {label["name"]: label["count"] for label in data["labels"] if label["count"]} == finished.run["faces"]
    assert all(f" {label} {count} " in said for label, count in finished.run["faces"].items())


@pytest.mark.parametrize(("is_terminal", "kind"), [(True, "xterm"), (True, "dumb"), (False, "xterm")])
def test_a_terminal_and_a_log_show_progress(monkeypatch: pytest.MonkeyPatch, is_terminal: bool, kind: str) -> None:
    monkeypatch.setattr(Progress, "lines_s", 0.0)
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=200, _environ={"TERM": kind})
    with Progress(console) as report:
        report.start(10, 3)
        report.expect(5)
        report.labeled(2, 3, errors=1)
        report.writing("csv")
    assert all(text in console.file.getvalue() for text in ("3 faces", "15"))


# People of videos


def test_strips_have_the_shares_of_those_seen_most_where_they_are_there_and_count_the_others() -> None:
    seen = {1: range(10), 2: (0, 1, 2, 3, 9), 3: (8,), 4: (8,)} | dict.fromkeys(range(5, 11), range(5, 9))
    label_of = dict.fromkeys(seen, "happiness") | {1: "sadness"}
    faces = {who: replace(labeled_face(**{label_of[who]: 0.88}), person=who) for who in seen}
    frames = [Moment(at_s, at_s + 1, 0, [faces[who] for who in seen if at_s in seen[who]]) for at_s in range(10)]
    html = render_strips(SimpleNamespace(videos=lambda: ["<b>.mp4"], frames=lambda _: frames, expressions=LABELS))
    assert "<h3>&lt;b&gt;.mp4</h3>" in html
    assert re.findall(r"person (\d+)", html) == ["1", "2", *map(str, range(5, 11))]
    assert "2 more, who are in fewer frames" in html
    # The start, the end and the upper edge of the areas, which are stacked on those of the labels below
    area = r'points="([\d.]+),([\d.]+) [^"]* ([\d.]+),100 [\d.]+,100"><title>'
    _, sad, happy, *_ = html.split("<svg ")
    assert "on average sadness 88%" in sad
    assert re.findall(f"{area}sadness<", sad) == [("0.0", "4.0", "1000.0")]
    assert re.findall(f"{area}happiness<", happy) == [("0.0", "6.0", "400.0"), ("900.0", "6.0", "1000.0")]


def test_people_keep_their_number_up_to_a_cut_and_every_video_begins_with_person_1(mien: Mien, folder: Path) -> None:
    one, other = face_photo(variant=0), face_photo(variant=1)
    for name, pair in (("a.avi", (one, other)), ("b.avi", (other, one))):
        tinted = (np.hstack(pair) * (0.6, 1, 1)).astype(np.uint8)  # It is a cut, after which they could be others.
        write_video(folder / name, images=[np.hstack(pair)] * 3 + [tinted] * 2)
    rows = sorted(mien.label(folder, "--write", "csv"), key=lambda row: float(row["x"]))
    for name in ("a.avi", "b.avi"):
        frames = [[row["person"] for row in rows if (row["file"], row["frame"]) == (name, str(n))] for n in range(5)]
        assert frames == frames[:1] * 3 + frames[3:4] * 2, "from left to right"
        assert [sorted(people) for people in frames[2:4]] == [["1", "2"], ["3", "4"]]


def test_the_tables_have_the_times_and_the_person_of_a_clip_and_of_its_chosen_part(tmp_path: Path) -> None:
    """A face smiles in the first 2 of 4 seconds."""
    released, rate = load_settings(detector="builtin", device="cpu"), 8.0
    face = cv2.resize(decode(sample_photo().read_bytes()), (256, 256))
    images = [face] * int(2 * rate) + [cv2.GaussianBlur(face, (0, 0), 60)] * int(2 * rate)
    clip = write_video(tmp_path / "my smile.mp4", images=images, rate=rate)
    whole, part, after = tmp_path / "whole", tmp_path / "part", tmp_path / "after"
    label_folder(clip, whole, released, "episodes", "csv", every=1)
    (episode,) = rows_of(whole, "episodes.csv")
    assert (episode["file"], episode["person"], episode["label"]) == ("my smile.mp4", "1", "happiness")
    assert [float(episode[name]) for name in ("onset_s", "offset_s", "duration_s")] == [0.0, 2.0, 2.0]
    faces = [row for row in rows_of(whole) if row["face"]]
    assert {row["person"] for row in faces} == {"1"}
    assert float(episode["peak"]) == pytest.approx(max(float(row["p_happiness"]) for row in faces), abs=1e-5)
    label_folder(clip, part, released, "csv", start=2.5, end=3.25, every=1)
    assert [float(row["time_s"]) for row in rows_of(part)] == [2.5 + number / rate for number in range(6)]
    label_folder(clip, after, released, "csv", start=60.0)  # The video is shorter.
    assert [row["reason"] for row in rows_of(after)] == ["outside_part"]
