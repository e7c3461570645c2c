"""Scores of a split and what is fitted on validation, by recorded values; tables and corruptions."""

from dataclasses import astuple

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from mien.data.contract import LABELS, Array
from mien.training import metrics
from mien.training.calibration import agreement_scores, cross_fitted_agreement, fit_agreement, fit_operating_point
from mien.training.data import Split
from mien.training.evaluate import scores
from mien.training.robustness import STRENGTHS, corrupt
from tests.support.data_sets import draw_face


def split_of(labels: Array, votes: Array) -> Split:
    """Faces without pixels."""
    keys, nothing = tuple(map(str, range(len(labels)))), np.empty(0)
    return Split("drawn", "valid", nothing, labels, nothing, votes, LABELS, keys, "")


# Values with their intervals, of 400 faces; scikit-learn has the same accuracy, recall and F1.
SCORES = {
    "accuracy": (0.7400, 0.6949, 0.7806), "mean_class_accuracy": (0.7426, 0.6954, 0.7789),
    "macro_f1": (0.7562, 0.7147, 0.7946), "nll": (0.9409, 0.8817, 1.0000), "brier": (0.4500, 0.4194, 0.4806),
    "kept": (0.4425, 0.3946, 0.4915), "kept_accuracy": (0.9266, 0.8784, 0.9566),
    "kl_to_votes": (1.0440, 0.9825, 1.1055), "surprise": (0.6833, 0.5577, 0.7869), "fear": (0.8095, 0.6959, 0.8875),
    "disgust": (0.6944, 0.5805, 0.7887), "happiness": (0.8276, 0.7109, 0.9036), "sadness": (0.7600, 0.6522, 0.8425),
    "anger": (0.6806, 0.5661, 0.7767),
}  # fmt: skip


def test_scores_equal_the_recorded_ones() -> None:
    random = np.random.default_rng(1)
    labels = random.integers(0, 6, 400)  # none is neutral
    logits = random.normal(0, 1, (400, 7)) + 2 * np.eye(7)[labels]
    served, calibrated = softmax(2 * logits, axis=1), softmax(logits, axis=1)
    faces = split_of(labels, random.dirichlet(np.ones(7), 400))
    found = scores(faces, served, prior="balanced", calibrated=calibrated, threshold=0.5)
    intervals = {name: of for name, of in (found | found["recall"]).items() if isinstance(of, metrics.Interval)}
    assert intervals.keys() == SCORES.keys()
    for name, expected in SCORES.items():
        assert astuple(intervals[name]) == pytest.approx(expected, abs=1e-4), name
    assert (found["ece"], found["confusion"][0]) == (pytest.approx(0.2378, abs=1e-4), [41, 1, 3, 3, 2, 5, 5])
    assert metrics.share(np.empty(0, bool)) == metrics.Interval(0, 0, 1)
    assert metrics.mean(np.array([1.0, 2.0, 3.0, 4.0])).high == pytest.approx(2.5 + 3.182 * 1.29099 / 2, abs=1e-3)


def test_the_calibration_error_has_15_bins_and_the_last_one_has_certain_faces() -> None:
    near, labels = np.array([[0.72, 0.28], [0.78, 0.22]]), np.array([0, 1])  # in one bin of 10, in two of 15
    assert metrics.ece(near, labels) == pytest.approx((0.28 + 0.78) / 2)
    assert metrics.ece(np.array([[1.0, 0.0], [0.96, 0.04]]), labels[::-1]) == pytest.approx((1 - 0.04) / 2)


def test_a_temperature_fitted_on_few_correct_faces_does_not_make_labels_certain() -> None:
    separated = np.eye(2)[np.arange(16) % 2]
    confidence = softmax(separated / metrics.fit_temperature(separated, np.arange(16) % 2), axis=1).max(axis=1)
    assert confidence == pytest.approx(1 - 0.5 / 17, abs=1e-3)  # not 1, of 16 faces


def test_the_threshold_keeps_the_faces_that_are_right() -> None:
    probabilities = np.array([[0.9, 0.1]] * 300 + [[0.6, 0.4]] * 100)
    labels = np.r_[np.zeros(300, int), np.ones(100, int)]  # all that are less confident are wrong
    assert metrics.confidence_threshold(probabilities, labels) == 0.9
    # of 97 right ones, 0.95^97 is below the risk; of fewer, it is not
    assert [metrics.confidence_threshold(probabilities[:n], labels[:n]) for n in (96, 97)] == [1, 0.9]
    confidence = np.sort(np.random.default_rng(2).uniform(0.5, 1, 900))
    wrong = np.arange(900) % 40 == 0
    found = metrics.confidence_threshold(np.stack([confidence, 1 - confidence], axis=1), wrong | (confidence < 0.7))
    assert found == confidence[357] == confidence[confidence > 0.7][0]


def test_a_table_has_shares_in_percent_losses_in_nats_signed_gains_and_means() -> None:
    first, second = (
        {"accuracy": metrics.Interval(of, of - 0.1, of + 0.1), "nll": metrics.Interval(of, 0, 1), "recall": {}}
        for of in (0.5, 0.7)
    )
    heads, rows = metrics.scores_table(("before", "gain"), (first | {"ece": 0.02}, second), mean=True)
    assert heads == ["metric", "before", "gain", "mean ± standard deviation"]
    assert rows == [
        ["accuracy", "50.00 (40.00 to 60.00)", "+70.00 (+60.00 to +80.00)", "60.00 ± 14.14"],
        ["negative log likelihood", "0.500 (0.000 to 1.000)", "+0.700 (+0.000 to +1.000)", "0.600 ± 0.141"],
        ["ECE, 15 bins", "2.00", "", ""],
    ]


def test_a_stronger_corruption_changes_more_and_the_same_seed_changes_alike() -> None:
    face = draw_face("happiness", 3)[0]
    for name, strengths in STRENGTHS.items():
        mild, strong = (corrupt(face, name, strengths[step], seed=1).astype(int) for step in (0, -1))
        changes = [float(np.abs(crop - face).mean()) for crop in (mild, strong)]
        assert 0 < changes[0] < changes[1], name
        assert np.array_equal(strong, corrupt(face, name, strengths[-1], seed=1)), name


@pytest.mark.parametrize(
    ("count", "disgust", "scale", "recorded"),
    [
        (500, 0, 3, (0.25, 2.8321, 0.5349, 0, 0.41959, 0.38932)),
        (2000, 0.01, 2, (0.25, 2.2867, 0.3504, 0.5686, 0.34136, 0.32145)),
    ],
)
def test_correction_temperature_and_cross_fitted_losses_are_the_recorded_ones(
    count: int, disgust: float, scale: float, recorded: tuple[float, ...]
) -> None:
    random = np.random.default_rng(0)
    frequency = np.array([0.13, 0.02, disgust, 0.27, 0.11, 0.09, 0.38 - disgust])
    labels = random.choice(7, size=count, p=frequency)
    evidence = random.normal(0, 1, (count, 7))
    evidence[np.arange(count), labels] += 2.5
    # Rare classes are predicted too rarely. Without its bound or its standard error, tau would be larger.
    point = fit_operating_point((2.5 * evidence + np.log(frequency + 1e-3) * scale) * 2, labels)
    losses = [metrics.negative_log_likelihood(rows, labels).mean() for rows in point.cross_fitted.values()]
    found = (point.tau, point.temperature, *point.prior_correction[1:3], *losses)
    assert found == pytest.approx(recorded, abs=2e-4)


def test_agreement_finds_the_temperature_and_the_offsets_of_the_raters_and_is_cross_fitted() -> None:
    temperature, offsets = 2.5, np.array([0.6, -0.3, -0.8, 0.4, 0.2, -0.5, 0.4])
    natural = log_softmax(np.random.default_rng(1).normal(0, 3, (4000, len(LABELS))), axis=1)
    votes = np.random.default_rng(2).multinomial(10, softmax(natural / temperature + offsets, axis=1))
    fitted = fit_agreement(natural, votes)
    assert fitted.temperature == pytest.approx(temperature, rel=0.05)
    assert fitted.offsets == pytest.approx(offsets - offsets.mean(), abs=0.08)
    few, votes = natural[:40], votes[:40]
    labels = (few + offsets).argmax(axis=1)
    found = agreement_scores(cross_fitted_agreement(few, votes), split_of(labels, votes), labels)
    assert [found[name].value for name in ("error", "error_of_mean", "correlation")] == pytest.approx(
        [0.1237, 0.1739, 0.7038], abs=1e-3
    ), "the first is 0.1148 if the fit has seen these faces"
    assert [part["faces"] for part in found["reliability"]] == [1, 8, 13, 8, 5, 1, 2, 2]
    third = found["reliability"][2]
    assert (third["expected"], third["votes"].value) == pytest.approx((0.3468, 0.3462), abs=1e-3)
