"""Evaluation metrics, compared with hand-computed values and scikit-learn; scores of a split; corrupted faces."""

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import balanced_accuracy_score, f1_score

from mien.data.contract import LABELS
from mien.training import metrics
from mien.training.data import Split
from mien.training.evaluate import scores
from mien.training.robustness import STRENGTHS, corrupt
from tests.support.data_sets import draw_face

RNG = np.random.default_rng(1)
ACTUAL = RNG.integers(0, 7, 400)
PREDICTED = np.where(RNG.random(400) < 0.7, ACTUAL, RNG.integers(0, 7, 400))


def test_metrics_agree_with_scikit_learn() -> None:
    counts = metrics.confusion(PREDICTED, ACTUAL)
    assert counts.sum() == 400
    assert metrics.accuracy(counts) == pytest.approx((PREDICTED == ACTUAL).mean())
    assert metrics.mean_class_accuracy(counts) == pytest.approx(balanced_accuracy_score(ACTUAL, PREDICTED))
    assert metrics.macro_f1(counts) == pytest.approx(f1_score(ACTUAL, PREDICTED, average="macro"))


def test_temperature_equals_the_factor_that_logits_were_multiplied_by() -> None:
    logits = RNG.normal(size=(4000, 7)) * 2
    labels = np.array([RNG.choice(7, p=row) for row in softmax(logits, axis=1)])
    assert metrics.fit_temperature(logits * 3, labels) == pytest.approx(3.0, rel=0.08)


def test_labels_above_the_threshold_are_as_accurate_on_other_faces_as_it_says() -> None:
    """Of 200 thresholds that are fitted to 1,000 faces each, at most 5 % may keep labels that are less accurate."""
    rng = np.random.default_rng(0)
    too_low = 0
    for _ in range(200):
        confidence = 1 - 0.4 * rng.random(1000) ** 3
        probabilities = np.stack([confidence, 1 - confidence], axis=1)
        labels = (rng.random(1000) > confidence).astype(int)  # the top class is right with its probability
        threshold = metrics.confidence_threshold(probabilities, labels)
        too_low += threshold < 0.8  # the accuracy of all faces above t is 1 - (1 - t) / 4
        assert threshold < 0.95
    assert too_low <= 10


def test_the_threshold_keeps_the_faces_that_are_right() -> None:
    probabilities = np.array([[0.9, 0.1]] * 300 + [[0.6, 0.4]] * 100)
    labels = np.r_[np.zeros(300, int), np.ones(100, int)]  # all that are less confident are wrong
    assert metrics.confidence_threshold(probabilities, labels) == 0.9
    assert metrics.confidence_threshold(probabilities[:20], labels[:20]) == 1, "20 faces show nothing"


def test_the_interval_of_resamples_has_the_width_of_the_normal_distribution() -> None:
    (estimate,) = metrics.bootstrap(np.mean, np.arange(2000) % 4 != 0)
    assert estimate.low <= estimate.value == 0.75 <= estimate.high
    assert estimate.high - estimate.low == pytest.approx(2 * 1.96 * (0.25 * 0.75 / 2000) ** 0.5, rel=0.1)


def test_kl_to_votes_is_zero_for_the_votes_themselves() -> None:
    votes = RNG.dirichlet(np.ones(7), size=10)
    votes[0] = np.eye(7)[2]
    assert metrics.kl_to_votes(votes, votes) == pytest.approx(np.zeros(10), abs=1e-9)
    assert metrics.kl_to_votes(np.full((10, 7), 1 / 7), votes).mean() > 0.1


def test_intervals_are_of_95_percent() -> None:
    half = metrics.wilson(200, 400)
    assert (half.value, half.low, half.high) == pytest.approx((0.5, 0.45124, 0.54876), abs=1e-4)
    none = metrics.wilson(0, 2)
    assert (none.value, none.low, none.high) == pytest.approx((0, 0, 0.6576), abs=1e-3), "not 0.00 (0.00 to 0.00)"
    values = metrics.mean(np.array([1.0, 2.0, 3.0, 4.0]))
    assert (values.value, values.high - values.value) == pytest.approx((2.5, 3.182 * 1.29099 / 2), abs=1e-3)


def test_the_interval_of_mean_class_accuracy_is_as_wide_as_that_of_many_samples() -> None:
    rng, recalls, faces = np.random.default_rng(0), np.array([0.9, 0.7, 0.5]), np.array([400, 100, 40])
    hits = rng.binomial(faces, recalls, (2000, 3))
    interval = metrics.mean_class_interval(np.array([[360, 40, 0], [30, 70, 0], [20, 0, 20]]))
    assert interval.value == pytest.approx(0.7)
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * (hits / faces).mean(axis=1).std(), rel=0.05)


def test_losses_of_two_faces_and_the_bins_of_the_calibration_error() -> None:
    probabilities, labels = np.array([[0.8, 0.2], [0.7, 0.3]]), np.array([0, 1])
    assert metrics.negative_log_likelihood(probabilities, labels) == pytest.approx([-np.log(0.8), -np.log(0.3)])
    assert metrics.brier(probabilities, labels) == pytest.approx([0.08, 0.98])
    assert metrics.ece(probabilities, labels) == pytest.approx((0.2 + 0.7) / 2)
    near = np.array([[0.72, 0.28], [0.78, 0.22]])  # in one bin of 10, in two of 15
    assert metrics.ece(near, labels) == pytest.approx((0.28 + 0.78) / 2)


def test_calibration_losses_and_coverage_are_of_the_cross_fitted_probabilities_and_labels_of_the_others() -> None:
    labels = np.array([0] * 300 + [3] * 50 + [6] * 50)
    targets = np.eye(7)[labels]
    faces = Split("drawn", "valid", np.empty(0), labels, targets, None, LABELS, tuple(map(str, range(400))), "0" * 64)
    fitted = np.full((400, 7), 0.4 / 6)
    fitted[np.arange(400), labels] = 0.6  # correct, at 60 %
    held_out = np.full((400, 7), 0.1 / 6)
    held_out[:, 6] = 0.9  # neutral, mostly wrong
    scored = scores(faces, fitted, calibrated=held_out, threshold=0.5)
    assert scored["accuracy"].value == scored["mean_class_accuracy"].value == 1
    assert scored["ece"] == pytest.approx(0.9 - 50 / 400)
    assert scored["nll"].value == pytest.approx(-(350 * np.log(0.1 / 6) + 50 * np.log(0.9)) / 400)
    assert (scored["kept"].value, scored["kept_accuracy"].value) == (1, 1)
    assert scores(faces, fitted, calibrated=fitted, threshold=0.7)["kept"].value == 0


def test_a_stronger_corruption_changes_more_and_the_same_seed_changes_alike() -> None:
    face = draw_face("happiness", 3)[0]
    for name, strengths in STRENGTHS.items():
        mild, strong = (corrupt(face, name, strengths[step], seed=1).astype(int) for step in (0, -1))
        changes = [float(np.abs(crop - face).mean()) for crop in (mild, strong)]
        assert 0 < changes[0] < changes[1], name
        assert np.array_equal(strong, corrupt(face, name, strengths[-1], seed=1)), name
