"""Comparison of two artifacts or runs on the same faces, such as before and after tuning, with paired intervals.

mien compare models/artifacts/BEFORE models/artifacts/AFTER --data folders=sets/folders --split valid [--prior natural]

Artifacts are compared as they are served, by default with the correction for rare classes (`balanced`). A run has
neither correction nor temperature.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console
from rich.table import Table

from mien.data.contract import LABELS, Array
from mien.models.manifest import Interval, Prior
from mien.training import metrics
from mien.training.config import DataSource
from mien.training.evaluate import open_model
from mien.training.faces import in_order, read_split
from mien.training.wording import ResultFiles, interval, percent, plain_interval

NLL: Final = "negative log likelihood"


@dataclass(frozen=True, slots=True)
class Gain:
    """A metric of both artifacts; `gain` is paired by face."""

    name: str
    before: float
    after: float
    gain: Interval


def compare(before: Array, after: Array, labels: Array, classes: tuple[str, ...] = LABELS) -> list[Gain]:
    """Compare negative log likelihood, accuracy, mean class accuracy, and recall of each class that occurs.

    Args:
        before, after: (N, K) probabilities. A negative gain of the negative log likelihood is an improvement.
    """
    present = np.unique(labels)

    def scores(predicted: Array, labels: Array) -> Array:
        counts = metrics.confusion(predicted, labels, classes=len(classes))
        overall = metrics.accuracy(counts), metrics.mean_class_accuracy(counts)
        return np.array([*overall, *metrics.recalls(counts)[present]])

    names = ["accuracy", "mean class accuracy", *(f"recall, {classes[index]}" for index in present)]
    predictions = [probabilities.argmax(axis=1) for probabilities in (before, after)]
    sides = [scores(predicted, labels).tolist() for predicted in predictions]
    gains = metrics.bootstrap_all(lambda b, a, actual: scores(a, actual) - scores(b, actual), *predictions, labels)
    loss_before, loss_after = (metrics.negative_log_likelihood(side, labels) for side in (before, after))
    loss = Gain(NLL, float(loss_before.mean()), float(loss_after.mean()), metrics.mean(loss_after - loss_before))
    return [loss, *(Gain(*row) for row in zip(names, *sides, gains, strict=True))]


def _cells(row: Gain) -> tuple[str, ...]:
    """Cells of a gain; shares in percent."""
    if row.name == NLL:
        return (row.name, f"{row.before:.3f}", f"{row.after:.3f}", plain_interval(row.gain, sign="+"))
    return (row.name, percent(row.before, 2), percent(row.after, 2), interval(row.gain, sign="+"))


def run(before_dir: Path, after_dir: Path, source: DataSource, *, prior: Prior, files: ResultFiles) -> None:
    """Print the gains of one artifact or run over another on a split."""
    before, after = open_model(before_dir), open_model(after_dir)
    faces, models = read_split(source), (before, after)
    for model in models:
        faces.for_classes(model.labels, of=model.name)  # both know the classes of all faces
    classes = tuple(dict.fromkeys((*before.labels, *after.labels)))
    faces = faces.for_classes(classes, of="both")
    print(f"before: {before.title(prior)}\nafter: {after.title(prior)}")
    sides = [in_order(model.probabilities(model.logits(faces.crops), prior), model.labels, classes) for model in models]
    gains = compare(sides[0], sides[1], faces.labels, classes)
    heads = ("metric", "before", "after", "gain (95 % interval)")
    rows = [_cells(gain) for gain in gains]
    table = Table(*heads, title=faces.title)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    mcnemar_p = metrics.mcnemar_p(*(probabilities.argmax(axis=1) == faces.labels for probabilities in sides))
    print(f"McNemar's test: p = {mcnemar_p:.2g}")
    names = {"before": before.title(prior), "after": after.title(prior)}
    files.write(heads, rows, {**names, "faces": len(faces), "mcnemar_p": mcnemar_p, "gains": gains})
    for model in models:
        if warning := faces.changed_since(model.trained_with):
            print(f"warning: {model.name}: {warning}", file=sys.stderr)
