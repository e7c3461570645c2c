"""Evaluation metrics, compared with hand-computed values and scikit-learn."""

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import balanced_accuracy_score, f1_score

from mien.training.loop import metrics

RNG = np.random.default_rng(1)
ACTUAL = RNG.integers(0, 7, 400)
PREDICTED = np.where(RNG.random(400) < 0.7, ACTUAL, RNG.integers(0, 7, 400))


def test_metrics_agree_with_scikit_learn() -> None:
    counts = metrics.confusion(PREDICTED, ACTUAL)
    assert counts.sum() == 400
    assert metrics.accuracy(counts) == pytest.approx((PREDICTED == ACTUAL).mean())
    assert metrics.mean_class_accuracy(counts) == pytest.approx(balanced_accuracy_score(ACTUAL, PREDICTED))
    assert metrics.macro_f1(counts) == pytest.approx(f1_score(ACTUAL, PREDICTED, average="macro"))


def test_ece_is_zero_for_a_calibrated_model_and_large_for_an_overconfident_one() -> None:
    probabilities = np.full((1000, 7), 0.2 / 6)
    probabilities[:, 3] = 0.8
    earned = np.r_[np.full(800, 3), np.full(200, 1)]
    assert metrics.ece(probabilities, earned) == pytest.approx(0.0, abs=1e-9)
    assert metrics.ece(probabilities, np.full(1000, 1)) == pytest.approx(0.8)


def test_temperature_equals_the_factor_that_logits_were_multiplied_by() -> None:
    logits = RNG.normal(size=(4000, 7)) * 2
    labels = np.array([RNG.choice(7, p=row) for row in softmax(logits, axis=1)])
    assert metrics.fit_temperature(logits * 3, labels) == pytest.approx(3.0, rel=0.08)


def test_abstaining_below_the_threshold_reaches_the_wanted_accuracy() -> None:
    logits = RNG.normal(size=(4000, 7)) * 3
    probabilities = softmax(logits, axis=1)
    labels = np.array([RNG.choice(7, p=row) for row in probabilities])
    threshold = metrics.abstain_threshold(probabilities, labels)
    answered = probabilities.max(axis=1) >= threshold
    assert 0.05 < answered.mean() < 1.0
    assert (probabilities.argmax(axis=1) == labels)[answered].mean() >= 0.95


def test_a_model_that_never_reaches_the_wanted_accuracy_abstains_always() -> None:
    probabilities = np.full((50, 7), 1 / 7)
    probabilities[:, 0] += 1e-3
    assert metrics.abstain_threshold(probabilities, np.full(50, 1)) == 1.0


def test_accuracy_by_confidence_ends_at_that_of_all_faces() -> None:
    probabilities = np.array([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8], [0.55, 0.45]])
    confidence, selective = metrics.by_confidence(probabilities, np.array([0, 0, 1, 1]))
    assert confidence.tolist() == [0.9, 0.8, 0.6, 0.55]
    assert selective.tolist() == pytest.approx([1, 1, 2 / 3, 2 / 4])
    assert metrics.coverage(probabilities, np.array([0, 0, 1, 1])) == 0.5


def test_the_interval_holds_the_value_and_narrows_with_more_faces() -> None:
    def width(faces: int) -> float:
        estimate = metrics.bootstrap(np.mean, np.arange(faces) % 4 != 0)
        assert estimate.low <= estimate.value == 0.75 <= estimate.high
        return estimate.high - estimate.low

    assert width(2000) < width(200) < 0.2


def test_kl_to_votes_is_zero_for_the_votes_themselves() -> None:
    votes = RNG.dirichlet(np.ones(7), size=10)
    votes[0] = np.eye(7)[2]
    assert metrics.kl_to_votes(votes, votes) == pytest.approx(0.0, abs=1e-9)
    assert metrics.kl_to_votes(np.full((10, 7), 1 / 7), votes) > 0.1


def test_mcnemar_counts_the_faces_that_only_one_classifier_labels_correctly() -> None:
    first = np.array([True] * 60 + [False] * 40)
    second = first.copy()
    assert metrics.mcnemar_p(first, second) == 1.0
    second[:2], second[60:70] = False, True  # 2 against 10: 2 * sum of binomials up to 2 of 12
    assert metrics.mcnemar_p(first, second) == pytest.approx(2 * (1 + 12 + 66) / 2**12)
