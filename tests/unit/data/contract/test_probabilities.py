"""Softmax with temperature."""

import numpy as np
import pytest
from scipy.special import softmax as scipy_softmax

from mien.data.contract import softmax


def test_softmax_equals_that_of_scipy() -> None:
    logits = np.random.default_rng(0).normal(0, 5, (50, 7)).astype(np.float32)
    assert softmax(logits, 1.7) == pytest.approx(scipy_softmax(logits.astype(np.float64) / 1.7, axis=1), abs=1e-12)


def test_softmax_survives_logits_of_any_size() -> None:
    rows = softmax(np.array([[1e4, 0, -1e4, 0, 0, 0, 0], [-1e4] * 7], np.float32), 0.01)
    assert rows[0] == pytest.approx([1, 0, 0, 0, 0, 0, 0])
    assert rows[1] == pytest.approx([1 / 7] * 7)
