"""Tests of all readers in data/readers/, which are discovered automatically."""

import os
import pickle
import re
import shutil
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from mien.data.contract import CROP_PX
from mien.data.readers.base import Reader, Sample, index_sha256, open_reader, readers
from mien.data.tree import DatasetError
from tests.support import data_sets
from tests.support.data_sets import copy_brighter, make_all_different, make_folders

KINDS = list(readers())


@pytest.fixture(scope="module", params=KINDS)
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    make = getattr(data_sets, f"make_{request.param}", None)
    if make is None:
        pytest.skip(f"{request.param}: tests/support/data_sets.py has no make_{request.param} that draws its layout")
    return open_reader(request.param, make(tmp_path_factory.mktemp(request.param)))


@pytest.fixture(params=KINDS)
def real(request: pytest.FixtureRequest) -> Reader:
    kind, folder = request.param, os.environ.get("MIEN_DATA_DIR")
    if not folder:
        pytest.skip(f"MIEN_DATA_DIR is not set: {kind} is not held against its published counts")
    root = Path(folder) / kind
    if not root.exists():
        pytest.skip(f"{root} is not there: {kind} is not held against its published counts")
    return open_reader(kind, root)


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_folder_is_rejected_with_the_place_to_get_the_set(kind: str, tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "absent"):
        with pytest.raises(DatasetError) as caught:
            open_reader(kind, root)
        assert readers()[kind].where_to_get in str(caught.value)
        assert str(root) in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "options", "complaint"),
    [
        ("fer2013", {}, r"'fer2013': expected one of affectnet, expw, ferplus, folders, .*raf_db"),
        ("expw", {"color": "gray"}, "expw: no option 'color', expected one of min_confidence"),
        ("ferplus", {"classes": "9"}, "classes=9: Input should be 7 or 8"),
        ("ferplus", {"protocol": "best"}, "protocol='best': Input should be 'majority' or 'probability'"),
        ("raf_db", {"hold_out_valid": "maybe"}, "hold_out_valid='maybe': .*boolean"),
        ("folders", {"valid_share": "much"}, "valid_share='much': .*number"),
        ("folders", {"labels": ["anger"]}, r"labels=\['anger'\]: Input"),
        ("folders", {"exclude_near_duplicates_of": 5}, "exclude_near_duplicates_of=5: Input"),
    ],
)
def test_an_unknown_kind_and_an_unknown_or_invalid_option_are_explained(
    kind: str, options: dict[str, object], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(DatasetError, match=complaint):
        open_reader(kind, tmp_path, **options)


EXCLUDING = [kind for kind, reader in readers().items() if reader.can_exclude]


@pytest.mark.parametrize("kind", EXCLUDING)
def test_images_that_resemble_one_of_another_split_are_left_out_and_counted(kind: str, tmp_path: Path) -> None:
    root = getattr(data_sets, f"make_{kind}")(tmp_path)
    make_all_different(root)
    reader = open_reader(kind, root)
    last = reader.splits()[-1]
    pairs = list(zip(reader.samples("train")[1:3], reader.samples(last)[:2], strict=True))
    for copy, original in pairs:
        copy_brighter(root / reader.path_of(original), root / reader.path_of(copy))
    clean = open_reader(kind, root, exclude_near_duplicates_of=[last])
    gone = {sample.key for sample in reader.samples("train")} - {sample.key for sample in clean.samples("train")}
    assert gone == {copy.key for copy, _ in pairs}
    assert clean.left_out("train")[f"near-duplicates of {last}"] == 2
    assert clean.samples(last) == reader.samples(last)
    if reader.has_clean_faces:
        assert reader.clean(last).tolist() == [False, False] + [True] * (len(reader.samples(last)) - 2)
    with pytest.raises(DatasetError, match=r"exclude_near_duplicates_of=dev, but .* has no such split"):
        open_reader(kind, root, exclude_near_duplicates_of="train,dev").samples(last)


def test_samples_are_sorted_complete_the_same_every_time_and_after_pickling(small: Reader) -> None:
    again = open_reader(small.kind, small.root)
    copy = pickle.loads(pickle.dumps(small))  # noqa: S301 - our own bytes
    for split in small.splits():
        samples = small.samples(split)
        assert samples
        assert samples == again.samples(split) == copy.samples(split)
        assert copy.read_bytes(samples[0]) == small.read_bytes(samples[0])
        keys = [sample.key for sample in samples]
        assert keys == sorted(set(keys))
        assert {sample.split for sample in samples} == {split}
        assert {sample.label for sample in samples} <= {*small.labels, None}
        assert all(small.path_of(sample) in small.tree for sample in samples)
        assert {(crop.shape, crop.dtype.name) for crop in map(small.crop, samples)} == {
            ((CROP_PX, CROP_PX, 3), "uint8")
        }
    with pytest.raises(DatasetError, match=f"no split 'dev'.*{small.splits()[0]}"):
        small.samples("dev")


def test_a_zip_of_a_set_equals_its_folder(small: Reader, tmp_path: Path) -> None:
    wrapped = tmp_path / "wrapped"
    shutil.copytree(small.root, wrapped / "some" / "folder")
    archive = Path(shutil.make_archive(str(tmp_path / "archive"), "zip", wrapped))
    zipped = open_reader(small.kind, archive)
    for split in small.splits():
        assert [sample.key for sample in zipped.samples(split)] == [sample.key for sample in small.samples(split)]
        assert index_sha256(zipped, split) == index_sha256(small, split)


def test_the_index_hash_changes_with_a_file_and_with_a_label(tmp_path: Path) -> None:
    root = make_folders(tmp_path, {"": {"happy": 2, "sad": 2}})
    before = index_sha256(open_reader("folders", root), "all")
    assert before == index_sha256(open_reader("folders", root), "all")
    moved = root / "sad" / "000.png"
    moved.rename(root / "happy" / "900.png")
    after_move = index_sha256(open_reader("folders", root), "all")
    (root / "happy" / "000.png").write_bytes((root / "happy" / "001.png").read_bytes())
    assert len({before, after_move, index_sha256(open_reader("folders", root), "all")}) == 3


ANNOTATION = "Annotation/manual/train_00001_manu_attri.txt"
RAF_DB_LABELS = "EmoLabel/list_patition_label.txt"


@pytest.mark.parametrize(
    ("kind", "file", "was", "becomes", "complaint"),
    [
        ("affectnet", "training.csv", ",0,0.1", ",11,0.1", r"training.csv line 2: KeyError\(11\)"),
        ("affectnet", "training.csv", "100,100,[^,]*", "100,100,1;2;3", "training.csv line 2: .*reshape"),
        ("expw", "label/label.lst", " 110 .*", "", "label.lst line 1: 5 fields; expected image, face number"),
        ("expw", "label/label.lst", r"5 0\n", r"5 7\n", "label.lst line 1: .*label 0 to 6"),
        ("expw", "label/label.lst", r"5 0\n", r"5 -1\n", "label.lst line 1: label -1"),
        ("expw", "label/label.lst", r"\S+ 0\n", r"x 0\n", "label.lst line 1: could not convert"),
        ("affectnet", "training.csv", ",0,0.1", ",-1,0.1", r"training.csv line 2: KeyError\(-1\)"),
        ("expw", "label/label.lst", "20 10 100 110", "20 100 10 110", "label.lst line 1: box from"),
        ("ferplus", "FER2013Train/label.csv", r",0\n", r"\n", "label.csv line 1: expected .* 10 vote counts"),
        ("ferplus", "FER2013Train/label.csv", r",0\n", r",x\n", "label.csv line 1"),
        ("ferplus", "FER2013Train/label.csv", r",0\n", r",-1\n", "label.csv line 1"),
        ("muxspace", "labels.csv", ",train,", ",dev,", "labels.csv line 2"),
        ("muxspace", "labels.csv", ",surprise,", ",bored,", "labels.csv line 2"),
        ("photos", "labels.csv", "0.95", "sure", "labels.csv line 2"),
        ("raf_db", RAF_DB_LABELS, "1.jpg 1", "1.jpg 8", "line 1.*1` to 7"),
        ("raf_db", RAF_DB_LABELS, "1.jpg 1", "1.jpg", "line 1.*1` to 7"),
        ("raf_db", RAF_DB_LABELS, "train_00001", "image", "line 1.*1` to 7"),
        ("raf_db", RAF_DB_LABELS, r"\Z", "train_00001.jpg 2", "jpg is fear here, but surprise in an earlier line"),
        ("raf_db", ANNOTATION, "(?s).+", "1 2 3", "train_00001_manu_attri.txt: .*found 3 numbers"),
        ("raf_db", ANNOTATION, "(?s).+", "a b", "train_00001_manu_attri.txt: .*could not convert"),
    ],
)
def test_a_malformed_line_is_named(
    tmp_path: Path, kind: str, file: str, was: str, becomes: str, complaint: str
) -> None:
    root = getattr(data_sets, f"make_{kind}")(tmp_path)
    text = (root / file).read_text(encoding="utf-8")
    changed = re.sub(was, becomes, text, count=1)
    assert changed != text
    (root / file).write_text(changed, encoding="utf-8")
    with pytest.raises(DatasetError, match=complaint):
        _all_samples(kind, root)


def _all_samples(kind: str, root: Path) -> list[list[Sample]]:
    reader = open_reader(kind, root, **({"images": "original"} if kind == "raf_db" else {}))
    return [reader.samples(split) for split in reader.splits()]


@pytest.mark.timeout(300)
def test_every_reader_meets_its_published_counts(real: Reader) -> None:
    published = real.expected_counts()
    if not published:
        pytest.skip(f"{real.kind} publishes no counts")
    for split in set(published) & set(real.splits()):
        found = Counter(sample.label for sample in real.samples(split))
        assert dict(found) == dict(published[split])
    assert {"train", "valid"} <= set(real.splits())


def test_real_samples_give_crops_that_show_something(real: Reader) -> None:
    for split in real.splits():
        for sample in islice(real.samples(split), 0, None, 500):
            assert real.crop(sample).std() > 5
