"""Comparison of two artifacts or runs on the same faces, such as before and after tuning, with paired intervals.

mien compare models/artifacts/BEFORE models/artifacts/AFTER --data folders=sets/folders --split valid [--prior natural]

Artifacts are compared as they are served, by default with the correction for rare classes (`balanced`). A run has none.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from mien.data.contract import EIGHT_LABELS, Array
from mien.data.errors import MienError
from mien.models.manifest import MANIFEST_NAME, Interval, Prior, artifact_dir, load_artifact
from mien.training.arguments import parse
from mien.training.evaluate import open_graph, run_graph
from mien.training.faces import read_faces
from mien.training.loop import metrics
from mien.training.loop.run_folder import load_best
from mien.training.loop.supervised import predict
from mien.training.wording import interval, percent


@dataclass(frozen=True, slots=True)
class Gain:
    """A metric of both artifacts; `gain` is paired by face."""

    name: str
    before: float
    after: float
    gain: Interval


def compare(before: Array, after: Array, labels: Array) -> list[Gain]:
    """Compare accuracy, mean class accuracy, and recall of each class that occurs.

    Args:
        before, after: (N,) predicted classes.
        labels: (N,) actual classes.
    """

    def gain(name: str, metric: Callable[[Array, Array], float], chosen: Array) -> Gain:
        def of(predicted: Array, i: Array) -> float:
            return metric(predicted[chosen][i], labels[chosen][i])

        everything = np.arange(len(chosen))
        paired = metrics.bootstrap(lambda i: of(after, i) - of(before, i), len(chosen))
        return Gain(name, of(before, everything), of(after, everything), paired)

    def accuracy(predicted: Array, actual: Array) -> float:
        return float((predicted == actual).mean())

    def mean_class_accuracy(predicted: Array, actual: Array) -> float:
        return metrics.mean_class_accuracy(metrics.confusion(predicted, actual))

    everything = np.arange(len(labels))
    classes = [
        gain(f"recall, {EIGHT_LABELS[index]}", accuracy, np.flatnonzero(labels == index)) for index in np.unique(labels)
    ]
    overall = [gain("accuracy", accuracy, everything), gain("mean class accuracy", mean_class_accuracy, everything)]
    return overall + classes


def predict_classes(folder: Path, crops: Array, *, prior: Prior) -> tuple[str, Array]:
    """Display name, and predicted classes (N,) of (N, 112, 112, 3) crops, of an artifact's fp32 graph or a run.

    Raises: ArtifactError, RunError, CheckpointError.
    """
    if not (folder / MANIFEST_NAME).exists():
        network, state = load_best(folder)
        return f"run {folder.name}", predict(network, crops)[state["head"]].argmax(axis=1)
    manifest = load_artifact(folder)
    logits = run_graph(open_graph(folder / manifest.graph("fp32").file), crops)
    return f"{manifest.name}, {prior}", manifest.probabilities(logits, prior).argmax(axis=1)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    chosen = parse("compare", arguments)
    kind, root = chosen.data
    try:
        faces = read_faces(kind, root, chosen.split, dict(chosen.option))
        sides = [
            predict_classes(artifact_dir(model), faces.crops, prior=chosen.prior)
            for model in (chosen.before, chosen.after)
        ]
    except MienError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    (before_name, before), (after_name, after) = sides
    print(f"before: {before_name}\nafter: {after_name}")
    table = Table("metric", "before", "after", "gain (95 % interval)", title=faces.title)
    for row in compare(before, after, faces.labels):
        table.add_row(row.name, percent(row.before, 2), percent(row.after, 2), interval(row.gain, sign="+"))
    Console().print(table)
    print(f"McNemar's test: p = {metrics.mcnemar_p(before == faces.labels, after == faces.labels):.2g}")
    return 0
