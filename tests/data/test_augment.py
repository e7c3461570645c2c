"""Augmentation: independent steps, full ranges, equal results for equal seeds."""

import math
from typing import Any

import numpy as np
import pytest

from mien.data.augment import Augment, AugmentConfig

SEEDS = 400


@pytest.fixture(scope="module")
def draws() -> list[dict[str, dict[str, Any]]]:
    """Parameters of the steps that changed a crop, by step, for each seed."""
    augment, crop = Augment(AugmentConfig()), np.random.default_rng(0).integers(0, 256, (112, 112, 1), np.uint8)
    drawn = []
    for seed in range(SEEDS):
        augment(crop, seed=seed)
        steps = augment._compose.transforms
        drawn.append({type(step).__name__: dict(step.params) for step in steps if step.params})
    return drawn


@pytest.mark.parametrize(
    ("step", "probability"),
    [("Erasing", 0.25), ("GaussNoise", 0.1), ("GaussianBlur", 0.1), ("ImageCompression", 0.1), ("RandomGamma", 0.3)],
)
def test_a_step_does_not_depend_on_the_mirroring(draws: list[dict[str, Any]], step: str, probability: float) -> None:
    count = sum(step in drawn and "HorizontalFlip" not in drawn for drawn in draws)
    expected = probability / 2
    assert abs(count - SEEDS * expected) <= 3 * math.sqrt(SEEDS * expected * (1 - expected))


@pytest.mark.parametrize("is_mirrored", [True, False])
def test_each_range_reaches_both_ends_at_one_aspect_ratio(draws: list[dict[str, Any]], is_mirrored: bool) -> None:
    ranges: dict[str, list[float]] = {}
    for drawn in draws:
        if ("HorizontalFlip" in drawn) is is_mirrored:
            affine = drawn["Affine"]
            assert affine["scale"]["x"] == affine["scale"]["y"]
            ranges.setdefault("scale", []).append(affine["scale"]["x"])
            ranges.setdefault("rotate", []).append(affine["rotate"])
            for axis, moved in zip("xy", affine["matrix"] @ (55.5, 55.5, 1.0) - (55.5, 55.5, 1.0), strict=False):
                ranges.setdefault(f"shift {axis}", []).append(moved)
            if "RandomGamma" in drawn:
                ranges.setdefault("gamma", []).append(drawn["RandomGamma"]["gamma"])
    limits = {"scale": (0.85, 1.15), "shift x": (-9, 9), "shift y": (-9, 9), "rotate": (-15, 15), "gamma": (0.8, 1.2)}
    for name, (low, high) in limits.items():
        margin = 0.15 * (high - low)
        assert low <= min(ranges[name]) < low + margin, name
        assert high - margin < max(ranges[name]) <= high, name


def test_equal_seeds_give_equal_crops_in_any_order() -> None:
    crop = np.random.default_rng(0).integers(0, 256, (112, 112, 3), np.uint8)
    augment = Augment(AugmentConfig(rand_augment=9))
    first = [augment(crop, seed=seed) for seed in range(8)]
    again = [augment(crop, seed=seed) for seed in reversed(range(8))]
    np.testing.assert_array_equal(first, again[::-1])
    assert len({result.tobytes() for result in first}) == 8
