"""What is fitted on validation: temperature, correction for rare classes, and the conversion to votes of people.

A probability says how often the label is that of the majority; agreement is the share of raters who would choose it.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax
from scipy.stats import pearsonr

from mien.data.contract import Array
from mien.data.quality import softmax
from mien.models.manifest import Agreement, Prior
from mien.training import metrics
from mien.training.data import Split
from mien.training.metrics import Interval

MAX_ECE: Final = 0.02  # A correction may raise the calibration error to this value.
_FOLDS: Final = 5
_TAUS: Final = tuple(round(0.05 * step, 2) for step in range(21))


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """Conversion of logits to probabilities, fitted on validation: see `Manifest.probabilities`.

    The correction is -tau times the log frequency of each class, less its mean.
    """

    temperature: float
    prior_correction: tuple[float, ...]
    tau: float
    cross_fitted: dict[Prior, Array]  # (N, 7) probabilities each


def fit_operating_point(logits: Array, labels: Array, tau: float | None = None) -> OperatingPoint:
    """Fit the temperature without a correction, then tau for accuracy plus mean class accuracy, unless it is given.

    The smallest tau within one standard error of the largest sum is chosen, because the sum depends on few faces of
    rare classes. All metrics are cross-fitted. A tau is allowed if its ECE is below `MAX_ECE` or not worse than without
    a correction.

    Args:
        logits: (N, 7) of the released graph.
        labels: (N,) class indices.
    Source: one-standard-error rule, Hastie, Tibshirani and Friedman 2009, section 7.10.
    """
    by_tau = {of: np.empty(logits.shape, np.float32) for of in (_TAUS if tau is None else (0.0, tau))}
    for held_out in folds(len(labels)):
        temperature, log_frequency = _fit(logits[~held_out], labels[~held_out])
        for of, probabilities in by_tau.items():
            probabilities[held_out] = softmax(logits[held_out], temperature, _correction(log_frequency, of))
    tau = _fitted_tau(by_tau, labels) if tau is None else tau
    temperature, log_frequency = _fit(logits, labels)
    return OperatingPoint(
        temperature=temperature,
        prior_correction=_correction(log_frequency, tau),
        tau=tau,
        cross_fitted={"natural": by_tau[0.0], "balanced": by_tau[tau]},
    )


def _fitted_tau(by_tau: dict[float, Array], labels: Array) -> float:
    bound = max(MAX_ECE, metrics.ece(by_tau[0.0], labels))
    allowed = [tau for tau in _TAUS if metrics.ece(by_tau[tau], labels) <= bound]
    correct = {tau: by_tau[tau].argmax(axis=1) == labels for tau in allowed}
    counts = np.bincount(labels)
    weights = 1 / len(labels) + 1 / (np.count_nonzero(counts) * counts[labels])  # This is a face's part of the sum.
    best = max(correct.values(), key=lambda faces: weights @ faces)
    recall = (np.bincount(labels, best) / np.maximum(counts, 1))[labels]
    standard_error = np.sqrt(weights**2 @ (recall * (1 - recall)))
    return next(tau for tau, faces in correct.items() if weights @ best - weights @ faces <= standard_error)


def folds(faces: int) -> list[Array]:
    """Random faces to hold out, (N,) bool each; the same ones each time."""
    fold = np.random.default_rng(0).permutation(faces) % _FOLDS
    return [fold == number for number in range(_FOLDS)]


def _fit(logits: Array, labels: Array) -> tuple[float, Array]:
    """Temperature, and log frequency of each class less its mean, (K,)."""
    counts = np.bincount(labels, minlength=logits.shape[1])
    log_frequency = np.log((counts + 0.5) / len(labels))
    log_frequency[counts == 0] = log_frequency[counts > 0].mean()  # nothing is known about a class without faces
    return round(metrics.fit_temperature(logits, labels), 4), log_frequency - log_frequency.mean()


def _correction(log_frequency: Array, tau: float) -> tuple[float, ...]:
    return tuple(round(float(offset), 4) for offset in 0.0 - tau * log_frequency)


def fit_agreement(log_probabilities: Array, votes: Array) -> Agreement:
    """Temperature and offsets that make votes (N, K) most likely, given natural log probabilities (N, K)."""

    def loss(parameters: Array) -> float:
        log_shares = log_softmax(log_probabilities / np.exp(parameters[0]) + parameters[1:], axis=1)
        return float(-(votes * log_shares).sum() / votes.sum())

    log_temperature, *offsets = minimize(loss, np.zeros(1 + votes.shape[1]), method="BFGS").x
    rounded = tuple(np.round(offsets - np.mean(offsets), 4).tolist())
    return Agreement(temperature=round(float(np.exp(log_temperature)), 4), offsets=rounded)


def cross_fitted_agreement(log_probabilities: Array, votes: Array) -> Array:
    """Expected shares (N, K) of each face, fitted on other faces."""
    expected = np.empty(votes.shape)
    for held_out in folds(len(votes)):
        fitted = fit_agreement(log_probabilities[~held_out], votes[~held_out])
        expected[held_out] = softmax(log_probabilities[held_out], fitted.temperature, fitted.offsets)
    return expected


def agreement_scores(expected: Array, faces: Split, labels: Array) -> dict[str, Any]:
    """How expected shares (N, K) meet the votes for the labels (N,): errors, correlation, and means by tenths."""
    rows, votes = np.arange(len(labels)), np.asarray(faces.votes)
    agreement, actual = expected[rows, labels], votes[rows, labels] / votes.sum(axis=1)
    tenth = np.minimum((agreement * 10).astype(int), 9)
    result = pearsonr(agreement, actual)
    return {
        "data": faces.kind,
        "split": faces.name,
        "faces": len(labels),
        "error": metrics.mean(np.abs(agreement - actual)),
        "error_of_mean": metrics.mean(np.abs(actual.mean() - actual)),  # This is the error of a constant.
        "correlation": Interval(*map(float, (result.statistic, *result.confidence_interval()))),
        "reliability": [
            {"faces": int(of.sum()), "expected": float(agreement[of].mean()), "votes": metrics.mean(actual[of])}
            for of in (tenth == number for number in np.unique(tenth))
        ],
    }
