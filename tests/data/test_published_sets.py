"""AffectNet, ExpW, muxspace, RAF-DB and photos, on drawn sets in their layouts."""

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from mien.app.labeling.columns import FACE_COLUMNS
from mien.data.contract import LABELS, align, decode, fit
from mien.data.readers.affectnet import five_points
from mien.data.readers.base import index_sha256, open_reader
from mien.data.readers.raf_db import PUBLISHED, published_counts, split_of
from mien.data.tree import DatasetError
from tests.support.data_sets import (
    draw_face,
    landmarks_68,
    make_affectnet,
    make_expw,
    make_muxspace,
    make_photos,
    make_raf_db,
    make_raf_db_kaggle,
)


@pytest.mark.parametrize("folders", [False, True])
@pytest.mark.parametrize("classes", [7, 8])
def test_both_layouts_have_the_same_labels_and_a_held_out_twentieth(
    tmp_path: Path, folders: bool, classes: int
) -> None:
    reader = open_reader("affectnet", make_affectnet(tmp_path, folders=folders), classes=classes)
    labels = [*LABELS, "contempt"][:classes]
    assert reader.labels == tuple(labels)
    for split, expected in (("train", 19), ("valid", 1), ("test", 2)):
        assert Counter(sample.label for sample in reader.samples(split)) == dict.fromkeys(labels, expected)
        assert reader.crop(reader.samples(split)[0]).shape == (112, 112, 3)


def test_faces_are_aligned_by_the_five_points_of_the_68() -> None:
    points = np.array([[10.0, 20.0], [40.0, 21.0], [25.0, 35.0], [14.0, 50.0], [37.0, 51.0]])
    assert np.allclose(five_points(landmarks_68(points)), points)


def test_published_counts_are_those_of_the_paper_and_the_official_validation_is_the_test_split(tmp_path: Path) -> None:
    all_trained = open_reader("affectnet", make_affectnet(tmp_path, per_class=1), hold_out_valid="false")
    assert all_trained.splits() == ("train", "test")
    assert all("valid" in sample.key for sample in all_trained.samples("test"))
    counts = open_reader("affectnet", tmp_path, classes=8).expected_counts()
    assert sum(counts["train"].values()) + sum(counts["valid"].values()) == 287_651
    assert counts["valid"]["contempt"] == 187
    assert set(counts["test"].values()) == {500}


def test_a_class_folder_of_another_name_is_rejected(tmp_path: Path) -> None:
    root = make_affectnet(tmp_path, per_class=1, folders=True)
    (root / "train" / "0").rename(root / "train" / "bored")
    with pytest.raises(DatasetError, match=r"class folder 'bored', expected 0 to 7"):
        open_reader("affectnet", root)


def test_the_faces_of_one_photo_stay_in_one_split(tmp_path: Path) -> None:
    reader = open_reader("expw", make_expw(tmp_path))
    photos = {split: {sample.key.split("#")[0] for sample in reader.samples(split)} for split in reader.splits()}
    assert reader.splits() == ("train", "valid", "test")
    assert len(photos["valid"]) == len(photos["test"]) == 8
    assert not photos["train"] & (photos["valid"] | photos["test"])
    assert sum(len(reader.samples(split)) for split in reader.splits()) == 2 * 7 * 12


def test_each_face_is_cut_out_by_its_own_box(tmp_path: Path) -> None:
    reader = open_reader("expw", make_expw(tmp_path))
    sample = next(one for one in reader.samples("train") if one.label == "happiness" and one.key.endswith("#1"))
    index = int(sample.key[len("happiness_") :][:3])
    drawn = draw_face("happiness", 10 * index + 1, size_px=100)[0]
    assert np.abs(reader.crop(sample).astype(int) - fit(drawn)).mean() < 30
    assert reader.crop(sample).shape == (112, 112, 3)


def test_a_corrected_box_changes_the_index_and_may_reach_beyond_the_edge(tmp_path: Path) -> None:
    root = make_expw(tmp_path, per_class=1)
    boxes = root / "label" / "label.lst"
    hashes = set()
    for box in ("1 2 30 40", "1 3 30 40", "-20 -10 60 90"):
        boxes.write_text(f"anger_000.jpg 0 {box} 50.0 0\n", encoding="utf-8")
        reader = open_reader("expw", root)
        hashes.add(index_sha256(reader, "train"))
        assert reader.crop(reader.samples("train")[0]).shape == (112, 112, 3)
    assert len(hashes) == 3, "its crops would be read from the cache of the earlier box"


def test_faces_with_low_confidence_can_be_left_out(tmp_path: Path) -> None:
    reader = open_reader("expw", make_expw(tmp_path), min_confidence="60")
    assert all(sample.key.endswith("#1") for sample in reader.samples("train"))
    assert reader.left_out("train") == {"below min_confidence": len(reader.samples("train"))}


def test_the_crop_shows_the_face_of_its_person_and_not_the_repeated_edge(tmp_path: Path) -> None:
    reader = open_reader("muxspace", make_muxspace(tmp_path, {"train": {"surprise": 1}}))
    sample = reader.samples("train")[0]
    assert reader.image(sample).shape == (144, 144, 3)
    assert sample.attributes == {"person": "Surprise_Person"}
    face, _ = draw_face("surprise", 1, size_px=112)
    difference = np.abs(reader.crop(sample)[20:92, 20:92].astype(int) - face[20:92, 20:92])
    assert np.median(difference) <= 12


def test_doubtful_labels_can_be_left_out_and_a_test_split_may_exist(tmp_path: Path) -> None:
    root = make_muxspace(tmp_path, {"train": {"fear": 2, "neutral": 3, "happiness": 1, "contempt": 1}})
    reader = open_reader("muxspace", root, classes=["happiness", "neutral"])
    assert Counter(sample.label for sample in reader.samples("train")) == {"neutral": 3, "happiness": 1}
    assert reader.left_out("train") == {"fear": 2, "contempt": 1}
    three = {split: {"fear": 1} for split in ("test", "train", "valid")}
    assert open_reader("muxspace", make_muxspace(tmp_path / "three", three)).splits() == ("train", "valid", "test")


def test_a_whole_set_has_the_papers_totals_and_splits_into_the_counts_that_are_published_for_it() -> None:
    assert {split: sum(counts.values()) for split, counts in PUBLISHED.items()} == {"train": 12271, "test": 3068}
    names = [f"train_{number:05}" for number in range(1, 12272)]
    labels = [label for label, count in PUBLISHED["train"].items() for _ in range(count)]
    by_id = dict(zip(names, labels, strict=True))
    splits = split_of(by_id, hold_out_valid=True)
    found = Counter((splits[name], by_id[name]) for name in names)
    for split in ("train", "valid"):
        assert {label: found[split, label] for label in LABELS} == published_counts(hold_out_valid=True)[split]


def test_both_layouts_have_the_same_images_in_the_same_splits(tmp_path: Path) -> None:
    counts = dict.fromkeys(LABELS, 9) | {"happiness": 21}  # a tenth of nine is no face, of 21 two
    official = open_reader("raf_db", make_raf_db(tmp_path / "official", counts, originals=False))
    kaggle = open_reader("raf_db_kaggle", make_raf_db_kaggle(tmp_path / "kaggle", counts))
    assert Counter(sample.label for sample in official.samples("valid")) == {"happiness": 2}
    assert len(official.samples("test")) == 6 * len(LABELS)
    for split in ("train", "valid", "test"):
        ours = {Path(sample.key).name: sample for sample in official.samples(split)}
        theirs = {Path(sample.key).name: sample for sample in kaggle.samples(split)}
        assert ours.keys() == theirs.keys()
        for name, sample in ours.items():
            assert sample.label == theirs[name].label
            assert np.array_equal(official.crop(sample), kaggle.crop(theirs[name]))


def test_aligned_images_are_fitted_and_originals_warped_by_their_landmarks_in_either_order(tmp_path: Path) -> None:
    root = make_raf_db(tmp_path)
    aligned, original = open_reader("raf_db", root), open_reader("raf_db", root, images="original")
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


def test_originals_without_annotations_are_an_error(tmp_path: Path) -> None:
    root = make_raf_db(tmp_path, {"fear": 2}, {})
    shutil.rmtree(root / "Annotation")
    assert len(open_reader("raf_db", root).samples("train")) == 2
    with pytest.raises(DatasetError, match="needs Annotation/manual/train_0000"):
        open_reader("raf_db", root, images="original").samples("train")


def test_a_kaggle_image_in_two_class_folders_and_a_folder_that_is_not_a_class_are_rejected(tmp_path: Path) -> None:
    train = make_raf_db_kaggle(tmp_path) / "DATASET" / "train"
    shutil.copy(train / "1" / "train_00001_aligned.jpg", train / "5" / "train_00001_aligned.jpg")
    with pytest.raises(DatasetError, match="train_00001 is in two class folders"):
        open_reader("raf_db_kaggle", tmp_path)
    (train / "1").rename(train / "9")
    with pytest.raises(DatasetError, match=r"class '9' of train/9/.*expected 1 to 7"):
        open_reader("raf_db_kaggle", tmp_path)


def test_faces_are_aligned_by_the_landmarks_of_the_table_and_have_no_label(tmp_path: Path) -> None:
    reader = open_reader("photos", make_photos(tmp_path))
    sample = reader.samples("train")[0]
    assert (sample.key, sample.label, reader.path_of(sample)) == ("000.png#000", None, "000.png")
    photo = decode((tmp_path / "000.png").read_bytes())
    assert np.array_equal(reader.crop(sample), align(photo, np.asarray(sample.landmarks_px, dtype=np.float32)))


def test_small_and_doubtful_faces_empty_photos_videos_and_archives_are_left_out_and_counted(tmp_path: Path) -> None:
    table = make_photos(tmp_path) / "labels.csv"
    head, first, second, third, _ = table.read_text(encoding="utf-8").splitlines()
    (tmp_path / "more.tar").write_bytes(b"an archive")
    (tmp_path / "clip.mp4").write_bytes(b"a video")
    lines = [f"{head},frame", f"{first},", f"{second},", f"{third.replace(',0.95,', ',0.7,')},"]
    lines += ["003.png" + "," * head.count(",") + ",", f"{third.replace('002.png', 'more.tar/a/003.png')},"]
    lines += [f"{third.replace('002.png', 'clip.mp4')},{frame}" for frame in (0, 5)]
    table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    elsewhere = {"no face": 1, "in a video or a TIFF with several pages": 2, "in an archive": 1}
    reader = open_reader("photos", tmp_path)
    assert [sample.key for sample in reader.samples("train")] == ["000.png#000", "001.png#000"]
    assert reader.left_out("train") == elsewhere | {"score below 0.8": 1}
    small = open_reader("photos", tmp_path, min_face_px=100)
    assert small.samples("train") == []
    assert small.left_out("train") == elsewhere | {"smaller than 100 px": 3}


def test_the_columns_are_those_that_labeling_writes(tmp_path: Path) -> None:
    head = (make_photos(tmp_path) / "labels.csv").read_text(encoding="utf-8").splitlines()[0].split(",")
    assert set(head) <= {column.name for column in FACE_COLUMNS}
