"""Class folders with custom images."""

import csv
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from mien.data.contract import LABELS, align
from mien.data.readers.base import Reader, open_reader
from mien.data.tree import DatasetError
from tests.support.data_sets import draw_face, make_folders, make_photos, write_csv


def _counts(reader: Reader, split: str) -> dict[str | None, int]:
    return dict(Counter(sample.label for sample in reader.samples(split)))


def test_splits_and_classes_are_read_in_any_spelling(tmp_path: Path) -> None:
    root = make_folders(
        tmp_path, {"Training": {"Happy": 2, "4_sadness": 1}, "val": {"2.Traurig": 2}, "TEST": {"anger": 1}}
    )
    reader = open_reader("folders", root, labels="2.Traurig=sad")
    assert reader.splits() == ("train", "valid", "test")
    assert _counts(reader, "train") == {"happiness": 2, "sadness": 1}
    assert _counts(reader, "valid") == {"sadness": 2}
    assert _counts(reader, "test") == {"anger": 1}


@pytest.mark.parametrize("suffix", [".jpg", ".JPEG", ".png", ".webp", ".bmp", ".tiff", ".avif"])
def test_every_decodable_suffix_counts(tmp_path: Path, suffix: str) -> None:
    reader = open_reader("folders", make_folders(tmp_path, {"": {"happy": 1}}, suffix=suffix))
    assert reader.crop(reader.samples("all")[0]).shape == (112, 112, 3)


def test_other_files_are_ignored_and_deeper_folders_are_read(tmp_path: Path) -> None:
    root = make_folders(tmp_path, {"train": {"happy": 1}})
    (root / "train" / "happy" / "notes.txt").write_text("mine", encoding="utf-8")
    (root / "README.md").write_text("mine", encoding="utf-8")
    (root / "train" / "happy" / "2021").mkdir()
    shutil.copy(root / "train" / "happy" / "train000.png", root / "train" / "happy" / "2021" / "a.png")
    reader = open_reader("folders", root)
    assert _counts(reader, "train") == {"happiness": 2}
    assert reader.notes == ["class folders read as happy = happiness"]
    shutil.copy(root / "train" / "happy" / "train000.png", root / "loose.png")
    assert open_reader("folders", root).notes[1:] == ["1 images ignored: in no class folder, such as loose.png"]


@pytest.mark.parametrize(("folder", "label", "classes"), [("happy", "happiness", 7), ("contempt", "contempt", 8)])
def test_a_single_class_is_not_an_outer_folder(tmp_path: Path, folder: str, label: str, classes: int) -> None:
    reader = open_reader("folders", make_folders(tmp_path, {"": {folder: 2}}), classes=classes)
    assert _counts(reader, "all") == {label: 2}


@pytest.mark.parametrize(
    "labels", ["1=anger, 02=disgust,Freude=happy", {1: "anger", "02": "disgust", "Freude": "happy"}]
)
def test_numbers_and_names_in_other_languages_mean_what_the_option_says(tmp_path: Path, labels: object) -> None:
    """A number has no meaning of its own: 1 is surprise in RAF-DB, happiness in AffectNet, disgust in FER2013."""
    root = make_folders(tmp_path, {"": {"1": 3, "02": 2, "Freude": 5, "5_sad": 1}})
    reader = open_reader("folders", root, labels=labels)
    assert _counts(reader, "all") == {"anger": 3, "disgust": 2, "happiness": 5, "sadness": 1}
    assert reader.notes == ["class folders read as 02 = disgust, 1 = anger, 5_sad = sadness, Freude = happiness"]


def test_images_that_no_reader_opens_are_named_and_heic_is_not_skipped(tmp_path: Path) -> None:
    root = make_folders(tmp_path, {"": {"happy": 2, "sad": 3}})
    for name in ("happy/a.heic", "sad/b.CR2", "sad/c.CR2"):
        (root / name).write_bytes(b"photo")
    reader = open_reader("folders", root)
    assert _counts(reader, "all") == {"happiness": 3, "sadness": 3}
    assert reader.notes[1:] == ["2 files ignored: .CR2 is not a supported image"]


def _whole_photos(root: Path, *, around: str = "") -> Path:
    """Two classes of photos with a face off center, one of them without, and the table of `mien label`."""
    drawn = make_photos(root / "drawn", faces=4)
    with (drawn / "labels.csv").open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    table: list[tuple[object, ...]] = [tuple(head)]
    for folder, (file_name, number, *rest) in zip(("happy", "happy", "happy", "sad"), rows, strict=True):
        target = root / around / folder / file_name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(drawn / file_name, target)
        name = target.relative_to(root).as_posix()
        table += [(name, number, *rest), (name, 1, *(float(value) / 2 for value in rest))]  # and a smaller face
    empty = root / around / "sad" / "empty.png"
    shutil.copy(root / around / "sad" / "003.png", empty)
    table.append((empty.relative_to(root).as_posix(), *[""] * (len(head) - 1)))
    write_csv(root / "labels.csv", table)
    shutil.rmtree(drawn)
    return root


@pytest.mark.parametrize("around", ["", "archive/mine"])
def test_the_largest_face_of_whole_photos_is_aligned_by_the_table_of_mien_label(tmp_path: Path, around: str) -> None:
    root = _whole_photos(tmp_path, around=around)
    reader = open_reader("folders", root, images="photos")
    assert _counts(reader, "all") == {"happiness": 3, "sadness": 1}
    assert reader.left_out("all") == {"no face": 1}
    for number, sample in enumerate(reader.samples("all")):
        face, points = draw_face("neutral", number, size_px=80)
        assert np.abs(reader.crop(sample).astype(int) - align(face, points)).mean() < 8


def test_photos_need_a_table_that_knows_them(tmp_path: Path) -> None:
    root = _whole_photos(tmp_path)
    shutil.copy(root / "happy" / "000.png", root / "happy" / "new.png")
    with pytest.raises(DatasetError, match=r"happy/new\.png is not in labels\.csv. Run `mien label` again"):
        open_reader("folders", root, images="photos")
    (root / "labels.csv").unlink()
    with pytest.raises(DatasetError, match=r"images=photos needs a labels\.csv .*run `mien label"):
        open_reader("folders", root, images="photos")


def test_unknown_classes_can_be_ignored(tmp_path: Path) -> None:
    root = make_folders(tmp_path, {"train": {"happy": 2, "contempt": 1, "blurry ones": 2}})
    assert open_reader("folders", root, ignore=["contempt", "blurry ones"]).splits() == ("train",)
    reader = open_reader("folders", root, ignore="contempt, blurry ones")
    assert _counts(reader, "train") == {"happiness": 2}
    assert reader.left_out("train") == {"contempt": 1, "blurry ones": 2}


def test_shares_hold_out_the_same_images_of_every_class_each_time(tmp_path: Path) -> None:
    root = make_folders(tmp_path, {"": {"happy": 20, "sad": 10}})
    reader = open_reader("folders", root, valid_share="0.1", test_share="0.2")
    assert reader.splits() == ("train", "valid", "test")
    assert _counts(reader, "test") == {"happiness": 4, "sadness": 2}
    assert _counts(reader, "valid") == {"happiness": 2, "sadness": 1}
    assert _counts(reader, "train") == {"happiness": 14, "sadness": 7}
    again = open_reader("folders", root, valid_share=0.1, test_share=0.2)
    assert [again.samples(split) for split in again.splits()] == [reader.samples(split) for split in reader.splits()]


def test_validation_is_held_out_of_train_if_there_is_a_test_folder(tmp_path: Path) -> None:
    root = make_folders(tmp_path, {"train": {"happy": 10, "odd": 3}, "test": {"happy": 4}})
    reader = open_reader("folders", root, valid_share=0.2, ignore="odd")
    assert {split: len(reader.samples(split)) for split in reader.splits()} == {"train": 8, "valid": 2, "test": 4}
    assert reader.left_out("train") == {"odd": 3}
    becomes_train = make_folders(tmp_path / "all", {"": {"happy": 10, "odd": 3}})
    assert open_reader("folders", becomes_train, valid_share=0.2, ignore="odd").left_out("train") == {"odd": 3}


def test_an_image_that_cannot_be_read_is_named_with_the_command_that_lists_all(tmp_path: Path) -> None:
    root = make_folders(tmp_path, {"train": {"happy": 1}})
    (root / "train" / "happy" / "train000.png").write_bytes(b"\x89PNG torn")
    reader = open_reader("folders", root)
    with pytest.raises(DatasetError, match=r"train/happy/train000\.png: .*mien data check folders"):
        reader.crop(reader.samples("train")[0])


@pytest.mark.parametrize(
    ("splits", "split"), [({"": dict.fromkeys(LABELS, 2)}, "train"), ({"train": dict.fromkeys(LABELS, 2)}, "valid")]
)
def test_a_split_that_must_be_held_out_first_names_the_options(
    tmp_path: Path, splits: dict[str, dict[str, int]], split: str
) -> None:
    with pytest.raises(DatasetError, match=rf"no split '{split}'.*valid_share=0\.1"):
        open_reader("folders", make_folders(tmp_path, splits)).samples(split)


@pytest.mark.parametrize(
    ("splits", "options", "complaint"),
    [
        ({"train": {"happy": 2, "blurry ones": 2}}, {}, r"train/blurry ones/train000.png: class.*ignore=folder,folder"),
        ({"": {"Contempt": 5, "happy": 5}}, {}, r"class 'Contempt'.*classes=8 adds contempt"),
        ({"": {"happyy": 2}}, {}, "happyy/000"),
        ({"train": {"": 1, "happy": 1}}, {}, r"train/train000\.png is in no class folder"),
        ({"train": {"happy": 1}, "more": {"happy": 1}}, {}, "next to the split folders"),
        ({"happy": {"train": 2, "test": 1}, "sad": {"train": 2, "test": 1}}, {}, "test/happy/"),
        ({"": dict.fromkeys("0123456", 1)}, {}, r"class folders 0, 1, .*the meaning of numbers differs"),
        ({"train": {"01": 1, "happy": 1}}, {}, r"class folders 01: .*option labels, such as labels=01="),
        ({"": dict.fromkeys("0123456", 1)}, {"ignore": "0"}, "class folders 1, 2, 3, 4, 5, 6"),
        ({"": {"1": 1}}, {"labels": {1: "joy", 2: "sad"}}, "labels=2: .*only 1"),
        ({"": {"1": 1}}, {"labels": "1=bored"}, "labels=1=bored: class 'bored'"),
        ({"train": {"4_Happy": 1, "5_Sad": 1}}, {"ignore": "happy"}, "ignore=happy: .*only 4_Happy, 5_Sad"),
        ({"test": {"happy": 1}, "train": {"happy": 9}}, {"test_share": 0.1}, "there is a test folder"),
        ({"valid": {"happy": 2}}, {"test_share": 0.2}, r"test_share=0\.2 .* but there is no train folder"),
        ({"": {"happy": 4}}, {"valid_share": 0.1}, r"0.1 of 4 images .* increase valid_share to 0.25"),
        ({"": {"happy": 4}}, {"valid_share": 0.6, "test_share": 0.4}, "expected shares"),
        ({"": {"happy": 4}}, {"valid_share": -0.1}, "expected shares"),
    ],
)
def test_folders_and_shares_that_give_no_splits_are_named(
    tmp_path: Path, splits: dict[str, dict[str, int]], options: dict[str, object], complaint: str
) -> None:
    with pytest.raises(DatasetError, match=complaint):
        open_reader("folders", make_folders(tmp_path, splits), **options)
