"""What the numbers and columns of each published set mean, in literal lines; no table of the readers is imported."""

from pathlib import Path

import numpy as np
import pytest

from mien.data.readers.base import Reader, open_reader
from tests.support.data_sets import landmarks_68, write_csv, write_image

FACE = np.full((48, 48, 3), 90, np.uint8)
SEVEN = ["surprise", "fear", "disgust", "happiness", "sadness", "anger", "neutral"]


def _labels(reader: Reader) -> dict[str, str | None]:
    """Labels by file name."""
    return {
        sample.key.rpartition("/")[2]: sample.label for split in reader.splits() for sample in reader.samples(split)
    }


def test_the_label_order_of_every_output_is_literal(tmp_path: Path) -> None:
    write_image(tmp_path / "happy" / "a.png", FACE)
    assert list(open_reader("folders", tmp_path).labels) == SEVEN
    assert list(open_reader("folders", tmp_path, classes=8).labels) == [*SEVEN, "contempt"]


@pytest.mark.parametrize("box", ['"(0, 0, 48, 48)",', ""], ids=["published", "generated"])
def test_ferplus_columns(tmp_path: Path, box: str) -> None:
    """The published label.csv has a box; the one that generate_training_data.py writes has none."""
    lines = {
        "neutral": "9,0,0,1,0,0,0,0,0,0",
        "happiness": "0,10,0,0,0,0,0,0,0,0",
        "surprise": "0,0,7,0,0,0,3,0,0,0",
        "sadness": "1,0,0,8,0,0,0,0,1,0",
        "anger": "0,0,0,0,8,2,0,0,0,0",
        "disgust": "1,0,0,1,0,6,0,2,0,0",
        "fear": "0,0,0,0,0,0,8,0,2,0",
        "contempt": "0,0,0,0,0,2,0,7,1,0",
        "left out": "0,0,0,0,0,0,0,0,8,2",
    }
    (tmp_path / "FER2013Train").mkdir()
    text = "".join(f"{label}.png,{box}{votes}\n" for label, votes in lines.items())
    (tmp_path / "FER2013Train" / "label.csv").write_text(text, encoding="utf-8")
    found = _labels(open_reader("ferplus", tmp_path, classes=8))
    assert found == {f"{label}.png": label for label in lines if label != "left out"}
    (fear,) = (sample for sample in open_reader("ferplus", tmp_path).samples("train") if sample.label == "fear")
    assert fear.distribution == (0, 1, 0, 0, 0, 0, 0)


AFFECTNET = ["neutral", "happiness", "sadness", "surprise", "fear", "disgust", "anger", "contempt"]


def test_affectnet_numbers_and_folders(tmp_path: Path) -> None:
    marks = landmarks_68(np.array([[10.0, 20.0], [40.0, 21.0], [25.0, 35.0], [14.0, 50.0], [37.0, 51.0]]))
    rows = [(f"1/{number}.jpg", marks, number) for number in range(11)]
    write_csv(tmp_path / "validation.csv", [("subDirectory_filePath", "facial_landmarks", "expression"), *rows])
    reader = open_reader("affectnet", tmp_path, classes=8)
    assert _labels(reader) == {f"{number}.jpg": label for number, label in enumerate(AFFECTNET)}
    assert reader.left_out("test") == {"none": 1, "uncertain": 1, "no face": 1}
    for number in range(8):
        write_image(tmp_path / "folders" / "val" / str(number) / f"{number}.jpg", FACE)
    assert _labels(open_reader("affectnet", tmp_path / "folders", classes=8)) == _labels(reader)


def test_raf_db_numbers_and_folders(tmp_path: Path) -> None:
    (tmp_path / "EmoLabel").mkdir()
    lines = "".join(f"test_000{number}.jpg {number}\n" for number in range(1, 8))
    (tmp_path / "EmoLabel" / "list_patition_label.txt").write_text(lines, encoding="utf-8")
    expected = {f"test_000{number}_aligned.jpg": label for number, label in enumerate(SEVEN, start=1)}
    assert _labels(open_reader("raf_db", tmp_path)) == expected
    for number, name in enumerate(expected, start=1):
        write_image(tmp_path / "kaggle" / "DATASET" / "test" / str(number) / name, FACE)
    assert _labels(open_reader("raf_db", tmp_path / "kaggle")) == expected
