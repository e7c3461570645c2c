"""Confusion matrix, and recall per expression."""

import numpy as np

from data.contract import LABELS
from training.loop import metrics
from training.report import plot
from training.report.render import Section, percent, render
from training.report.results import RunResult


def matrix(result: RunResult) -> Section:
    """Counts and row shares."""
    counts = np.array(result.evaluation.confusion)
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    body = render("confusion.html", labels=LABELS, counts=counts.tolist(), shares=shares.tolist())
    note = "Rows are the labels of the set, columns the predictions: number of faces, and share of the row in %."
    return Section("confusion", "Confusion matrix", note + _worst(counts), body)


def _worst(counts: np.ndarray) -> str:
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    if not wrong.any():
        return ""
    actual, predicted = (int(index) for index in np.unravel_index(wrong.argmax(), wrong.shape))
    share = wrong[actual, predicted] / counts[actual].sum()
    pair = f"{LABELS[actual]} read as {LABELS[predicted]}"
    return f" The most frequent mistake is {pair}: {percent(share, 0)} % of its faces."


def recall(result: RunResult, *, key: str) -> Section:
    """Share of each class that is found, with intervals."""
    totals = np.array(result.evaluation.confusion).sum(axis=1)
    rows = [
        plot.Row(label, f"{percent(found.value, 0)} %, n {totals[LABELS.index(label)]:,}", (found,))
        for label, found in result.evaluation.recall.items()
    ]
    label = "; ".join(f"{row.name} {row.note}" for row in rows)
    body = render("figures.html", figures=[plot.intervals(rows, name=f"{key}-recall", label=f"Recall: {label}")])
    note = (
        f"Share of each expression's faces that are labeled so, in %, with 95 % intervals ({metrics.RESAMPLES} draws)."
    )
    return Section("recall", "Recall per class", note, body)
