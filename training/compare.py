"""Comparison of two artifacts on the same faces, such as before and after tuning, with paired intervals.

mien compare models/artifacts/BEFORE models/artifacts/AFTER --data folders=sets/folders --split valid
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from mien.data.contract import EIGHT_LABELS, Array
from mien.data.errors import MienError
from mien.models.manifest import Interval, load_artifact
from mien.training.command import add_data_arguments
from mien.training.evaluate import open_graph, run_graph
from mien.training.faces import FaceSet, read_faces
from mien.training.loop import metrics
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

    def gain(name: str, chosen: Array) -> Gain:
        right = [(predicted == labels)[chosen].astype(float) for predicted in (before, after)]
        paired = metrics.bootstrap(lambda i: float((right[1][i] - right[0][i]).mean()), len(chosen))
        return Gain(name, float(right[0].mean()), float(right[1].mean()), paired)

    everything = np.arange(len(labels))
    classes = [gain(f"recall, {EIGHT_LABELS[index]}", np.flatnonzero(labels == index)) for index in np.unique(labels)]
    return [gain("accuracy", everything), _mean_class(before, after, labels), *classes]


def _mean_class(before: Array, after: Array, labels: Array) -> Gain:
    def figure(predicted: Array, chosen: Array) -> float:
        return metrics.mean_class_accuracy(metrics.confusion(predicted[chosen], labels[chosen]))

    everything = np.arange(len(labels))
    paired = metrics.bootstrap(lambda i: figure(after, i) - figure(before, i), len(labels))
    return Gain("mean class accuracy", figure(before, everything), figure(after, everything), paired)


def predicted_classes(folder: Path, crops: Array) -> Array:
    """Predict classes (N,) of (N, 112, 112, 3) crops with an artifact's fp32 graph. Raises: ArtifactError."""
    manifest = load_artifact(folder)
    return np.asarray(run_graph(open_graph(folder / manifest.graph("fp32").file), crops).argmax(axis=1))


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="mien compare", description="Compare two artifacts.")
    parser.add_argument("before", type=Path, help="artifact folder")
    parser.add_argument("after", type=Path, help="artifact folder")
    add_data_arguments(parser)
    chosen = parser.parse_args(arguments)
    kind, root = chosen.data
    try:
        print_gains(chosen.before, chosen.after, read_faces(kind, root, chosen.split, dict(chosen.option)))
    except MienError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def print_gains(before: Path, after: Path, faces: FaceSet) -> None:
    """Print the metrics of both artifacts, and the gain with its 95 % interval, in percent."""
    table = Table("metric", "before", "after", "gain (95 % interval)", title=f"{len(faces)} faces")
    predicted = [predicted_classes(folder, faces.crops) for folder in (before, after)]
    for row in compare(predicted[0], predicted[1], faces.labels):
        table.add_row(row.name, percent(row.before, 2), percent(row.after, 2), interval(row.gain, sign="+"))
    Console().print(table)
