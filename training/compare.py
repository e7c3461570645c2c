"""Comparison of two artifacts or runs on the same faces, such as before and after tuning, with paired intervals.

mien compare models/artifacts/BEFORE models/artifacts/AFTER --data folders=sets/folders --split valid [--prior natural]

Artifacts are compared as they are served, by default with the correction for rare classes (`balanced`). A run has none.
"""

import sys
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from mien.data.contract import EIGHT_LABELS, Array
from mien.models.manifest import MANIFEST_NAME, Interval, Prior, artifact_dir, load_artifact
from mien.training import metrics
from mien.training.command import command
from mien.training.evaluate import open_graph, run_graph
from mien.training.faces import FaceSet, chosen_source, read_faces
from mien.training.loop.prediction import predict
from mien.training.loop.run_folder import load_best, read_facts
from mien.training.wording import interval, percent, write_results


@dataclass(frozen=True, slots=True)
class Gain:
    """A metric of both artifacts; `gain` is paired by face."""

    name: str
    before: float
    after: float
    gain: Interval


def compare(before: Array, after: Array, labels: Array) -> list[Gain]:
    """Compare accuracy, mean class accuracy, and recall of each class that occurs; all are (N,) class indices."""
    present = np.unique(labels)

    def scores(predicted: Array, labels: Array) -> Array:
        counts = metrics.confusion(predicted, labels)
        overall = metrics.accuracy(counts), metrics.mean_class_accuracy(counts)
        return np.array([*overall, *metrics.recalls(counts)[present]])

    names = ["accuracy", "mean class accuracy", *(f"recall, {EIGHT_LABELS[index]}" for index in present)]
    sides = [scores(predicted, labels).tolist() for predicted in (before, after)]
    gains = metrics.bootstrap_all(lambda b, a, actual: scores(a, actual) - scores(b, actual), before, after, labels)
    return [Gain(*row) for row in zip(names, *sides, gains, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class Predicted:
    """Display name, predicted classes (N,), and a warning if the faces changed since the training."""

    name: str
    classes: Array
    warning: str


def predict_classes(folder: Path, faces: FaceSet, *, prior: Prior) -> Predicted:
    """Predictions of an artifact's fp32 graph or of a run. Raises: ArtifactError, RunError, CheckpointError."""
    if not (folder / MANIFEST_NAME).exists():
        network, state = load_best(folder)
        faces.check_classes(len(state["labels"]), of=f"run {folder.name}")
        classes = predict(network, faces.crops, heads=(state["head"],))[state["head"]].argmax(axis=1)
        return Predicted(f"run {folder.name}", classes, faces.changed_since(read_facts(folder)["data"]))
    manifest = load_artifact(folder)
    faces.check_classes(len(manifest.labels), of=f"artifact {manifest.name}")
    logits = run_graph(open_graph(folder / manifest.graph("fp32").file), faces.crops)
    classes = manifest.probabilities(logits, prior).argmax(axis=1)
    return Predicted(f"{manifest.name}, {prior}", classes, faces.changed_since(manifest.data_index_sha256))


@command("compare")
def main(chosen: Namespace) -> None:
    """Command line."""
    faces = read_faces(chosen_source(chosen))
    before, after = (
        predict_classes(artifact_dir(model), faces, prior=chosen.prior) for model in (chosen.before, chosen.after)
    )
    print(f"before: {before.name}\nafter: {after.name}")
    gains = compare(before.classes, after.classes, faces.labels)
    heads = ("metric", "before", "after", "gain (95 % interval)")
    rows = [
        (gain.name, percent(gain.before, 2), percent(gain.after, 2), interval(gain.gain, sign="+")) for gain in gains
    ]
    table = Table(*heads, title=faces.title)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    mcnemar_p = metrics.mcnemar_p(before.classes == faces.labels, after.classes == faces.labels)
    print(f"McNemar's test: p = {mcnemar_p:.2g}")
    results = {"before": before.name, "after": after.name, "faces": len(faces), "mcnemar_p": mcnemar_p, "gains": gains}
    write_results(chosen, heads, rows, results)
    for side in (before, after):
        if side.warning:
            print(f"warning: {side.name}: {side.warning}", file=sys.stderr)
