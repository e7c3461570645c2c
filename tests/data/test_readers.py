"""Tests of all readers in data/readers/, which are discovered automatically."""

import re
import shutil
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from mien.data.contract import CROP_PX
from mien.data.errors import DatasetError
from mien.data.readers.base import Reader, ReaderOptions, Sample, index_sha256, kinds, open_reader, reader_of
from tests.support import data_sets, folder_from_environment
from tests.support.data_sets import make_all_different, make_ferplus, write_image

KINDS = kinds()
EYES_AND_MOUTH = ((35, 42), (77, 42), (39, 85), (73, 85))


@pytest.fixture(scope="module", params=KINDS)
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    make = getattr(data_sets, f"make_{request.param}")
    return open_reader(request.param, make(tmp_path_factory.mktemp(request.param)))


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_folder_is_rejected_with_the_place_to_get_the_set(kind: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=re.escape(str(tmp_path))) as caught:
        open_reader(kind, tmp_path)
    assert reader_of(kind).where_to_get in str(caught.value)
    with pytest.raises(DatasetError, match=f"{kind}: no option 'shade', expected one of "):
        open_reader(kind, tmp_path, shade="gray")


def test_images_that_resemble_one_of_another_split_are_left_out_and_counted(tmp_path: Path) -> None:
    make_all_different(make_ferplus(tmp_path))
    reader = open_reader("ferplus", tmp_path)
    copies = reader.samples("train")[1:3]
    for copy, original in zip(copies, reader.samples("valid"), strict=False):
        brighter = reader.image(original) * 0.8 + 20  # of less contrast
        write_image(tmp_path / reader.path_of(copy), brighter.astype(np.uint8))
    clean = open_reader("ferplus", tmp_path, exclude_near_duplicates_of="valid")
    assert [sample for sample in reader.samples("train") if sample not in clean.samples("train")] == copies
    assert clean.left_out("train")["near-duplicates of valid"] == 2
    assert clean.samples("valid") == reader.samples("valid")
    assert clean.expected_counts() == {}


def test_samples_are_sorted_complete_and_the_same_every_time_and_from_a_zip(small: Reader, tmp_path: Path) -> None:
    wrapped = tmp_path / "wrapped"
    shutil.copytree(small.root, wrapped / "some" / "folder")
    zipped = open_reader(small.kind, Path(shutil.make_archive(str(tmp_path / "archive"), "zip", wrapped)))
    for split in small.splits():
        samples = small.samples(split)
        assert samples == open_reader(small.kind, small.root).samples(split) == zipped.samples(split)
        assert index_sha256(zipped, split) == index_sha256(small, split)
        keys = [sample.key for sample in samples]
        assert keys == sorted(set(keys))
        assert {sample.split for sample in samples} == {split}
        assert {sample.label for sample in samples} <= {*small.labels, None}
        assert all(sum(sample.distribution or (1,)) == pytest.approx(1) for sample in samples)
        for crop in map(small.crop, samples):  # the eyes and corners of the mouth are where the template has them
            assert crop.shape == (CROP_PX, CROP_PX, 3)
            for (x, y), darkest in zip(EYES_AND_MOUTH, (75, 75, 103, 103), strict=True):
                assert crop[y - 2 : y + 3, x - 2 : x + 3].mean(axis=2).min() < darkest


RAF_DB_LABELS = "EmoLabel/list_patition_label.txt"


@pytest.mark.parametrize(
    ("kind", "file", "was", "becomes", "complaint"),
    [
        ("affectnet", "training.csv", r",0\n", r",-1\n", r"training.csv line 2: KeyError\(-1\)"),
        ("expressions", "labels.csv", ",surprise,", ",bored,", "labels.csv line 2"),
        ("expressions", "labels.csv", ",certain,", ",sure,", r"labels.csv line 2: KeyError\('sure'\)"),
        ("expressions", "faces.csv", "20,20,80,80,", "20,20,80,-,", "faces.csv line 2"),
        ("ferplus", "FER2013Train/label.csv", r",0\n", r"\n", r"label.csv line 1: .*'expected a file.* 10 vote counts"),
        ("muxspace", "labels.csv", ",surprise,", ",bored,", "labels.csv line 2"),
        ("raf_db", RAF_DB_LABELS, "1.jpg 1", "1.jpg 8", "line 1.*1` to 7"),
        ("raf_db", RAF_DB_LABELS, r"\Z", "train_00001.jpg 2", "train_00001 is both surprise and fear"),
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
        open_reader(kind, root).samples("train")


@pytest.mark.parametrize("shares", [(1 / 8,) * 8, (0.5,) * 7, (1.5, -0.5, 0, 0, 0, 0, 0), (float("nan"),) * 7])
def test_shares_that_are_not_one_per_label_with_a_sum_of_one_are_named(
    shares: tuple[float, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reader, "read", lambda _: [Sample("1.png", "train", "fear", shares)])
    with pytest.raises(DatasetError, match=r"own: 1\.png: shares \(.*expected 7 that sum to 1"):
        type("Own", (Reader,), {"kind": "own", "where_to_get": "."})(tmp_path, ReaderOptions())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if reader_of(kind).published])
def test_every_reader_meets_its_published_counts_with_crops_that_show_something(kind: str) -> None:
    if not (root := folder_from_environment("MIEN_DATA_DIR") / kind).exists():
        pytest.skip(f"{root} is not there: {kind} is not held against its published counts")
    reader = open_reader(kind, root)
    published = reader.expected_counts()
    for split in {*reader.splits()} & {*published}:
        samples = reader.samples(split)
        assert Counter(sample.label for sample in samples) == published[split]
        assert all(reader.crop(sample).std() > 5 for sample in islice(samples, 0, None, 500))
