"""Scores of one split: which probabilities they are computed from."""

import numpy as np
import pytest

from mien.data.contract import LABELS
from mien.training.evaluate import evaluate
from mien.training.faces import Split


def test_calibration_losses_and_coverage_are_of_the_cross_fitted_probabilities_and_labels_of_the_others() -> None:
    labels = np.array([0] * 300 + [3] * 50 + [6] * 50)
    targets = np.eye(7)[labels]
    faces = Split("drawn", "valid", np.empty(0), labels, targets, None, LABELS, tuple(map(str, range(400))), "0" * 64)
    fitted = np.full((400, 7), 0.4 / 6)
    fitted[np.arange(400), labels] = 0.6  # correct, at 60 %
    held_out = np.full((400, 7), 0.1 / 6)
    held_out[:, 6] = 0.9  # neutral, mostly wrong
    scored = evaluate(faces, fitted, calibrated=held_out)
    assert scored.accuracy.value == scored.mean_class_accuracy.value == 1
    assert scored.ece == pytest.approx(0.9 - 50 / 400)
    assert scored.nll is not None
    assert scored.nll.value == pytest.approx(-(350 * np.log(0.1 / 6) + 50 * np.log(0.9)) / 400)
    assert scored.coverage_at_95 is not None
    assert scored.coverage_at_95.value == 0
    bins = [(faces, confidence) for faces, confidence, _ in scored.reliability if faces]
    assert bins == [(400, pytest.approx(0.9))]
