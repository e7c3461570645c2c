"""Readers of published sets on drawn ones in their layouts; numbers and columns are literal, and none of a reader's."""

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from mien.app.labeling import tables
from mien.data.atomic import write_atomic
from mien.data.contract import LABELS, align, decode
from mien.data.errors import DatasetError
from mien.data.readers.base import Reader, Sample, open_reader
from tests.support.data_sets import (
    AFFECTNET,
    SIX_PER_CLASS,
    make_affectnet,
    make_expressions,
    make_folders,
    make_muxspace,
    make_photos,
    make_raf_db,
)


def _labels(reader: Reader, split: str) -> dict[str, str | None]:
    """Labels by file name."""
    return {Path(sample.key).name: sample.label for sample in reader.samples(split)}


def _shares(sample: Sample) -> dict[str, float]:
    shares = dict(zip([*LABELS, "contempt"], sample.distribution or (), strict=True))
    return {label: share for label, share in shares.items() if share}


# columns as published; label under the majority protocol; largest columns until three quarters under probability
VOTES: list[tuple[str, str | None, dict[str, int]]] = [
    ("9,0,0,1,0,0,0,0,0,0", "neutral", {"neutral": 9}),
    ("0,10,0,0,0,0,0,0,0,0", "happiness", {"happiness": 10}),
    ("0,0,7,0,0,0,3,0,0,0", "surprise", {"surprise": 7, "fear": 3}),
    ("1,0,0,8,0,0,0,0,1,0", "sadness", {"sadness": 8}),
    ("0,0,0,0,8,2,0,0,0,0", "anger", {"anger": 8}),  # three quarters are reached
    ("1,0,0,1,0,6,0,2,0,0", "disgust", {"disgust": 6}),
    ("0,0,0,0,0,0,8,0,2,0", "fear", {"fear": 8}),
    ("0,0,0,0,0,2,0,7,1,0", "contempt", {"contempt": 7}),
    ("0,0,0,0,0,0,0,0,8,2", None, {}),
    ("4,5,0,0,0,0,0,0,1,0", "happiness", {"happiness": 5, "neutral": 4}),  # more than half without the single vote
    ("5,0,0,5,0,0,0,0,0,0", None, {"neutral": 5, "sadness": 5}),
    ("4,0,0,3,0,0,3,0,0,0", None, {"neutral": 4, "sadness": 3, "fear": 3}),
    ("4,0,0,2,2,0,2,0,0,0", None, {}),  # four columns
    ("6,0,0,0,0,0,0,0,4,0", "neutral", {"neutral": 6}),  # unknown ends the selection, and is dropped
    ("5,0,0,0,0,0,0,0,5,0", None, {}),  # exactly half is too little
]


def test_votes_of_ferplus_become_labels_and_shares_by_either_protocol(tmp_path: Path) -> None:
    boxes = ('"(0, 0, 48, 48)",', "")  # published, and as written by generate_training_data.py
    lines = [f"{number:02}.png,{boxes[number % 2]}{votes}\n" for number, (votes, *_) in enumerate(VOTES)]
    write_atomic(tmp_path / "FER2013Train" / "label.csv", "".join(lines))
    majority, probability = (
        open_reader("ferplus", tmp_path, classes=8, protocol=name) for name in ("majority", "probability")
    )
    names = [f"{number:02}.png" for number in range(len(VOTES))]
    labels = {name: label for name, (_, label, _) in zip(names, VOTES, strict=True) if label}
    assert _labels(majority, "train") == labels
    shares = {sample.key[-6:]: _shares(sample) for sample in majority.samples("train")}
    assert shares["07.png"] == pytest.approx({"contempt": 7 / 9, "disgust": 2 / 9})
    assert shares["09.png"] == pytest.approx({"happiness": 5 / 9, "neutral": 4 / 9})
    selected = {name: of for name, (*_, of) in zip(names, VOTES, strict=True) if of}
    assert _labels(probability, "train") == {name: next(iter(of)) for name, of in selected.items()}
    for sample in probability.samples("train"):
        votes = selected[sample.key[-6:]]
        assert _shares(sample) == pytest.approx({name: count / sum(votes.values()) for name, count in votes.items()})
    seven = open_reader("ferplus", tmp_path)
    assert seven.left_out("train") == {"no majority": 4, "contempt": 1, "unknown": 1}
    voted = {sample.key[-6:]: votes for sample, votes in seven.voted("train")}  # also without a majority
    assert voted.keys() == {*names} - {"07.png", "08.png", "14.png"}
    assert voted["10.png"] == (0, 0, 0, 0, 5, 0, 5)
    assert voted["05.png"] == (0, 0, 6, 0, 1, 0, 1), "with single votes"


@pytest.mark.parametrize(("folders", "classes"), [(False, 8), (True, 7)])
def test_a_twentieth_of_affectnet_is_held_out_and_its_validation_is_the_test_split(
    tmp_path: Path, folders: bool, classes: int
) -> None:
    if folders:
        numbers = [*map(str, range(8))]
        make_folders(tmp_path, {"train": dict.fromkeys(numbers, 20), "val": dict.fromkeys(numbers, 2)})
    reader = open_reader("affectnet", tmp_path if folders else make_affectnet(tmp_path), classes=classes)
    for split, expected in (("train", 19), ("valid", 1), ("test", 2)):
        samples = reader.samples(split)
        assert Counter(sample.label for sample in samples) == dict.fromkeys([*LABELS, "contempt"][:classes], expected)
        for sample in samples:
            number = sample.key.split("/")[-2] if folders else Path(sample.key).stem[5]
            assert sample.label == AFFECTNET[int(number)]
    assert bool(reader.expected_counts()) is not folders, "folders are partial copies"
    assert reader.left_out("test") == ({"contempt": 2} if folders else {"none": 1, "uncertain": 2, "no face": 3})
    assert all("val" in sample.key for sample in reader.samples("test"))


def test_persons_of_muxspace_are_known_and_doubtful_labels_can_be_left_out(tmp_path: Path) -> None:
    root = make_muxspace(tmp_path, {"train": {"surprise": 1, "neutral": 3, "happiness": 1, "contempt": 1}})
    assert open_reader("muxspace", root).samples("train")[-1].attributes == {"person": "Surprise_Person"}
    reader = open_reader("muxspace", root, classes=["happiness", "neutral"])
    assert Counter(sample.label for sample in reader.samples("train")) == {"neutral": 3, "happiness": 1}
    assert reader.left_out("train") == {"surprise": 1, "contempt": 1}


def test_both_layouts_of_raf_db_have_the_same_images_in_the_same_splits(tmp_path: Path) -> None:
    train = dict.fromkeys(LABELS, 9) | {"happiness": 21}  # a tenth of nine is no face, of 21 two
    test = {label: number for number, label in enumerate(LABELS, start=1)}
    official = open_reader("raf_db", make_raf_db(tmp_path / "official", train, test, originals=False))
    kaggle = open_reader("raf_db", make_raf_db(tmp_path / "kaggle", train, test, kaggle=True))
    assert Counter(sample.label for sample in official.samples("valid")) == {"happiness": 2}
    assert Counter(sample.label for sample in official.samples("test")) == test
    assert all(_labels(official, split) == _labels(kaggle, split) for split in ("train", "valid", "test"))
    with pytest.raises(DatasetError, match="images=original: Kaggle's copy has aligned images only"):
        open_reader("raf_db", tmp_path / "kaggle", images="original")
    folder = tmp_path / "kaggle" / "DATASET" / "train"
    shutil.copy(folder / "1" / "train_00001_aligned.jpg", folder / "5" / "train_00001_aligned.jpg")
    with pytest.raises(DatasetError, match="train_00001 is both surprise and sadness"):
        open_reader("raf_db", tmp_path / "kaggle")


def test_originals_are_read_in_place_of_aligned_images_with_landmarks_in_either_order(tmp_path: Path) -> None:
    root = make_raf_db(tmp_path, SIX_PER_CLASS, {"fear": 2})
    assert {sample.key for sample in open_reader("raf_db", root, images="aligned").samples("test")} == {
        f"Image/aligned/test_000{number}_aligned.jpg" for number in (1, 2)
    }
    before = open_reader("raf_db", root).samples("test")
    assert [sample.key for sample in before] == ["Image/original/test_0001.jpg", "Image/original/test_0002.jpg"]
    left_eye, right_eye, *_ = before[0].landmarks_px or ()
    assert left_eye[0] < right_eye[0]
    path = root / "Annotation" / "manual" / "test_0001_manu_attri.txt"
    lines = path.read_text(encoding="utf-8").splitlines()  # with the sides as the person sees them
    path.write_text("\n".join([lines[1], lines[0], lines[2], lines[4], lines[3], *lines[5:]]), encoding="utf-8")
    assert open_reader("raf_db", root).samples("test") == before


def test_photos_are_aligned_by_the_table_that_labeling_writes_and_unusable_faces_are_counted(tmp_path: Path) -> None:
    table = make_photos(tmp_path) / "labels.csv"
    head, first, second, third, _ = table.read_text(encoding="utf-8").splitlines()
    assert set(head.split(",")) <= set(tables.COLUMNS)
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
    assert open_reader("photos", tmp_path, min_face_px=85).left_out("train") == elsewhere | {"smaller than 85 px": 3}
    sample, photo = reader.samples("train")[0], decode((tmp_path / "000.png").read_bytes())
    assert np.array_equal(reader.crop(sample), align(photo, np.asarray(sample.landmarks_px, dtype=np.float32)))


def test_labeled_photos_have_the_face_at_the_point_and_shares_by_certainty(tmp_path: Path) -> None:
    root = make_expressions(tmp_path)
    web, press = (open_reader("expressions", root, part=part).samples("train") for part in ("web", "press"))
    assert [sample.label for sample in web] == list(LABELS)
    assert (web[0].key, web[0].attributes) == ("photos/000.png#001", {"person": "source/0"})
    assert web[0].distribution == pytest.approx([0.94, *[0.01] * 6])
    assert (press[0].key, press[0].label) == ("people/faces/007.png#001", "surprise")
    assert press[0].distribution == pytest.approx([0.6, 0.3, *[0.02] * 5])
    two = open_reader("expressions", root, part="press", classes=["fear", "surprise"]).samples("train")
    assert two[0].distribution == pytest.approx([1 / 3, 2 / 3])
    assert two[1].distribution == pytest.approx([0.6 / 0.62, 0.02 / 0.62])
    table = root / "labels.csv"
    table.write_text(table.read_text(encoding="utf-8").replace("000.png,210", "000.png,275"), encoding="utf-8")
    assert open_reader("expressions", root).left_out("train") == {"no face found": 1}
    (root / "faces.csv").unlink()
    with pytest.raises(DatasetError, match=r"no faces\.csv in .*faces\.csv written by `mien label`"):
        open_reader("expressions", root)
