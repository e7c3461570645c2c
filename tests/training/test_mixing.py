"""Mixup and cutmix."""

import numpy as np
import pytest
import torch

from mien.training.batches import mix
from mien.training.config import MixConfig
from mien.training.runtime import World


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
