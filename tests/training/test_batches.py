"""Batches of a data set: a subset of each class, shares of sources, and cached crops."""

import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from mien.data.contract import LABELS, decode
from mien.data.readers.base import Reader, Sample
from mien.training.config import DataSource
from mien.training.data import FaceBatches, Split, epoch_counts, epoch_order, join, log_frequencies, read_split
from tests.support.data_sets import make_all_different, make_folders, write_image
from tests.support.training import data_of, drawn_faces, small_recipe


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drawn_faces(tmp_path_factory.mktemp("sources") / "faces", train=10, valid=1)


def load(root: Path, **changes: object) -> Split:
    source = DataSource(kind="folders", split="train", root=root, **changes)  # type: ignore[arg-type]
    return read_split(source, color="luminance", cache_dir=root.parent / "cache")


def test_a_fraction_takes_its_share_of_each_class_and_is_a_subset_of_a_larger_one(root: Path) -> None:
    whole, most, few = (load(root, fraction=fraction) for fraction in (1.0, 0.5, 0.2))
    assert np.bincount(whole.labels).tolist() == [25, 4, 4, 11, 11, 8, 8]
    assert np.bincount(most.labels).tolist() == [12, 2, 2, 5, 5, 4, 4]
    assert np.bincount(few.labels).tolist() == [5, 0, 0, 2, 2, 1, 1]
    assert set(few.keys) < set(most.keys) < set(whole.keys)
    assert np.array_equal(few.crops, whole.crops[[whole.keys.index(key) for key in few.keys]])


def test_a_source_with_a_share_has_it_in_each_epoch_and_all_its_faces_before_one_repeats(root: Path) -> None:
    sizes, shares = (80, 5, 15), (None, 0.3, None)
    sources = epoch_counts(sizes, shares)
    assert sources == [(80, 59), (5, 30), (15, 11)]
    orders = [epoch_order(sources, seed=0, epoch=epoch) for epoch in (0, 1)]
    assert not np.array_equal(*orders)
    drawn = np.bincount(orders[0], minlength=100)
    assert drawn[80:85].tolist() == [6] * 5
    assert drawn[:80].max() == drawn[85:].max() == 1
    assert np.std(np.flatnonzero((orders[0] >= 80) & (orders[0] < 85))) > 20, "spread over the epoch"
    assert epoch_counts(sizes, [None] * 3) == [(100, 100)]
    data = data_of(root)
    (source,) = data["train"]
    two = source | {"options": {"classes": ["fear", "anger"], "ignore": [*LABELS[2:5], "surprise", "neutral"]}}
    recipe = small_recipe(root, data=data | {"train": [source, two | {"share": 0.5}]})
    parts = [read_split(part) for part in recipe.data.train]
    expected = 0.5 + 0.5 * parts[0].targets[:, [1, 5]].sum() / len(parts[0])
    assert FaceBatches(join(parts), recipe).frequencies[[1, 5]].sum() == pytest.approx(expected, abs=0.01)


def test_a_spawned_worker_gets_the_files_of_cached_crops_and_not_their_pixels(root: Path) -> None:
    batches = FaceBatches(join([load(root)] * 2), small_recipe(root))
    sent = pickle.dumps(batches)
    assert len(sent) < 0.1 * load(root).crops.nbytes
    assert torch.equal(pickle.loads(sent)[0].crops, batches[0].crops)  # noqa: S301 (written above)


def test_a_class_without_faces_is_as_frequent_as_the_others_on_average() -> None:
    found = log_frequencies(np.array([0.8, 0.0, 0.2], np.float32))
    assert found == pytest.approx([np.log(0.8), (np.log(0.8) + np.log(0.2)) / 2, np.log(0.2)])


def test_files_are_read_once_until_one_of_them_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_folders(tmp_path / "set", {"train": {"happy": 3, "sad": 3}, "valid": {"happy": 2}})
    make_all_different(root)
    options = {"exclude_near_duplicates_of": ["valid"]}
    source, files = DataSource(kind="folders", split="train", root=root, options=options), Counter[str]()

    def counted(reader: Reader, sample: Sample, read: Callable[[Reader, Sample], bytes] = Reader.read_bytes) -> bytes:
        files[sample.key] += 1
        return read(reader, sample)

    def read(cache_dir: Path | None = tmp_path / "cache") -> tuple[Split, set[int]]:
        """The split, and how often its files were read."""
        files.clear()
        split = read_split(source, cache_dir=cache_dir)
        return split, {files[key.removeprefix("folders/")] for key in split.keys}

    monkeypatch.setattr(Reader, "read_bytes", counted)
    monkeypatch.setattr("mien.training.data.HASHES_DIR", tmp_path / "hashes")
    before, reads = read()
    assert reads == {3}, "to compare it with validation, for the hash, and to decode it"
    again, reads = read()
    assert (again.index_sha256, reads) == (before.index_sha256, {0})
    assert np.array_equal(again.crops, before.crops)
    assert [read(cache_dir=None)[1] for _ in range(2)] == [{3}, {1}], "hashes are kept without a cache of crops"
    path = root / before.keys[3].removeprefix("folders/")
    write_image(path, 255 - decode(path.read_bytes()))
    after, reads = read()
    assert (after.keys, reads) == (before.keys, {3})
    changed = [not np.array_equal(*crops) for crops in zip(before.crops, after.crops, strict=True)]
    assert np.flatnonzero(changed).tolist() == [3]
    path.rename(root / "train" / "happy" / "moved.png")
    hashes = {before.index_sha256, after.index_sha256, read()[0].index_sha256}
    source = source.model_copy(update={"options": options | {"labels": {"sad": "fear"}}})
    assert len(hashes | {read()[0].index_sha256}) == 4, "the file, its folder, and its label"
