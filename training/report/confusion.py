"""Confusion matrix and recall per expression."""

import numpy as np

from mien.data.contract import EIGHT_LABELS
from mien.training.loop import metrics
from mien.training.report import plot
from mien.training.report.render import Section, render
from mien.training.report.results import RunResult
from mien.training.wording import most_confused, percent


def matrix(result: RunResult) -> Section:
    """Confusion matrix with counts and shares of each row."""
    counts = np.array(result.evaluation.confusion)
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    body = render("confusion.html", labels=EIGHT_LABELS[: len(counts)], counts=counts.tolist(), shares=shares.tolist())
    note = "Rows are labels of the data set, columns are predictions: number of faces, and share of the row in %."
    worst = most_confused(counts, EIGHT_LABELS)
    note += f" The most frequent mistake is {worst} of the faces." if worst else ""
    return Section("confusion", "Confusion matrix", note, body)


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
