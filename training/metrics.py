"""Evaluation metrics with their 95 % intervals, and their tables.

Shares have Wilson's interval, means of a value per face Student's, macro-F1 a bootstrap interval. ECE has none: it is
biased upward, and resamples add to the bias.
"""

import csv
import io
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic_core import to_jsonable_python
from rich.console import Console
from rich.table import Table
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, rel_entr
from scipy.stats import binom, binomtest
from scipy.stats import t as student

from mien.data.atomic import write_atomic
from mien.data.contract import Array

ECE_BINS: Final = 15
# The faces above the confidence threshold have this accuracy, except for this risk that it is lower.
TARGET_ACCURACY: Final = 0.95
_RISK: Final = 0.05
RESAMPLES: Final = 1000
MIN_FACES: Final = 30  # below, resamples are too few different ones: their 95 % cover about 81 %


@dataclass(frozen=True, slots=True)
class Interval:
    """A metric with its 95 % interval."""

    value: float
    low: float
    high: float


def confusion(predicted: Array, actual: Array, classes: int) -> Array:
    """Confusion matrix, (classes, classes): rows are true classes, columns predictions."""
    return np.bincount(actual * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def macro_f1(counts: Array) -> float:
    """Mean F1 over the classes that occur."""
    occurs = counts.sum(axis=1) > 0
    return float(np.mean((2 * np.diag(counts) / np.maximum(1, counts.sum(axis=0) + counts.sum(axis=1)))[occurs]))


def ece(probabilities: Array, actual: Array) -> float:
    """Expected calibration error of the top class with 15 equal-width bins. Source: Guo et al. 2017, eq. 3.

    Args:
        probabilities: (N, classes), rows sum to 1.
        actual: (N,) class indices.
    """
    confidence, correct = probabilities.max(axis=1), probabilities.argmax(axis=1) == actual
    bins = np.minimum((confidence * ECE_BINS).astype(int), ECE_BINS - 1)
    return float(np.abs(np.bincount(bins, correct - confidence)).sum() / max(1, len(actual)))


def negative_log_likelihood(probabilities: Array, actual: Array) -> Array:
    """Negative log likelihood of each face, (N,), in nats."""
    return -np.log(np.maximum(probabilities[np.arange(len(actual)), actual], 1e-12))


def brier(probabilities: Array, actual: Array) -> Array:
    """Brier score of each face, (N,): squared distance to the label, 0 to 2. Source: Brier 1950."""
    return np.asarray(((probabilities - np.eye(probabilities.shape[1])[actual]) ** 2).sum(axis=1))


def kl_to_votes(probabilities: Array, votes: Array) -> Array:
    """KL(votes || probabilities) of each face, (N,), in nats; (N, classes) each."""
    return np.asarray(rel_entr(votes, np.maximum(probabilities, 1e-12)).sum(axis=1))


def wilson(correct: int, total: int) -> Interval:
    """A share with Wilson's interval, which is valid for few faces and for shares of 0 and 1; 0 to 1 without faces."""
    if total == 0:
        return Interval(0.0, 0.0, 1.0)
    bounds = binomtest(correct, total).proportion_ci(0.95, method="wilson")
    return Interval(correct / total, float(bounds.low), float(bounds.high))


def share(chosen: Array) -> Interval:
    """Share of True, (N,) bool."""
    return wilson(int(np.count_nonzero(chosen)), len(chosen))


def recall_intervals(counts: Array) -> dict[int, Interval]:
    """Recall of each class that occurs, by its index."""
    totals = counts.sum(axis=1)
    return {int(index): wilson(int(counts[index, index]), int(totals[index])) for index in np.flatnonzero(totals)}


def mean_class_interval(counts: Array) -> Interval:
    """Mean class accuracy; the distances of the recalls to their bounds are added in squares.

    Source: Zou and Donner 2008, method of variance estimates recovery.
    """
    recalled = list(recall_intervals(counts).values())
    value = float(np.mean([recall.value for recall in recalled]))
    below = math.hypot(*(recall.value - recall.low for recall in recalled)) / len(recalled)
    above = math.hypot(*(recall.high - recall.value for recall in recalled)) / len(recalled)
    return Interval(value, value - below, value + above)


def mean(values: Array) -> Interval:
    """Mean of a value of each face, (N,), with Student's interval."""
    value, half = float(np.mean(values)), 0.0
    if len(values) > 1:
        half = float(student.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values)))
    return Interval(value, value - half, value + half)


def bootstrap(statistics: Callable[..., Any], *rows: Array) -> list[Interval]:
    """Percentile bootstrap over faces of one or several metrics of arrays with a row per face, on the same resamples.

    Not for shares of few faces or calibration errors, which its resamples misjudge.
    """
    rng, faces = np.random.default_rng(0), len(rows[0])
    chosen = (rng.integers(0, faces, faces) for _ in range(RESAMPLES))
    draws = np.array([np.atleast_1d(statistics(*(array[index] for array in rows))) for index in chosen])
    low, high = np.nanpercentile(draws, [2.5, 97.5], axis=0)
    return [Interval(*map(float, row)) for row in zip(np.atleast_1d(statistics(*rows)), low, high, strict=True)]


def fit_temperature(logits: Array, actual: Array) -> float:
    """Temperature that minimizes the negative log likelihood of (N, classes) logits. Source: Guo et al. 2017.

    Targets are smoothed as if one more face had every label, because N correct labels do not prove certainty: the best
    temperature would be 0. Source: Platt 1999, section 2.2.
    """
    faces, classes = logits.shape
    targets = (faces * np.eye(classes)[actual] + 1 / classes) / (faces + 1)

    def loss(log_temperature: float) -> float:
        return float(-(targets * log_softmax(logits / np.exp(log_temperature), axis=1)).sum(axis=1).mean())

    return float(np.exp(minimize_scalar(loss, bounds=(-2.5, 2.5), method="bounded").x))


def confidence_threshold(probabilities: Array, actual: Array) -> float:
    """Lowest confidence found above which 95 % of the labels are correct, with 95 % certainty.

    Not the lowest at which these faces happen to reach 95 %, which is too optimistic for others. Returns 1.0, if the
    faces are too few or too often labeled wrongly: less than about a hundred cannot show it.
    Source: selection with guaranteed risk, Geifman and El-Yaniv 2017, algorithm 1.
    """
    order = np.argsort(-probabilities.max(axis=1), kind="stable")
    confidence = probabilities.max(axis=1)[order]
    wrong = np.cumsum((probabilities.argmax(axis=1) != actual)[order])
    steps = math.ceil(math.log2(len(actual) + 1))
    threshold, fewest, most = 1.0, 0, len(actual)
    while fewest < most:
        middle = (fewest + most + 1) // 2
        kept = int(np.searchsorted(-confidence, -confidence[middle - 1], side="right"))  # Ties are kept.
        if binom.cdf(wrong[kept - 1], kept, 1 - TARGET_ACCURACY) <= _RISK / steps:
            threshold, fewest = float(confidence[middle - 1]), middle
        else:
            most = middle - 1
    return threshold


def percent(share: float, digits: int = 1, *, sign: str = "") -> str:
    """Format a share as a percentage, without the percent sign; `sign="+"` shows the sign of gains."""
    return f"{100 * share:{sign}.{digits}f}"


def interval(figure: Interval | Mapping[str, float], digits: int = 2, *, sign: str = "", scale: float = 100) -> str:
    """Format a figure, also one from a file, and its interval: shares as percentages, others with `scale=1`."""
    figure = Interval(**figure) if isinstance(figure, Mapping) else figure
    value, low, high = (f"{scale * part:{sign}.{digits}f}" for part in (figure.value, figure.low, figure.high))
    return f"{value} ({low} to {high})"


_ROWS: Final = {
    "accuracy": "accuracy",
    "mean_class_accuracy": "mean class accuracy",
    "macro_f1": "macro-F1",
    "kept": "kept at the threshold",
    "kept_accuracy": "accuracy of what is kept",
    "nll": "negative log likelihood",
    "brier": "Brier score",
    "ece": "ECE, 15 bins",
    "kl_to_votes": "KL to votes (nats)",
}
_NOT_SHARES: Final = ("nll", "brier", "kl_to_votes")


def scores_table(
    titles: Sequence[str], scores: Sequence[Mapping[str, Any]], *, mean: bool = False
) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of some `evaluate.scores`: metrics with their 95 % intervals, shares in percent.

    Args:
        titles: of the columns; one that is `gain` shows signs.
        mean: whether to add the mean and the standard deviation of the columns.
    """
    labels = dict.fromkeys(label for of in scores for label in of["recall"])
    figures = {title: (name, [of.get(name) for of in scores]) for name, title in _ROWS.items()}
    figures |= {f"recall, {label}": ("recall", [of["recall"].get(label) for of in scores]) for label in labels}
    rows = []
    for title, (name, row) in figures.items():
        if any(figure is not None for figure in row):
            signs = ("+" if column == "gain" else "" for column in titles)
            rows.append([title, *(_cell(figure, name, sign) for figure, sign in zip(row, signs, strict=True))])
            if mean:
                values: list[Any] = [getattr(figure, "value", figure) for figure in row]
                spread = () if None in values else (float(np.mean(values)), float(np.std(values, ddof=1)))
                rows[-1].append(" ± ".join(_cell(figure, name) for figure in spread))
    return ["metric", *titles, *(["mean ± standard deviation"] if mean else [])], rows


def _cell(figure: Any, name: str, sign: str = "") -> str:
    scale, digits = (1, 3) if name in _NOT_SHARES else (100, 2)
    if figure is None:
        return ""
    if isinstance(figure, float):
        return f"{scale * figure:.{digits}f}"
    return interval(figure, digits, sign=sign, scale=scale)


def print_table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> None:
    """Print a table; in a file or a pipe, as wide as it is."""
    table = Table(*heads, title=title)
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 1000).print(table)


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown; vertical bars in cells are escaped."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def write_table(file: Path, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a table as .csv or .md."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([heads, *rows])
    write_atomic(file, text.getvalue() if file.suffix == ".csv" else markdown_table(heads, rows) + "\n")


def write_results(
    results: object, *, json_file: Path | None, table: Path | None = None, heads: Sequence[str] = (), rows: Any = ()
) -> None:
    """Write the results of a command, if wanted: all as JSON, and the table as .csv or .md."""
    if json_file:
        write_atomic(json_file, json.dumps(results, indent=2, default=to_jsonable_python) + "\n")
    if table:
        write_table(table, heads, rows)
