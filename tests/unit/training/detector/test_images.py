"""Training images of a detector: a stable split, and labels that are computed once."""

from pathlib import Path
from typing import get_args

import pytest

from mien.data.tree import DatasetError
from mien.training.detector import images as module
from mien.training.detector.config import DetectorData
from mien.training.detector.images import Split, load_images
from tests.support_detector import small_detector_recipe


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DetectorData:
    return small_detector_recipe(tmp_path, monkeypatch).data


def test_no_image_is_in_two_splits_and_none_is_lost(data: DetectorData) -> None:
    train, *held_out = ({item.path for item in load_images(data, split).items} for split in get_args(Split))
    assert [len(split) for split in held_out] == [2, 2]
    assert len(train.union(*held_out)) == len(train) + 4 == 40


def test_a_limit_holds_out_a_twentieth_of_it_for_each_split(data: DetectorData) -> None:
    limited = data.model_copy(update={"folders": (data.folders[0].model_copy(update={"limit": 20}),)})
    assert [len(load_images(limited, split)) for split in get_args(Split)] == [20, 1, 1]


def test_a_renamed_image_stays_in_its_split(data: DetectorData, tmp_path: Path) -> None:
    before = [item.path.read_bytes() for item in load_images(data, "valid").items]
    for path in (tmp_path / "drawn").iterdir():
        path.rename(path.with_name("other_" + path.name))
    assert [item.path.read_bytes() for item in load_images(data, "valid").items] == before


def test_labels_are_computed_once(data: DetectorData, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_images(data, "train")
    monkeypatch.setattr(module, "Teacher", pytest.fail)
    again = load_images(data, "train")
    assert [item.faces.tolist() for item in again.items] == [item.faces.tolist() for item in first.items]
    assert again.index_sha256 == first.index_sha256
    assert any(len(item.faces) == 0 for item in again.items)


def test_a_file_that_is_not_an_image_is_named(data: DetectorData, tmp_path: Path) -> None:
    for number in range(30):  # some fall into the train split
        (tmp_path / "drawn" / f"broken{number}.png").write_bytes(b"not an image %d" % number)
    with pytest.raises(DatasetError, match="broken"):
        load_images(data, "train")


def test_an_empty_folder_is_an_error(data: DetectorData, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    folder = data.folders[0].model_copy(update={"root": tmp_path / "empty"})
    with pytest.raises(DatasetError, match="no images"):
        load_images(data.model_copy(update={"folders": (folder,)}), "train")
