"""RAF-DB: the official layout and the Kaggle copy, which have the same splits."""

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from mien.data.contract import LABELS, fit
from mien.data.readers.base import open_reader
from mien.data.readers.raf_db import PUBLISHED, published_counts, split_of
from mien.data.tree import DatasetError
from tests.data_sets import make_raf_db, make_raf_db_kaggle

MANY = dict.fromkeys(LABELS, 20) | {"fear": 9, "happiness": 45}


def test_a_whole_set_has_the_papers_totals_and_splits_into_the_counts_that_are_published_for_it() -> None:
    assert {split: sum(counts.values()) for split, counts in PUBLISHED.items()} == {"train": 12271, "test": 3068}
    names = [f"train_{number:05}" for number in range(1, 12272)]
    labels = [label for label, count in PUBLISHED["train"].items() for _ in range(count)]
    by_id = dict(zip(names, labels, strict=True))
    splits = split_of(by_id, hold_out_valid=True)
    found = Counter((splits[name], by_id[name]) for name in names)
    for split in ("train", "valid"):
        assert {label: found[split, label] for label in LABELS} == published_counts(hold_out_valid=True)[split]


def test_a_tenth_of_each_train_class_is_validation_and_test_is_untouched(tmp_path: Path) -> None:
    reader = open_reader("raf_db", make_raf_db(tmp_path, MANY, MANY, originals=False))
    assert reader.splits() == ("train", "valid", "test")
    counts = {split: Counter(sample.label for sample in reader.samples(split)) for split in reader.splits()}
    assert counts["valid"] == {label: count // 10 for label, count in MANY.items() if count >= 10}
    assert counts["test"] == MANY
    assert counts["train"] + counts["valid"] == MANY


def test_both_layouts_have_the_same_images_in_the_same_splits(tmp_path: Path) -> None:
    official = open_reader("raf_db", make_raf_db(tmp_path / "official", MANY, originals=False))
    kaggle = open_reader("raf_db_kaggle", make_raf_db_kaggle(tmp_path / "kaggle", MANY))
    for split in ("train", "valid", "test"):
        ours = {Path(sample.key).name: sample for sample in official.samples(split)}
        theirs = {Path(sample.key).name: sample for sample in kaggle.samples(split)}
        assert ours.keys() == theirs.keys()
        for name, sample in ours.items():
            assert sample.label == theirs[name].label
            assert np.array_equal(official.crop(sample), kaggle.crop(theirs[name]))


def test_aligned_images_are_fitted_and_originals_warped_by_their_landmarks(tmp_path: Path) -> None:
    root = make_raf_db(tmp_path)
    aligned, original = open_reader("raf_db", root), open_reader("raf_db", root, images="original")
    for sample, whole in zip(aligned.samples("test"), original.samples("test"), strict=True):
        assert np.array_equal(aligned.crop(sample), fit(aligned.image(sample)))
        assert original.image(whole).shape == (180, 240, 3)
        # the drawn landmarks lie on the template give or take a pixel, so both crops frame the face alike
        difference = np.abs(original.crop(whole).astype(int) - aligned.crop(sample))
        assert np.median(difference) <= 12


def test_attributes_are_words(tmp_path: Path) -> None:
    sample = open_reader("raf_db", make_raf_db(tmp_path), hold_out_valid="false").samples("train")[0]
    assert sample.attributes == {"gender": "female", "race": "African-American", "age_band": "4-19"}


def test_sides_named_from_the_persons_view_are_swapped(tmp_path: Path) -> None:
    root = make_raf_db(tmp_path)
    before = open_reader("raf_db", root, images="original").samples("test")[0]
    path = root / "Annotation" / "manual" / f"{Path(before.key).stem}_manu_attri.txt"
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([lines[1], lines[0], lines[2], lines[4], lines[3], *lines[5:]]), encoding="utf-8")
    assert open_reader("raf_db", root, images="original").samples("test")[0] == before


def test_archives_unpacked_into_a_folder_with_their_name_are_found(tmp_path: Path) -> None:
    root = make_raf_db(tmp_path)
    shutil.move(root / "Image" / "aligned", root / "inner")
    (root / "Image" / "aligned").mkdir()
    shutil.move(root / "inner", root / "Image" / "aligned" / "aligned")
    reader = open_reader("raf_db", root)
    assert reader.crop(reader.samples("valid" if "valid" in reader.splits() else "test")[0]).shape == (112, 112, 3)


def test_originals_without_annotations_are_an_error(tmp_path: Path) -> None:
    root = make_raf_db(tmp_path, {"fear": 2}, {})
    shutil.rmtree(root / "Annotation")
    assert open_reader("raf_db", root).samples("train")[0].attributes == {}
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
