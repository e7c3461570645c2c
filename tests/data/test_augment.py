"""Augmentation: independent steps, full ranges, equal results for equal seeds."""

import math

import numpy as np
import pytest
import torch

from mien.data.augment import Augment, AugmentConfig

SEEDS = 400
PROBABILITIES = {"Erasing": 0.25, "GaussNoise": 0.1, "GaussianBlur": 0.1, "ImageCompression": 0.1, "RandomGamma": 0.3}


def test_steps_are_independent_of_each_other_and_reach_both_ends_of_their_ranges() -> None:
    augment, crop = Augment(AugmentConfig()), np.random.default_rng(0).integers(0, 256, (112, 112, 1), np.uint8)
    draws = []
    for seed in range(SEEDS):
        augment(crop, seed=seed)
        steps = augment._compose.transforms
        draws.append({type(step).__name__: dict(step.params) for step in steps if step.params})
    for is_mirrored in (True, False):
        chosen = [drawn for drawn in draws if ("HorizontalFlip" in drawn) is is_mirrored]
        for step, share in PROBABILITIES.items():
            count = sum(step in drawn for drawn in chosen) / SEEDS
            assert count == pytest.approx(share / 2, abs=3 * math.sqrt(share / 2 * (1 - share / 2) / SEEDS)), step
        affine = [drawn["Affine"] for drawn in chosen]
        moved = np.array([drawn["matrix"] @ (55.5, 55.5, 1.0) for drawn in affine]) - (55.5, 55.5, 1.0)
        for low, high, values in (
            (0.85, 1.15, [drawn["scale"]["x"] for drawn in affine]),
            (-15, 15, [drawn["rotate"] for drawn in affine]),
            (-9, 9, moved[:, 0]),
            (-9, 9, moved[:, 1]),
            (0.8, 1.2, [drawn["RandomGamma"]["gamma"] for drawn in chosen if "RandomGamma" in drawn]),
        ):
            assert low <= min(values) < 0.85 * low + 0.15 * high
            assert 0.85 * high + 0.15 * low < max(values) <= high
        assert all(drawn["scale"]["x"] == drawn["scale"]["y"] for drawn in affine), "the aspect ratio stays"


def test_equal_seeds_give_equal_crops_in_any_order() -> None:
    crop = np.random.default_rng(0).integers(0, 256, (112, 112, 3), np.uint8)
    augment = Augment(AugmentConfig(rand_augment=9))
    first = [augment(crop, seed=seed) for seed in range(8)]
    torch.manual_seed(1)
    again = [augment(crop, seed=seed) for seed in reversed(range(8))]
    np.testing.assert_array_equal(first, again[::-1])
    assert len({result.tobytes() for result in first}) == 8
