"""Faces that the user gives to a run: boxes and landmarks of a file, aligned faces, and images that are one face."""

import csv
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mien.app.labeling.face_file import read_face_file
from mien.app.labeling.files import LabelingError
from mien.app.labeling.records import Input
from mien.app.settings import Settings
from mien.data.contract import LANDMARKS
from mien.data.contract.align import TEMPLATE_PX
from tests.support import sample_photo
from tests.support.albums import face_photo, label_folder, rows_of, write_video

BOX = (180, 50, 90, 120)  # around the face of the sample


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("a.jpg", "b.jpg"):
        (folder / name).symlink_to(sample_photo())
    return folder


def write_boxes(path: Path, *rows: tuple[object, ...]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("file", "x", "y", "width", "height", "frame"), *rows])
    return path


def faces_of(folder: Path, text: str) -> list[Any]:
    """The faces of a.jpg in a file with this text."""
    (folder / "boxes").write_text(text, encoding="utf-8", newline="")
    return list(read_face_file(folder / "boxes").of(Input("a.jpg", "file", b"a.jpg", 1)))


def labeled(photos: Path, settings: Settings, **options: Any) -> list[dict[str, str]]:
    out = photos.parent / "out"
    label_folder(photos, out, settings, "csv", **options)
    return rows_of(out)


def test_every_good_box_is_labeled_and_every_bad_one_has_a_message(
    photos: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    boxes = write_boxes(
        photos.parent / "boxes.csv",
        ("a.jpg", *BOX),
        ("a.jpg", 9000, 9000, 20, 20),
        ("a.jpg", 0, 0, 60, 60),
        ("b.jpg", "nan", 1, 2, "wide"),
        ("gone.jpg", *BOX),
    )
    first, second, none = labeled(photos, settings, boxes=boxes)
    assert [float(first[name]) for name in ("x", "y", "width", "height")] == [*BOX]
    assert (float(second["x"]), second["label"] != "") == (0, True)
    for row in (first, second):
        assert (row["status"], row["reason"]) == ("ok", "invalid_face")
        assert "boxes[1]" in row["error"]
        assert "outside the image" in row["error"]
    assert (none["status"], none["reason"], none["face"]) == ("error", "invalid_face", "")
    assert "not finite" in none["error"]


def test_unlisted_images_have_no_face_and_unknown_ones_are_named(photos: Path, settings: Settings) -> None:
    write_video(photos / "clip.mp4", frames=3)
    pages = [Image.fromarray(face_photo(variant=number)) for number in range(2)]
    pages[0].save(photos / "scan.tif", save_all=True, append_images=pages[1:])
    small = (10, 10, 80, 80)
    boxes = write_boxes(
        photos.parent / "boxes.csv",
        ("a.jpg", *BOX, 4),  # of a photo, it has no meaning
        *(("clip.mp4", *small, frame) for frame in (1, 7)),
        ("gone.jpg", *BOX),
        ("scan.tif", *small),
    )
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mien.app.labeling.progress.Reporter.say", lambda _self, text: said.append(text))
        rows = labeled(photos, settings, boxes=boxes)
    assert [row["status"] for row in rows] == ["ok", "no_face", "no_face", "ok", "no_face", "no_face", "no_face"]
    assert said[-1].endswith("3 images not among those labeled: clip.mp4 frame 7, gone.jpg, scan.tif without a frame")


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="the system has no /dev/fd")
def test_faces_can_be_the_output_of_another_program(photos: Path, settings: Settings) -> None:
    table = write_boxes(photos.parent / "boxes.csv", ("a.jpg", *BOX)).read_bytes()
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(table)
    assert [row["status"] for row in labeled(photos, settings, boxes=Path(f"/dev/fd/{reading}"))] == ["ok", "no_face"]
    os.close(reading)


def test_the_table_of_a_run_gives_the_same_faces_again(photos: Path, settings: Settings) -> None:
    detected = labeled(photos, settings)
    table = (photos.parent / "out" / "labels.csv").rename(photos.parent / "faces.csv")
    label_folder(photos, photos.parent / "again", settings, "csv", boxes=table)
    again = rows_of(photos.parent / "again")
    assert [row["label"] for row in again] == [row["label"] for row in detected]
    assert float(again[0]["confidence"]) == pytest.approx(float(detected[0]["confidence"]), abs=0.02)
    assert {row["detection_score"] for row in again} == {"1.0"}  # by its landmarks, which were given


def test_coco_boxes_are_read_with_landmarks_that_have_their_names(tmp_path: Path) -> None:
    names = ["left_eye", "right_eye", "nose", "mouth_left", "mouth_right"]
    points = [196, 117, 2, 247, 116, 2, 222, 148, 2, 205, 165, 2, 245, 164, 2]
    document = {
        "images": [
            {"id": 3, "file_name": "a.jpg"},
            {"id": 4, "file_name": "b.jpg", "frame": 7},
            {"id": 5, "file_name": "c.jpg"},
        ],
        "categories": [
            {"id": 1, "name": "face", "keypoints": names},
            {"id": 2, "name": "person", "keypoints": ["hip"]},
        ],
        "annotations": [
            {"image_id": 3, "category_id": 1, "bbox": BOX, "keypoints": points},
            {"image_id": 4, "category_id": 2, "bbox": BOX, "keypoints": [1, 2, 2]},
            {"image_id": 5, "category_id": 1, "keypoints": points},
            {"image_id": 5, "category_id": 1, "bbox": BOX, "keypoints": [0] * 15},
        ],
    }
    path = tmp_path / "coco.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    face_file = read_face_file(path)
    (face,), (box,) = face_file.faces["a.jpg"][-1], face_file.faces["b.jpg"][7]
    assert face.landmarks_px.tolist()[0] == [196, 117]
    assert (tuple(face.box), tuple(box)) == (BOX, BOX)
    of_landmarks, unlabeled = face_file.faces["c.jpg"][-1]
    assert (of_landmarks.landmarks_px.tolist()[0], tuple(unlabeled)) == ([196, 117], BOX)


ONE = '{"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": [%s]}'
ROW = "a.jpg,180,50,90,120"
POINTS = {
    f"{point}_{axis}": value
    for point, place in zip(LANDMARKS, TEMPLATE_PX, strict=True)
    for axis, value in zip("xy", place, strict=True)
}


@pytest.mark.parametrize(
    "text",
    [
        f"\ufefffile,x,y,width,height\r\n{ROW}\r\n\r\n",
        "file;x;y;width;height\na.jpg;180,0;50,0;90;120\n",
        f"file|x|y|width|height\n{ROW}\n".replace(",", "|"),
        "file\tx\ty\twidth\theight\na.jpg\t180,0\t50\t90\t120\n",
        f"file,x,y,width,height,{','.join(POINTS)}\n{ROW}{',' * len(POINTS)}\n",
        f"file, x, y, width, height, frame\n{ROW.replace(',', ', ')}, 0\n",
        ONE % '{"image_id": 1, "bbox": [180, 50, 90, 120]}',
        ONE.replace('"id"', '"frame": 0, "id"') % '{"image_id": 1, "bbox": [180, 50, 90, 120], "keypoints": [1, 2]}',
    ],
    ids=["windows", "semicolons", "bars", "tabs", "points of others", "spaces", "coco", "coco with other keypoints"],
)
def test_boxes_are_read_as_other_programs_write_them(tmp_path: Path, text: str) -> None:
    assert [tuple(box) for box in faces_of(tmp_path, text)] == [BOX]


@pytest.mark.parametrize("columns", ["file", "file,x,y,width,height"])
def test_a_row_with_landmarks_needs_no_box(tmp_path: Path, columns: str) -> None:
    row = f"a.jpg{',' * columns.count(',')},{','.join(map(str, POINTS.values()))}"
    (face,) = faces_of(tmp_path, f"{columns},{','.join(POINTS)}\n{row}\n")
    np.testing.assert_allclose(face.landmarks_px, TEMPLATE_PX, atol=1e-4)
    assert tuple(face.box) == pytest.approx((11, -3.5, 89.5, 118), abs=0.1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "columns none"),
        ("name,x,y\n", "columns name, x, y"),
        ("file,x,y\na.jpg,1,2\n", "columns file, x, y"),
        (f'file,x,y,width,height\n"{ROW}\n{ROW}\n', "unexpected end of data"),
        (f"file,x,y,width,height,frame\n{ROW},first\n", "line 2: the frame 'first'"),
        ("x,y,width,height,file\n1,2,3,4\n", "line 2 has no file"),
        ("{", "Expecting property name"),
        ('{"images":' + "[" * 100_000, "recursion"),
        ("{}", "no 'images'"),
        (ONE % "{}", "no 'image_id'"),
        (ONE % '{"image_id": 9, "bbox": [1, 2, 3, 4]}', "no image has the id 9"),
    ],
)
def test_a_file_without_boxes_is_refused_with_what_is_expected(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(LabelingError, match=f"{reason}.*Expected a CSV with the columns file, x, y, width, height, or"):
        faces_of(tmp_path, text)


@pytest.mark.parametrize("bbox", ["", ', "bbox": null', ', "bbox": [180, 50]', ', "bbox": "180,50,90,120"'])
def test_a_coco_annotation_without_a_box_is_a_message_of_its_image(tmp_path: Path, bbox: str) -> None:
    bad, good = faces_of(tmp_path, ONE % f'{{"image_id": 1{bbox}}}, {{"image_id": 1, "bbox": [180, 50, 90, 120]}}')
    assert (np.isnan(bad).all(), tuple(good)) == (True, BOX)


@pytest.mark.parametrize(("name", "reason"), [("photos/a.jpg", ""), ("clip.mp4", " without a frame")])
def test_a_file_that_names_no_input_is_an_error(photos: Path, settings: Settings, name: str, reason: str) -> None:
    write_video(photos / "clip.mp4", frames=2)
    boxes = write_boxes(photos.parent / "boxes.csv", (name, *BOX))
    with pytest.raises(LabelingError, match=f"1 image not among those labeled: {name}{reason}"):
        labeled(photos, settings, boxes=boxes)


def test_crops_of_a_run_are_labeled_as_the_run_did_and_other_sizes_are_errors(photos: Path, settings: Settings) -> None:
    out = photos.parent / "out"
    label_folder(photos, out, settings, "csv", "crops")
    (out / "crops" / "large.jpg").symlink_to(sample_photo())
    label_folder(out / "crops", photos.parent / "again", settings, "csv", aligned=True)
    *crops, large = rows_of(photos.parent / "again")
    labels = [(row["label"], row["p_anger"]) for row in rows_of(out)]
    assert [(row["label"], row["p_anger"], row["detector"]) for row in crops] == [(*pair, "none") for pair in labels]
    assert (large["status"], large["reason"]) == ("error", "invalid_face")


def test_whole_images_are_one_face_each_and_a_photo_of_a_person_is_noted(photos: Path, settings: Settings) -> None:
    outcome = label_folder(photos, photos.parent / "out", settings, "csv", whole=True)
    rows = rows_of(photos.parent / "out")
    assert [(row["face"], float(row["x"]), float(row["width"])) for row in rows] == [("0", 0, 512)] * 2
    assert outcome.notes == {"framing": 2}
