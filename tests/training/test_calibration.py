"""What is fitted on validation: temperature and correction, cross-fitted, and expected votes."""

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from mien.data.contract import CROP_PX, LABELS, Array
from mien.models.manifest import Manifest, read_manifest
from mien.training import metrics
from mien.training.calibration import (
    MAX_ECE,
    agreement_scores,
    cross_fitted_agreement,
    fit_agreement,
    fit_operating_point,
)
from mien.training.data import Split
from tests.support import tiny_artifact


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


TEMPERATURE, OFFSETS = 2.5, np.array([0.6, -0.3, -0.8, 0.4, 0.2, -0.5, 0.4])


def drawn_votes(logits: Array, raters: int = 10) -> Array:
    """Votes of raters who follow the logits by a known temperature and offsets."""
    shares = softmax(log_softmax(logits, axis=1) / TEMPERATURE + OFFSETS, axis=1)
    return np.random.default_rng(2).multinomial(raters, shares)


@pytest.fixture(scope="module")
def logits() -> Array:
    return np.random.default_rng(1).normal(0, 3, (4000, len(LABELS))).astype(np.float32)


@pytest.fixture
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    folder = tmp_path_factory.mktemp("artifacts") / "tiny.votes"
    return read_manifest(tiny_artifact(folder, temperature=1.0))


def voted(votes: Array) -> Split:
    crops = np.random.default_rng(3).integers(0, 256, (len(votes), CROP_PX, CROP_PX, 1), np.uint8)
    keys, nothing = tuple(map(str, range(len(votes)))), np.zeros(votes.shape)
    return Split("drawn", "valid", np.repeat(crops, 3, axis=3), nothing[:, 0], nothing, votes, LABELS, keys, "")


def test_fit_finds_the_temperature_and_the_offsets_of_the_raters(logits: Array) -> None:
    fitted = fit_agreement(log_softmax(logits, axis=1), drawn_votes(logits))
    assert fitted.temperature == pytest.approx(TEMPERATURE, rel=0.05)
    assert fitted.offsets == pytest.approx(OFFSETS - OFFSETS.mean(), abs=0.08)


def test_served_votes_do_not_depend_on_the_prior(manifest: Manifest, logits: Array) -> None:
    agreement = fit_agreement(log_softmax(logits[:300], axis=1), drawn_votes(logits[:300]))
    fitted = manifest.model_copy(update={"agreement": agreement})
    balanced, natural = (
        fitted.votes(fitted.probabilities(logits[:300], prior), prior) for prior in ("balanced", "natural")
    )
    np.testing.assert_allclose(balanced, natural, atol=1e-5)
    expected = log_softmax(logits[:300], axis=1) / agreement.temperature + np.array(agreement.offsets)
    np.testing.assert_allclose(natural, softmax(expected, axis=1), atol=1e-5)


def test_results_are_of_the_served_label_and_cross_fitted(manifest: Manifest, logits: Array) -> None:
    log_probabilities, votes = log_softmax(logits[:40], axis=1), drawn_votes(logits[:40])
    labels = manifest.probabilities(logits[:40], "balanced").argmax(axis=1)
    fitted = fit_agreement(log_probabilities, votes)
    seen = agreement_scores(
        softmax(log_probabilities / fitted.temperature + np.array(fitted.offsets), axis=1), voted(votes), labels
    )
    unseen = agreement_scores(cross_fitted_agreement(log_probabilities, votes), voted(votes), labels)
    assert unseen["faces"] == sum(part["faces"] for part in unseen["reliability"]) == 40
    actual = (votes[np.arange(40), labels] / 10).mean()
    assert sum(part["faces"] * part["votes"].value for part in unseen["reliability"]) / 40 == pytest.approx(actual)
    assert unseen["error"].value > seen["error"].value  # faces that the fit has seen are predicted better
