"""muxspace crops: alignment by landmarks, because most of an image is repeated edge."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from mien.data.readers.base import open_reader
from mien.data.tree import DatasetError
from tests.data_sets import draw_face, make_muxspace


def test_the_crop_shows_the_face_of_its_person_and_not_the_repeated_edge(tmp_path: Path) -> None:
    reader = open_reader("muxspace", make_muxspace(tmp_path, {"train": {"surprise": 1}}))
    sample = reader.samples("train")[0]
    assert reader.image(sample).shape == (144, 144, 3)
    assert sample.attributes == {"person": "Surprise_Person"}
    face, _ = draw_face("surprise", 1, size_px=112)
    difference = np.abs(reader.crop(sample)[20:92, 20:92].astype(int) - face[20:92, 20:92])
    assert np.median(difference) <= 12


def test_doubtful_labels_can_be_left_out(tmp_path: Path) -> None:
    root = make_muxspace(tmp_path, {"train": {"fear": 2, "neutral": 3, "happiness": 1, "contempt": 1}})
    reader = open_reader("muxspace", root, keep=["happiness", "neutral"])
    assert Counter(sample.label for sample in reader.samples("train")) == {"neutral": 3, "happiness": 1}
    assert reader.left_out("train") == {"fear": 2, "contempt": 1}
    assert reader.expected_counts() == {}
    assert len(open_reader("muxspace", root, keep="happiness,neutral").samples("train")) == 4
    for wrong in ([], ["happy"], "happy"):
        with pytest.raises(DatasetError, match="keep"):
            open_reader("muxspace", root, keep=wrong)


def test_a_test_split_exists_if_the_csv_lists_one(tmp_path: Path) -> None:
    assert open_reader("muxspace", make_muxspace(tmp_path / "a")).splits() == ("train", "valid")
    three = {split: {"fear": 1} for split in ("test", "train", "valid")}
    assert open_reader("muxspace", make_muxspace(tmp_path / "b", three)).splits() == ("train", "valid", "test")
