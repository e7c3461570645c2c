"""Corrupted faces: strengths, and repeatability."""

import numpy as np

from mien.training.robustness import STRENGTHS, corrupt
from tests.support.data_sets import draw_face


def test_a_stronger_corruption_changes_more_and_the_same_seed_changes_alike() -> None:
    face = draw_face("happiness", 3)[0]
    for name, strengths in STRENGTHS.items():
        mild, strong = (corrupt(face, name, strengths[step], seed=1).astype(int) for step in (0, -1))
        changes = [float(np.abs(crop - face).mean()) for crop in (mild, strong)]
        assert 0 < changes[0] < changes[1], name
        assert np.array_equal(strong, corrupt(face, name, strengths[-1], seed=1)), name
