"""Comparison of two artifacts or runs on the same faces, such as before and after tuning, with paired intervals.

mien compare models/artifacts/BEFORE models/artifacts/AFTER --data folders=sets/folders --split valid [--prior natural]

Artifacts are compared as they are served, by default with the correction for rare classes (`balanced`). A run has none.
"""

import sys
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
    present, everything = np.unique(labels), np.arange(len(labels))

    def scores(predicted: Array, chosen: Array) -> Array:
        counts = metrics.confusion(predicted[chosen], labels[chosen])
        overall = metrics.accuracy(counts), metrics.mean_class_accuracy(counts)
        return np.array([*overall, *metrics.recalls(counts)[present]])

    names = ["accuracy", "mean class accuracy", *(f"recall, {EIGHT_LABELS[index]}" for index in present)]
    sides = [scores(predicted, everything).tolist() for predicted in (before, after)]
    gains = metrics.bootstrap_all(lambda chosen: scores(after, chosen) - scores(before, chosen), len(labels))
    return [Gain(*row) for row in zip(names, *sides, gains, strict=True)]


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
