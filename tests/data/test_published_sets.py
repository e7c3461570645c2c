"""AffectNet, expressions, muxspace, RAF-DB and photos, on drawn sets in their layouts."""

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from mien.app.labeling.tables import COLUMNS
from mien.data.contract import LABELS, align, decode, fit
from mien.data.errors import DatasetError
from mien.data.readers.affectnet import five_points
from mien.data.readers.base import open_reader
from tests.support.data_sets import (
    draw_face,
    landmarks_68,
    make_affectnet,
    make_expressions,
    make_muxspace,
    make_photos,
    make_raf_db,
    make_raf_db_kaggle,
)


@pytest.mark.parametrize(("folders", "classes"), [(False, 8), (True, 7)])
def test_a_twentieth_of_affectnet_is_held_out_and_its_validation_is_the_test_split(
    tmp_path: Path, folders: bool, classes: int
) -> None:
    reader = open_reader("affectnet", make_affectnet(tmp_path, folders=folders), classes=classes)
    labels = [*LABELS, "contempt"][:classes]
    for split, expected in (("train", 19), ("valid", 1), ("test", 2)):
        assert Counter(sample.label for sample in reader.samples(split)) == dict.fromkeys(labels, expected)
    assert all("val" in sample.key for sample in reader.samples("test"))


def test_faces_of_affectnet_are_aligned_by_five_points_of_the_68() -> None:
    points = np.array([[10.0, 20.0], [40.0, 21.0], [25.0, 35.0], [14.0, 50.0], [37.0, 51.0]])
    assert np.allclose(five_points(landmarks_68(points)), points)


def test_crops_of_muxspace_show_the_face_and_doubtful_labels_can_be_left_out(tmp_path: Path) -> None:
    root = make_muxspace(tmp_path, {"train": {"surprise": 1, "neutral": 3, "happiness": 1, "contempt": 1}})
    sample = open_reader("muxspace", root).labeled("train")[-1]
    assert sample.attributes == {"person": "Surprise_Person"}
    face, _ = draw_face("surprise", 1, size_px=112)
    crop = open_reader("muxspace", root).crop(sample)
    assert np.median(np.abs(crop[20:92, 20:92].astype(int) - face[20:92, 20:92])) <= 12, "not the repeated edge"
    reader = open_reader("muxspace", root, classes=["happiness", "neutral"])
    assert Counter(sample.label for sample in reader.samples("train")) == {"neutral": 3, "happiness": 1}
    assert reader.left_out("train") == {"surprise": 1, "contempt": 1}


def test_both_layouts_of_raf_db_have_the_same_images_in_the_same_splits(tmp_path: Path) -> None:
    counts = dict.fromkeys(LABELS, 9) | {"happiness": 21}  # a tenth of nine is no face, of 21 two
    official = open_reader("raf_db", make_raf_db(tmp_path / "official", counts, originals=False))
    kaggle = open_reader("raf_db", make_raf_db_kaggle(tmp_path / "kaggle", counts))
    assert Counter(sample.label for sample in official.samples("valid")) == {"happiness": 2}
    assert len(official.samples("test")) == 6 * len(LABELS)
    for split in ("train", "valid", "test"):
        ours = {Path(sample.key).name: sample.label for sample in official.samples(split)}
        assert ours == {Path(sample.key).name: sample.label for sample in kaggle.samples(split)}
        assert {kaggle.crop(sample).shape for sample in kaggle.samples(split)} == {(112, 112, 3)}
    with pytest.raises(DatasetError, match="images=original: Kaggle's copy has aligned images only"):
        open_reader("raf_db", tmp_path / "kaggle", images="original")
    train = tmp_path / "kaggle" / "DATASET" / "train"
    shutil.copy(train / "1" / "train_00001_aligned.jpg", train / "5" / "train_00001_aligned.jpg")
    with pytest.raises(DatasetError, match="train_00001 is in two class folders"):
        open_reader("raf_db", tmp_path / "kaggle")


def test_aligned_images_are_fitted_and_originals_warped_by_their_landmarks_in_either_order(tmp_path: Path) -> None:
    root = make_raf_db(tmp_path)
    aligned, original = open_reader("raf_db", root, images="aligned"), open_reader("raf_db", root)
    for sample, whole in zip(aligned.samples("test"), original.samples("test"), strict=True):
        assert np.array_equal(aligned.crop(sample), fit(aligned.image(sample)))
        assert original.image(whole).shape == (180, 240, 3)
        # the drawn landmarks lie on the template give or take a pixel, so both crops frame the face alike
        difference = np.abs(original.crop(whole).astype(int) - aligned.crop(sample))
        assert np.median(difference) <= 12
    path = root / "Annotation" / "manual" / f"{Path(whole.key).stem}_manu_attri.txt"
    lines = path.read_text(encoding="utf-8").splitlines()  # with the sides as the person sees them
    path.write_text("\n".join([lines[1], lines[0], lines[2], lines[4], lines[3], *lines[5:]]), encoding="utf-8")
    assert open_reader("raf_db", root, images="original").samples("test")[-1] == whole


def test_photos_are_aligned_by_the_table_that_labeling_writes_and_unusable_faces_are_counted(tmp_path: Path) -> None:
    table = make_photos(tmp_path) / "labels.csv"
    head, first, second, third, _ = table.read_text(encoding="utf-8").splitlines()
    assert set(head.split(",")) <= set(COLUMNS)
    lines = [f"{head},frame", f"{first},", f"{second},", f"{third.replace(',0.95,', ',0.7,')},"]
    lines += ["003.png" + "," * head.count(",") + ","]
    lines += [f"{third.replace('002.png', 'clip.mp4')},{frame}" for frame in (0, 5)]
    table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    elsewhere = {"no face": 1, "in a video": 2}
    reader = open_reader("photos", tmp_path)
    assert [(sample.key, sample.label) for sample in reader.samples("train")] == [
        ("000.png#000", None), ("001.png#000", None)
    ]  # fmt: skip
    assert reader.left_out("train") == elsewhere | {"score below 0.8": 1}
    assert open_reader("photos", tmp_path, min_face_px=100).left_out("train") == elsewhere | {"smaller than 100 px": 3}
    sample, photo = reader.samples("train")[0], decode((tmp_path / "000.png").read_bytes())
    assert np.array_equal(reader.crop(sample), align(photo, np.asarray(sample.landmarks_px, dtype=np.float32)))


def test_labeled_photos_have_the_face_at_the_point_and_shares_by_certainty(tmp_path: Path) -> None:
    root = make_expressions(tmp_path)
    web, press = (open_reader("expressions", root, part=part) for part in ("web", "press"))
    assert [sample.label for sample in web.samples("train")] == list(LABELS)
    first = web.samples("train")[0]
    assert (first.key, first.attributes) == ("photos/000.png#001", {"person": "source/0"})
    assert first.distribution == pytest.approx([0.94, *[0.01] * 6])
    assert np.abs(web.crop(first)[20:92, 20:92].astype(int) - draw_face("surprise", 0)[0][20:92, 20:92]).mean() < 30
    fear, surprise = press.samples("train")[1], press.samples("train")[0]
    assert (surprise.key, surprise.label) == ("people/faces/007.png#001", "surprise")
    assert surprise.distribution == pytest.approx([0.6, 0.3, *[0.02] * 5])
    assert fear.distribution == pytest.approx([0.02, 0.6, 0.3, *[0.02] * 4])
    two = open_reader("expressions", root, part="press", classes=["fear", "surprise"]).samples("train")
    assert [sample.distribution for sample in two] == [
        pytest.approx([1 / 3, 2 / 3]), pytest.approx([0.6 / 0.62, 0.02 / 0.62])
    ]  # fmt: skip


def test_a_labeled_face_that_was_not_detected_is_counted(tmp_path: Path) -> None:
    table = make_expressions(tmp_path) / "labels.csv"
    table.write_text(table.read_text(encoding="utf-8").replace("000.png,210", "000.png,275"), encoding="utf-8")
    reader = open_reader("expressions", tmp_path)
    assert reader.left_out("train") == {"no face found": 1}
    assert len(reader.samples("train")) == 6


def test_labeled_photos_without_landmarks_have_no_split(tmp_path: Path) -> None:
    (make_expressions(tmp_path) / "faces.csv").unlink()
    reader = open_reader("expressions", tmp_path)
    with pytest.raises(DatasetError, match=r"no split 'train' in .*faces\.csv written by `mien label`"):
        reader.samples("train")
