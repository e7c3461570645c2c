"""Operating point of a release: temperature and correction, cross-fitted."""

import numpy as np
import pytest

from mien.data.contract import LABELS, Array
from mien.training import metrics
from mien.training.calibration import MAX_ECE, fit_operating_point


@pytest.fixture(scope="module")
def faces() -> tuple[Array, Array]:
    """Logits of an overconfident classifier that rarely predicts rare classes, and the labels."""
    random = np.random.default_rng(0)
    frequency = np.array([0.13, 0.02, 0.01, 0.27, 0.11, 0.09, 0.37])
    labels = random.choice(len(LABELS), size=4000, p=frequency)
    evidence = random.normal(0, 1, (len(labels), len(LABELS)))
    evidence[np.arange(len(labels)), labels] += 2.5
    return (2.5 * evidence + np.log(frequency)) * 2, labels


def _mean_class(probabilities: Array, labels: Array) -> float:
    return metrics.mean_class_accuracy(metrics.confusion(probabilities.argmax(axis=1), labels))


def test_rare_classes_gain_and_calibration_holds(faces: tuple[Array, Array]) -> None:
    logits, labels = faces
    point = fit_operating_point(logits, labels)
    natural, balanced = point.cross_fitted["natural"], point.cross_fitted["balanced"]
    assert _mean_class(balanced, labels) > _mean_class(natural, labels) + 0.01
    assert metrics.ece(balanced, labels) <= max(MAX_ECE, metrics.ece(natural, labels))
    offsets = dict(zip(LABELS, point.prior_correction, strict=True))
    assert offsets["disgust"] > offsets["fear"] > 0 > offsets["happiness"] > offsets["neutral"]
    assert sum(offsets.values()) == pytest.approx(0, abs=1e-3)
    assert point.temperature == pytest.approx(metrics.fit_temperature(logits, labels), abs=1e-4)


def test_without_a_gain_there_is_no_correction() -> None:
    labels = np.arange(700) % len(LABELS)
    logits = np.eye(len(LABELS))[labels] * 8
    assert fit_operating_point(logits, labels).prior_correction == (0.0,) * len(LABELS)


def test_a_correction_that_gains_one_rare_face_for_five_others_is_not_chosen() -> None:
    disgust, neutral = LABELS.index("disgust"), LABELS.index("neutral")
    labels = np.arange(700) % len(LABELS)
    labels = np.delete(labels, np.flatnonzero(labels == disgust)[4:])
    logits = np.eye(len(LABELS))[labels] * 8
    wrong, gained = np.flatnonzero(labels == disgust)[:2]
    logits[wrong] = np.eye(len(LABELS))[neutral] * 8
    for face in (gained, *np.flatnonzero(labels == neutral)[:5]):
        logits[face, [disgust, neutral]] = 8 - 0.01, 8  # a small correction makes these six disgust
    assert fit_operating_point(logits, labels).tau == 0


def test_no_face_is_scored_by_a_temperature_that_was_fitted_on_it() -> None:
    logits = np.random.default_rng(1).normal(size=(50, 7))
    labels = logits.argmax(axis=1)
    before = fit_operating_point(logits, labels).cross_fitted["natural"]
    labels[0] = (labels[0] + 1) % 7
    after = fit_operating_point(logits, labels).cross_fitted["natural"]
    assert np.array_equal(before[0], after[0])
    assert not np.array_equal(before, after)
