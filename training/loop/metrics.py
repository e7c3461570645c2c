"""Evaluation metrics: accuracy, mean class accuracy, macro-F1, recall, ECE, KL to votes, with bootstrap intervals."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from scipy.stats import binomtest

from mien.data.contract import EIGHT_LABELS, Array
from mien.models.manifest import Interval

ECE_BINS: Final = 15
WANTED_ACCURACY: Final = 0.95  # of the faces above the abstain threshold
RESAMPLES: Final = 1000


def confusion(predicted: Array, actual: Array, *, classes: int = len(EIGHT_LABELS)) -> Array:
    """Confusion matrix, (classes, classes): rows are true classes, columns predictions."""
    counts = np.bincount(actual * classes + predicted, minlength=classes * classes)
    return counts.reshape(classes, classes)


def accuracy(counts: Array) -> float:
    """Share of correctly labeled faces."""
    return float(np.trace(counts) / max(1, counts.sum()))


def recalls(counts: Array) -> Array:
    """Recall per class, (classes,); nan for classes that do not occur."""
    totals = counts.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(totals > 0, np.diag(counts) / totals, np.nan)


def mean_class_accuracy(counts: Array) -> float:
    """Mean of the recalls over the classes that occur."""
    return float(np.nanmean(recalls(counts)))


def macro_f1(counts: Array) -> float:
    """Mean F1 over the classes that occur."""
    hits = np.diag(counts).astype(np.float64)
    sums = counts.sum(axis=0) + counts.sum(axis=1)
    occurs = counts.sum(axis=1) > 0
    return float(np.mean(2 * hits[occurs] / np.maximum(1, sums[occurs])))


def ece(probabilities: Array, actual: Array) -> float:
    """Expected calibration error of the top class with 15 equal-width bins. Source: Guo et al. 2017, eq. 3.

    Args:
        probabilities: (N, classes), rows sum to 1.
        actual: (N,) class indices.
    """
    confidence, right, index = binned(probabilities, actual)
    gap = np.bincount(index, weights=right - confidence, minlength=ECE_BINS)
    return float(np.abs(gap).sum() / max(1, len(actual)))


def binned(probabilities: Array, actual: Array) -> tuple[Array, Array, Array]:
    """Confidence, whether the label is right, and the bin of `ece` of each face, (N,) each."""
    confidence = probabilities.max(axis=1)
    index = np.minimum((confidence * ECE_BINS).astype(int), ECE_BINS - 1)
    return confidence, probabilities.argmax(axis=1) == actual, index


def kl_to_votes(probabilities: Array, votes: Array) -> float:
    """Mean KL(votes || probabilities), in nats; (N, classes) each, and votes may lack the last class."""
    probabilities = probabilities[:, : votes.shape[1]]
    safe = np.where(votes > 0, votes, 1.0)
    return float((votes * (np.log(safe) - np.log(np.maximum(probabilities, 1e-12)))).sum(axis=1).mean())


def bootstrap(statistic: Callable[..., Any], *rows: Array) -> Interval:
    """Percentile bootstrap of one metric; see `bootstrap_all`."""
    return bootstrap_all(lambda *drawn: [statistic(*drawn)], *rows)[0]


def bootstrap_all(statistics: Callable[..., Sequence[float] | Array], *rows: Array) -> list[Interval]:
    """Percentile bootstrap over faces of several metrics of arrays with a row per face, on the same resamples."""
    rng, faces = np.random.default_rng(0), len(rows[0])
    chosen = (rng.integers(0, faces, faces) for _ in range(RESAMPLES))
    draws = np.array([statistics(*(array[index] for array in rows)) for index in chosen])
    low, high = np.nanpercentile(draws, [2.5, 97.5], axis=0)
    return [Interval(*map(float, row)) for row in zip(statistics(*rows), low, high, strict=True)]


def accuracies(predicted: Array, actual: Array) -> tuple[Interval, Interval]:
    """Accuracy and mean class accuracy of (N,) classes, with their intervals."""

    def both(predicted: Array, actual: Array) -> tuple[float, float]:
        counts = confusion(predicted, actual)
        return accuracy(counts), mean_class_accuracy(counts)

    overall, by_class = bootstrap_all(both, predicted, actual)
    return overall, by_class


def mcnemar_p(first: Array, second: Array) -> float:
    """Exact two-sided p-value of McNemar's test: whether two classifiers are right, (N,) bool each, on the same faces.

    Source: McNemar 1947; the number of faces that only one of them labels correctly is binomial.
    """
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    if only_first + only_second == 0:
        return 1.0
    return float(binomtest(only_first, only_first + only_second, 0.5).pvalue)


def fit_temperature(logits: Array, actual: Array) -> float:
    """Temperature that minimizes the negative log likelihood of (N, classes) logits. Source: Guo et al. 2017."""

    def loss(log_temperature: float) -> float:
        log_probabilities = log_softmax(logits / np.exp(log_temperature), axis=1)
        return float(-log_probabilities[np.arange(len(actual)), actual].mean())

    return float(np.exp(minimize_scalar(loss, bounds=(-2.5, 2.5), method="bounded").x))


def abstain_threshold(probabilities: Array, actual: Array) -> float:
    """Minimum confidence at which the labeled faces reach 95 % accuracy; 1.0 if impossible.

    Source: selective classification, Geifman and El-Yaniv 2017.
    """
    confidence, selective = by_confidence(probabilities, actual)
    reached = np.flatnonzero(selective >= WANTED_ACCURACY)
    return float(confidence[reached[-1]]) if len(reached) else 1.0


def coverage(probabilities: Array, actual: Array) -> float:
    """Largest share of the faces, most confident first, that reaches 95 % accuracy."""
    reached = np.flatnonzero(by_confidence(probabilities, actual)[1] >= WANTED_ACCURACY)
    return (int(reached[-1]) + 1) / len(actual) if len(reached) else 0.0


def by_confidence(probabilities: Array, actual: Array) -> tuple[Array, Array]:
    """Confidences in descending order, and the accuracy of the faces up to each, (N,) each."""
    order = np.argsort(-probabilities.max(axis=1), kind="stable")
    right = (probabilities.argmax(axis=1) == actual)[order]
    return probabilities.max(axis=1)[order], np.cumsum(right) / np.arange(1, len(right) + 1)
