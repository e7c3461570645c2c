"""Operating point fitted on validation: temperature, correction for rare classes, abstain threshold."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from mien.data.contract import Array, softmax
from mien.models.manifest import Prior
from mien.training.loop import metrics

MAX_ECE: Final = 0.02  # of the corrected probabilities
_TAUS: Final = tuple(round(0.05 * step, 2) for step in range(21))


@dataclass(frozen=True, slots=True)
class Calibration:
    """Conversion of logits to probabilities: `softmax(logits / temperature + prior_correction)`.

    The correction is -tau times the log frequency of each class, less its mean.
    """

    temperature: float
    prior_correction: tuple[float, ...]

    def __call__(self, logits: Array, prior: Prior) -> Array:
        """Probabilities (N, 7) of logits (N, 7), with or without the correction."""
        return softmax(logits, self.temperature, self.prior_correction if prior == "balanced" else 0.0)


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """A calibration fitted on validation, with cross-fitted probabilities."""

    calibration: Calibration
    tau: float
    abstain_threshold: float
    cross_fitted: dict[Prior, Array]  # (N, 7) probabilities each


def fit_operating_point(logits: Array, labels: Array) -> OperatingPoint:
    """Fit the temperature without a correction, then tau for accuracy plus mean class accuracy.

    The smallest tau within one standard error of the largest sum is chosen, because the sum depends on few faces of
    rare classes. All metrics are cross-fitted. A tau is allowed if its ECE is below `MAX_ECE` or not worse than without
    a correction.

    Args:
        logits: (N, 7) of the released graph.
        labels: (N,) class indices.
    Source: one-standard-error rule, Hastie, Tibshirani and Friedman 2009, section 7.10.
    """
    by_tau = _cross_fitted(logits, labels)
    bound = max(MAX_ECE, metrics.ece(by_tau[0.0], labels))
    allowed = [tau for tau in _TAUS if metrics.ece(by_tau[tau], labels) <= bound]
    correct = {tau: by_tau[tau].argmax(axis=1) == labels for tau in allowed}
    counts = np.bincount(labels)
    weights = 1 / len(labels) + 1 / (np.count_nonzero(counts) * counts[labels])  # a face's part of the sum
    best = max(correct.values(), key=lambda faces: weights @ faces)
    recall = (np.bincount(labels, best) / np.maximum(counts, 1))[labels]
    standard_error = np.sqrt(weights**2 @ (recall * (1 - recall)))
    tau = next(tau for tau, faces in correct.items() if weights @ best - weights @ faces <= standard_error)
    return OperatingPoint(
        calibration=fit_calibrations(logits, labels, (tau,))[tau],
        tau=tau,
        abstain_threshold=round(metrics.abstain_threshold(by_tau[tau], labels), 4),
        cross_fitted={"natural": by_tau[0.0], "balanced": by_tau[tau]},
    )


def fit_calibrations(logits: Array, labels: Array, taus: Sequence[float]) -> dict[float, Calibration]:
    """Fit the temperature, and compute the correction for the class frequencies of `labels` with each weight."""
    log_frequency = np.log((np.bincount(labels, minlength=logits.shape[1]) + 0.5) / len(labels))
    temperature = round(metrics.fit_temperature(logits, labels), 4)
    offsets = {tau: 0.0 - tau * (log_frequency - log_frequency.mean()) for tau in taus}
    return {tau: Calibration(temperature, tuple(round(float(offset), 4) for offset in offsets[tau])) for tau in taus}


def _cross_fitted(logits: Array, labels: Array) -> dict[float, Array]:
    """Probabilities (N, 7) for each tau; the calibration for each face is fitted on other faces."""
    fold = np.random.default_rng(0).permutation(len(labels)) % metrics.FOLDS
    by_tau = {tau: np.empty(logits.shape, np.float32) for tau in _TAUS}
    for number in range(metrics.FOLDS):
        held_out = fold == number
        for tau, fitted in fit_calibrations(logits[~held_out], labels[~held_out], _TAUS).items():
            by_tau[tau][held_out] = fitted(logits[held_out], "balanced")
    return by_tau
