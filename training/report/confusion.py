"""Confusion matrix and recall per expression."""

import numpy as np

from data.contract import EIGHT_LABELS
from training.loop import metrics
from training.report import plot
from training.report.render import Section, render
from training.report.results import RunResult
from training.wording import percent


def matrix(result: RunResult) -> Section:
    """Confusion matrix with counts and shares of each row."""
    counts = np.array(result.evaluation.confusion)
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    body = render("confusion.html", labels=EIGHT_LABELS[: len(counts)], counts=counts.tolist(), shares=shares.tolist())
    note = "Rows are labels of the data set, columns are predictions: number of faces, and share of the row in %."
    return Section("confusion", "Confusion matrix", note + _worst(counts), body)


def _worst(counts: np.ndarray) -> str:
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    if not wrong.any():
        return ""
    actual, predicted = (int(index) for index in np.unravel_index(wrong.argmax(), wrong.shape))
    share = wrong[actual, predicted] / counts[actual].sum()
    pair = f"{EIGHT_LABELS[actual]} labeled {EIGHT_LABELS[predicted]}"
    return f" The most frequent mistake is {pair}: {percent(share, 0)} % of the faces."


def recall(result: RunResult, *, key: str) -> Section:
    """Recall per class, with intervals."""
    totals = np.array(result.evaluation.confusion).sum(axis=1)
    rows = [
        plot.Row(label, f"{percent(found.value, 0)} %, n {totals[EIGHT_LABELS.index(label)]:,}", (found,))
        for label, found in result.evaluation.recall.items()
    ]
    label = "; ".join(f"{row.name} {row.note}" for row in rows)
    body = render("figures.html", figures=[plot.intervals(rows, name=f"{key}-recall", label=f"Recall: {label}")])
    note = (
        f"Share of faces of each expression that are labeled correctly, in %, with 95 % bootstrap intervals "
        f"({metrics.RESAMPLES} resamples)."
    )
    return Section("recall", "Recall per class", note, body)
