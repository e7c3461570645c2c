"""AffectNet, on drawn trees of both layouts."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from mien.data.contract import LABELS
from mien.data.readers.affectnet import five_points
from mien.data.readers.base import open_reader
from mien.data.tree import DatasetError
from tests.data_sets import landmarks_68, make_affectnet


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


def test_non_expressions_are_left_out_by_name(tmp_path: Path) -> None:
    reader = open_reader("affectnet", make_affectnet(tmp_path))
    assert reader.left_out("train") == {"no face": 1, "contempt": 20}
    assert reader.left_out("test") == {"no face": 1, "contempt": 2}


def test_the_official_validation_split_is_never_used_for_selection(tmp_path: Path) -> None:
    reader = open_reader("affectnet", make_affectnet(tmp_path), hold_out_valid="false")
    assert reader.splits() == ("train", "test")
    assert all("valid" in sample.key for sample in reader.samples("test"))


def test_faces_are_aligned_by_the_five_points_of_the_68() -> None:
    points = np.array([[10.0, 20.0], [40.0, 21.0], [25.0, 35.0], [14.0, 50.0], [37.0, 51.0]])
    assert np.allclose(five_points(landmarks_68(points)), points)


def test_published_counts_are_those_of_the_paper_minus_held_out_faces(tmp_path: Path) -> None:
    counts = open_reader("affectnet", make_affectnet(tmp_path), classes=8).expected_counts()
    assert sum(counts["train"].values()) + sum(counts["valid"].values()) == 287_651
    assert counts["valid"]["contempt"] == 187
    assert set(counts["test"].values()) == {500}


def test_a_class_folder_of_another_name_is_rejected(tmp_path: Path) -> None:
    root = make_affectnet(tmp_path, per_class=1, folders=True)
    (root / "train" / "0").rename(root / "train" / "bored")
    with pytest.raises(DatasetError, match=r"class folder 'bored', expected 0 to 7"):
        open_reader("affectnet", root)
