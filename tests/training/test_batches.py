"""Batches of a data set: a subset of each class, faces without labels, augmentation, mixup and cutmix."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mien.data.augment import Augment, AugmentConfig
from mien.data.contract import LABELS, decode
from mien.data.tree import DatasetError
from mien.training.batches import FaceBatches, epoch_order, mix
from mien.training.config import DataSource, FoldConfig, MixConfig
from mien.training.faces import Split, _write_cache, join, read_split
from mien.training.losses import cross_entropy
from mien.training.runtime import World
from tests.support.data_sets import (
    copy_brighter,
    ferplus_votes,
    make_all_different,
    make_ferplus,
    make_photos,
    write_image,
)
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
    for part in (most, few, load(root, fraction=0.45)):
        places = [whole.keys.index(key) for key in part.keys]
        assert np.array_equal(part.crops, whole.crops[places])
        assert np.array_equal(part.labels, whole.labels[places])


def test_clean_faces_are_those_of_the_fraction(tmp_path: Path) -> None:
    clear = [ferplus_votes(label) for label in LABELS]
    root = make_ferplus(tmp_path, {"FER2013Train": clear, "FER2013Valid": clear * 4})
    make_all_different(root)
    for number in (9, 15, 16):
        copy_brighter(root / "FER2013Train" / "fer0000001.png", root / "FER2013Valid" / f"fer00000{number:02}.png")
    source = DataSource(kind="ferplus", split="valid", root=root)
    whole, half = (
        read_split(source.model_copy(update={"fraction": fraction}), find_clean=True) for fraction in (1.0, 0.5)
    )
    assert np.count_nonzero(~whole.clean) == 3
    assert 0 < np.count_nonzero(~half.clean) < 3
    assert half.clean.tolist() == [whole.clean[whole.keys.index(key)] for key in half.keys]


def test_changed_pixels_of_a_file_are_not_read_from_the_cache(tmp_path: Path) -> None:
    """Not even if its name, size and time stay the same."""
    root = drawn_faces(tmp_path / "faces", train=2, valid=1)
    before = load(root)
    path = root / before.keys[3].removeprefix("folders/")
    when = path.stat()
    write_image(path, 255 - decode(path.read_bytes()))
    os.utime(path, ns=(when.st_atime_ns, when.st_mtime_ns))
    after = load(root)
    assert after.keys == before.keys
    assert [
        index for index in range(len(after.keys)) if not np.array_equal(after.crops[index], before.crops[index])
    ] == [3]


def test_a_face_is_drawn_in_another_order_and_augmented_differently_each_time(root: Path) -> None:
    whole = load(root)
    kept = np.flatnonzero(whole.labels > 0)[:-1]
    kept = np.concatenate([np.flatnonzero(whole.labels == 0)[:1], kept])  # one face of a class, ten of the others
    part = whole[kept]
    data = data_of(root) | {"sampler": "class"}
    recipe = small_recipe(root, batch_size=len(part), data=data)
    orders = [epoch_order(part.labels, seed=0, epoch=epoch, sampler="class") for epoch in (0, 1)]
    assert not np.array_equal(*orders)
    batches, again = (FaceBatches(part, recipe) for _ in range(2))
    rare = torch.cat([batches[epoch].crops[order == 0] for epoch, order in enumerate(orders)])
    assert min(np.count_nonzero(order == 0) for order in orders) > 3
    assert len(torch.unique(rare, dim=0)) == len(rare)
    assert torch.equal(batches[0].crops, again[0].crops)
    assert batches.keys(0) == [part.keys[index] for index in orders[0]]


@pytest.mark.parametrize("sources", [1, 2])
def test_a_spawned_worker_gets_the_files_of_cached_crops_and_not_their_pixels(root: Path, sources: int) -> None:
    batches = FaceBatches(join([load(root)] * sources), small_recipe(root))
    sent = pickle.dumps(batches)
    assert len(sent) < 0.1 * load(root).crops.nbytes
    assert torch.equal(pickle.loads(sent)[0].crops, batches[0].crops)  # noqa: S301 (written above)


def test_faces_for_the_teacher_have_no_label_for_samplers_or_in_the_loss(root: Path) -> None:
    parts = [load(root), load(root, target="teacher")]
    joined = join(parts)
    assert np.bincount(joined.labels + 1).tolist() == [71, 25, 4, 4, 11, 11, 8, 8]
    assert np.array_equal(joined.crops[75], parts[1].crops[4])
    targets = torch.from_numpy(np.concatenate([part.targets[:7] for part in parts]))
    logits = torch.randn(14, 7, generator=torch.Generator().manual_seed(0), requires_grad=True)
    (gradient,) = torch.autograd.grad(cross_entropy(logits, targets), logits)
    assert gradient[:7].abs().min() > 0
    assert gradient[7:].abs().max() == 0


def test_a_cache_folder_that_cannot_be_created_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    with pytest.raises(DatasetError, match=r"cannot write decoded faces .*Choose another data\.cache_dir"):
        _write_cache(tmp_path / "file" / "cache.npy", iter([]), 3, channels=1)


@pytest.mark.parametrize("fold", [None, FoldConfig(of=2, index=0, take="fold", group_by="near_duplicates")])
def test_a_fraction_without_a_face_is_an_error(tmp_path: Path, fold: FoldConfig | None) -> None:
    root = drawn_faces(tmp_path / "faces", train=3, valid=1)
    source = DataSource(kind="folders", split="train", root=root, fraction=0.1, fold=fold)
    with pytest.raises(DatasetError, match=r"no faces of split 'train' are left of 20: fraction 0\.1.*Increase"):
        read_split(source, color="luminance", cache_dir=tmp_path / "cache")


def test_a_set_without_labels_names_the_target_that_needs_none(tmp_path: Path) -> None:
    source = DataSource(kind="photos", split="train", root=make_photos(tmp_path))
    with pytest.raises(DatasetError, match=r"split 'train' has no faces labeled surprise.*target: teacher"):
        read_split(source, color="luminance", cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("notation", ["auto", "rand-m9.5", "rand-w0", "rand-p0.5.5"])
def test_a_notation_that_timm_does_not_know_is_rejected(notation: str) -> None:
    with pytest.raises(ValueError, match="expected timm's notation"):
        AugmentConfig(rand_augment=notation)


STRONGEST: dict[str, float] = dict.fromkeys(("brightness", "contrast", "gamma", "blur", "noise", "erase"), 1.0)


@pytest.mark.parametrize(
    "strengths", [{"rand_augment": "rand-m0-n9-p1"}, {"rand_augment": "rand-m10-n9-p1-inc1"}, STRONGEST]
)
def test_augmentation_accepts_its_smallest_and_largest_strengths(strengths: dict[str, Any]) -> None:
    augment, crop = Augment(AugmentConfig(**strengths)), np.full((112, 112, 1), 90, np.uint8)
    assert {augment(crop, seed=seed).shape for seed in range(20)} == {crop.shape}


def batch(count: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    draw = np.random.default_rng(0)
    crops = torch.from_numpy(draw.integers(0, 256, (count, 16, 16, 1), dtype=np.uint8))
    return crops, torch.eye(7)[torch.arange(count) % 7]


@pytest.mark.parametrize("config", [MixConfig(mixup=0.8), MixConfig(cutmix=1.0), MixConfig(mixup=0.8, cutmix=1.0)])
def test_crops_and_targets_are_mixed_equally_with_the_reversed_batch(config: MixConfig) -> None:
    crops, targets = batch(6)
    for step in range(10):
        mixed, shares = mix(crops, targets, config, seed=0, step=step)
        assert mixed.dtype == torch.uint8
        torch.testing.assert_close(shares.sum(dim=1), torch.ones(6))
        share = float(shares[0, 0])
        own = (mixed == crops).float().mean().item()
        blend = crops.float() * share + crops.flip(0).float() * (1 - share)
        is_cut = bool(((mixed == crops) | (mixed == crops.flip(0))).all())
        assert is_cut or float((mixed.float() - blend).abs().max()) <= 0.5
        if is_cut:
            assert own == pytest.approx(share, abs=0.03)  # only the box, except for pixels that happen to be equal


def test_mixing_depends_on_seed_and_step_only() -> None:
    crops, targets = batch()
    config = MixConfig(mixup=0.8, cutmix=1.0)
    first = mix(crops, targets, config, seed=3, step=7)
    torch.rand(5)
    np.random.default_rng().random()
    again = mix(crops, targets, config, seed=3, step=7)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    for seed, step in ((3, 8), (4, 7)):
        assert not torch.equal(first[1], mix(crops, targets, config, seed=seed, step=step)[1])


def test_both_kinds_are_drawn_and_a_share_of_batches_is_unchanged() -> None:
    crops, targets = batch()
    config = MixConfig(mixup=0.8, cutmix=1.0, probability=0.5)
    results = [mix(crops, targets, config, seed=0, step=step)[0] for step in range(60)]
    alone = sum(torch.equal(result, crops) for result in results)
    cut = sum(bool(((result == crops) | (result == crops.flip(0))).all()) for result in results) - alone
    assert 20 <= alone <= 40
    assert 8 <= cut <= 24
    assert mix(crops, targets, MixConfig(), seed=0, step=0)[0] is crops


def test_two_processes_mix_like_one() -> None:
    crops, targets = batch()
    config = MixConfig(mixup=0.8, cutmix=1.0)
    whole = mix(crops, targets, config, seed=1, step=2)
    shards = [World(rank, 2).shard(np.arange(8)) for rank in range(2)]
    assert sorted(np.concatenate(shards)) == list(range(8))
    for mine in shards:
        part = mix(crops[mine], targets[mine], config, seed=1, step=2)
        assert torch.equal(part[0], whole[0][mine])
        torch.testing.assert_close(part[1], whole[1][mine])
