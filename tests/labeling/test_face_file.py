"""Faces that the user gives to a run: boxes and landmarks of a file, aligned faces, and images that are one face."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from mien.app.labeling.face_file import read_face_file
from mien.app.labeling.files import LabelingError
from mien.app.settings import Settings
from mien.data.contract import LANDMARKS
from tests.support import sample_photo
from tests.support.albums import label_folder, rows_of, write_video

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


def labeled(photos: Path, settings: Settings, *, out: str = "out", **options: Any) -> list[dict[str, str]]:
    label_folder(photos, photos.parent / out, settings, "csv", **options)
    return rows_of(photos.parent / out)


def test_every_good_box_is_labeled_and_every_bad_one_has_a_message(photos: Path, settings: Settings) -> None:
    good = [("a.jpg", *BOX, 4), ("a.jpg", 0, 0, 60, 60)]  # of a photo, a frame has no meaning
    bad = [("a.jpg", 9000, 9000, 20, 20), ("b.jpg", "nan", 1, 2, "wide")]
    first, second, none = labeled(photos, settings, boxes=write_boxes(photos.parent / "boxes.csv", *good, *bad))
    assert [float(first[name]) for name in ("x", "y", "width", "height")] == [*BOX]
    assert (float(second["x"]), second["label"] != "") == (0, True)
    for row in (first, second):
        assert (row["status"], row["reason"]) == ("ok", "invalid_face")
        assert "boxes[2]" in row["error"]
        assert "outside the image" in row["error"]
    assert (none["status"], none["reason"], none["face"]) == ("error", "invalid_face", "")


def test_unlisted_images_have_no_face_and_unknown_ones_are_named(
    photos: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_video(photos / "clip.mp4", frames=3)
    clip = (("clip.mp4", 10, 10, 80, 80, frame) for frame in (1, 7))
    boxes = write_boxes(photos.parent / "boxes.csv", ("a.jpg", *BOX), *clip, ("gone.jpg", *BOX))
    said: list[str] = []
    monkeypatch.setattr("mien.app.labeling.progress.Reporter.say", lambda _self, text: said.append(text))
    rows = labeled(photos, settings, boxes=boxes)
    assert [row["status"] for row in rows] == ["ok", "no_face", "no_face", "ok", "no_face"]
    assert said[-1].endswith("2 images not among those labeled: clip.mp4 frame 7, gone.jpg")
    for name, reason in (("photos/a.jpg", ""), ("clip.mp4", " without a frame")):
        boxes = write_boxes(photos.parent / "wrong.csv", (name, *BOX))
        with pytest.raises(LabelingError, match=f"1 image not among those labeled: {name}{reason}"):
            labeled(photos, settings, boxes=boxes, out=f"wrong{reason}")


def test_coco_boxes_are_read_with_landmarks_that_have_their_names(tmp_path: Path) -> None:
    points = [196, 117, 2, 247, 116, 2, 222, 148, 2, 205, 165, 2, 245, 164, 2]
    document = {
        "images": [{"id": 3, "file_name": "a.jpg"}],
        "categories": [{"id": 1, "keypoints": [*LANDMARKS]}, {"id": 2, "keypoints": ["hip"]}],
        "annotations": [
            {"image_id": 3, "category_id": 1, "bbox": BOX, "keypoints": points},
            {"image_id": 3, "category_id": 2, "bbox": BOX, "keypoints": [1, 2, 2]},
        ],
    }
    (tmp_path / "coco.json").write_text(json.dumps(document))
    face, box = read_face_file(tmp_path / "coco.json").faces["a.jpg"][-1]
    assert (tuple(face.box), face.landmarks_px.tolist()[0]) == (BOX, [196, 117])
    assert tuple(box) == BOX


def test_crops_of_a_run_are_labeled_as_the_run_did_and_other_sizes_are_errors(photos: Path, settings: Settings) -> None:
    out = photos.parent / "out"
    label_folder(photos, out, settings, "csv", "crops")
    (out / "crops" / "large.jpg").symlink_to(sample_photo())
    label_folder(out / "crops", photos.parent / "again", settings, "csv", aligned=True)
    *crops, large = rows_of(photos.parent / "again")
    labels = [(row["label"], row["p_anger"]) for row in rows_of(out)]
    assert [(row["label"], row["p_anger"]) for row in crops] == labels
    assert (large["status"], large["reason"]) == ("error", "invalid_face")


def test_whole_images_are_one_face_each_and_a_photo_of_a_person_is_noted(photos: Path, settings: Settings) -> None:
    rows = labeled(photos, settings, whole=True)
    found = [(row["face"], float(row["x"]), float(row["width"]), row["notes"]) for row in rows]
    assert found == [("0", 0, 512, "framing")] * 2
