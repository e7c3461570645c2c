"""Class folders with custom images."""

import shutil
from collections import Counter
from pathlib import Path

import pytest

from mien.data.errors import DatasetError
from mien.data.readers.base import Reader, open_reader
from tests.support.data_sets import make_folders


def _counts(reader: Reader, split: str) -> dict[str | None, int]:
    return dict(Counter(sample.label for sample in reader.samples(split)))


def test_splits_and_classes_are_read_in_any_spelling_and_numbers_and_other_languages_by_the_option(
    tmp_path: Path,
) -> None:
    """A number has no meaning of its own: 1 is surprise in RAF-DB, happiness in AffectNet, disgust in FER2013."""
    splits = {"Training": {"Happy": 2, "4_sadness": 1, "1": 3, "02": 2}, "val": {"2.Traurig": 2}, "TEST": {"anger": 1}}
    root = make_folders(tmp_path, splits)
    for labels in ("1=anger, 02=disgust,2.Traurig=sad", {1: "anger", "02": "disgust", "2.Traurig": "sad"}):
        reader = open_reader("folders", root, labels=labels)
        assert {split: _counts(reader, split) for split in reader.splits()} == {
            "train": {"happiness": 2, "sadness": 1, "anger": 3, "disgust": 2},
            "valid": {"sadness": 2},
            "test": {"anger": 1},
        }


def test_deeper_folders_are_read_and_what_is_ignored_is_named_but_heic_is_not_skipped(tmp_path: Path) -> None:
    root = make_folders(tmp_path, {"train": {"happy": 1}})
    happy = root / "train" / "happy"
    (happy / "notes.txt").write_text("mine", encoding="utf-8")
    (happy / "test").mkdir()
    shutil.copy(happy / "train000.png", happy / "test" / "a.JPEG")
    shutil.copy(happy / "train000.png", root / "loose.png")
    for name in ("a.heic", "b.CR2", "c.CR2"):
        (happy / name).write_bytes(b"photo")
    reader = open_reader("folders", root)
    assert _counts(reader, "train") == {"happiness": 3}
    assert sorted(reader.notes) == [
        "1 images ignored: in no class folder, such as loose.png",
        "2 files ignored: .CR2 is not a supported image",
        "class folders read as happy = happiness",
    ]


def test_shares_hold_out_the_same_images_of_every_class_each_time_and_unknown_classes_are_ignored(
    tmp_path: Path,
) -> None:
    root = make_folders(tmp_path / "all", {"": {"happy": 20, "sad": 10}})
    reader = open_reader("folders", root, valid_share="0.1", test_share="0.2")
    assert _counts(reader, "test") == {"happiness": 4, "sadness": 2}
    assert _counts(reader, "valid") == {"happiness": 2, "sadness": 1}
    assert _counts(reader, "train") == {"happiness": 14, "sadness": 7}
    again = open_reader("folders", root, valid_share=0.1, test_share=0.2)
    assert [again.samples(split) for split in again.splits()] == [reader.samples(split) for split in reader.splits()]
    root = make_folders(tmp_path / "odd", {"train": {"happy": 10, "odd ones": 3, "fun": 1}, "test": {"happy": 4}})
    reader = open_reader("folders", root, valid_share=0.2, ignore="odd ones, fun")
    assert {split: len(reader.samples(split)) for split in reader.splits()} == {"train": 8, "valid": 2, "test": 4}
    assert reader.left_out("train") == {"odd ones (ignored)": 3, "fun (ignored)": 1}


@pytest.mark.parametrize(
    ("splits", "options", "complaint"),
    [
        ({"train": {"happy": 2, "blurry ones": 2}}, {}, r"train/blurry ones/train000.png: class.*ignore=folder,folder"),
        ({"train": {"": 1, "happy": 1}}, {}, r"train/train000\.png is in no class folder"),
        ({"train": {"happy": 1}, "more": {"happy": 1}}, {}, "next to the split folders"),
        ({"happy": {"train": 2, "test": 1}, "sad": {"train": 2, "test": 1}}, {}, "test/happy/"),
        ({"": {"0": 1, "happy": 1}}, {}, r"0/000.png: class '0': .*names the classes of other folders, such as numb"),
        ({"": {"1": 1}}, {"labels": {1: "joy", 2: "sad"}}, "labels=2: .*only 1"),
        ({"train": {"4_Happy": 1, "5_Sad": 1}}, {"ignore": "happy"}, "ignore=happy: .*only 4_Happy, 5_Sad"),
        ({"test": {"happy": 1}, "train": {"happy": 9}}, {"test_share": 0.1}, "there is a test folder"),
        ({"": {"happy": 4}}, {"valid_share": 0.1}, r"0.1 of 4 images .* increase valid_share to 0.25"),
        ({"": {"happy": 4}}, {}, r"no split 'valid'.*valid_share=0\.1"),
        ({"": {"happy": 4}}, {"valid_share": 0.6, "test_share": 0.4}, "expected shares"),
    ],
)
def test_folders_and_shares_that_give_no_splits_are_named(
    tmp_path: Path, splits: dict[str, dict[str, int]], options: dict[str, object], complaint: str
) -> None:
    with pytest.raises(DatasetError, match=complaint):
        open_reader("folders", make_folders(tmp_path, splits), **options).samples("valid")
