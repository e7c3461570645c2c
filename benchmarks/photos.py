"""Accuracy on real color photos with labeled faces: models of Mien, and other programs, on the same faces.

    MIEN_DATA_DIR=... MIEN_MODELS_DIR=... python -m benchmarks.photos [--models fast v3] [--photos FOLDER]
        [--fer PYTHON] [--js FOLDER] --json out/photos.json

The folder has photos and `labels.csv` with a row per face: file, face_x, face_y (rough center, pixels), label, second
(the rival of an arguable label) and certainty. Only faces whose label is `certain` count. A face is the detected one
whose box contains the point, or the nearest one. Each model is run as it serves: detected, aligned, softened, with the
correction for rare expressions. `benchmarks.neighbors` describes how to install the other programs. All programs are
scored on the faces that all of them find.
"""

import csv
import json
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.harness import benchmark_parser
from benchmarks.neighbors import measure_script, neighbor_commands
from mien.app.inference.labeler import Labeler
from mien.app.settings import load_settings
from mien.data.contract import LABELS
from mien.models.manifest import artifact_dir
from mien.training import metrics
from mien.training.metrics import interval, markdown_table, write_results

LABELS_FILE: Final = "labels.csv"
_MAX_DISTANCE: Final = 1.0  # of the point from the center of a box, in its longer sides


class LabeledFace(NamedTuple):
    """A row of the labels."""

    file: str
    x: float
    y: float
    label: str


class FoundFace(NamedTuple):
    """A face that a program found: box (x, y, width, height) in pixels, and probabilities by label.

    `uncertain` says whether the most probable one is below the program's threshold; None without a threshold.
    """

    box: Sequence[float]
    probabilities: dict[str, float]
    uncertain: bool | None = None


FindFaces = Callable[[str], list[FoundFace]]  # of the photo with this name


def read_labels(folder: Path) -> list[LabeledFace]:
    """The faces whose labels are certain."""
    with (folder / LABELS_FILE).open(encoding="utf-8", newline="") as file:
        return [
            LabeledFace(row["file"], float(row["face_x"]), float(row["face_y"]), row["label"])
            for row in csv.DictReader(file)
            if row["certainty"] == "certain"
        ]


def face_at(faces: Sequence[FoundFace], x: float, y: float) -> FoundFace | None:
    """The face whose box contains a point, the one with the nearest center of several; else the nearest face."""

    def distance(face: FoundFace) -> tuple[bool, float]:
        left, top, width, height = face.box
        outside = not (left <= x <= left + width and top <= y <= top + height)
        return outside, math.hypot(left + width / 2 - x, top + height / 2 - y) / max(width, height)

    nearest = min(faces, key=distance, default=None)
    return nearest if nearest is not None and distance(nearest)[1] <= _MAX_DISTANCE else None


def model_faces(model: str, folder: Path) -> FindFaces:
    """Faces that a model of Mien labels."""
    labeler = Labeler.open(load_settings(model=artifact_dir(model), device="cpu"))

    def find(file: str) -> list[FoundFace]:
        photo = labeler.label((folder / file).read_bytes())
        return [FoundFace(tuple(face.box), face.probabilities, face.uncertain) for face in photo.faces]

    return find


def predicted_faces(path: Path) -> FindFaces:
    """Faces that another program has written as JSON lines: file, box and probabilities by label."""
    by_file: dict[str, list[FoundFace]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        face: dict[str, Any] = json.loads(line)
        by_file.setdefault(face["file"], []).append(FoundFace(face["box"], face["probabilities"]))
    return lambda file: by_file.get(file, [])


def measure(labeled: Sequence[LabeledFace], programs: dict[str, FindFaces]) -> dict[str, dict[str, Any]]:
    """Metrics of each program, on the faces that all programs find."""
    found = {}
    for name, find in programs.items():
        of_photo = {file: find(file) for file in sorted({face.file for face in labeled})}
        found[name] = [face_at(of_photo[face.file], face.x, face.y) for face in labeled]
    shared = [index for index, faces in enumerate(zip(*found.values(), strict=True)) if all(faces)]
    truth = np.array([LABELS.index(labeled[index].label) for index in shared])
    results = {}
    for name, faces in found.items():
        scored = [face for index in shared if (face := faces[index]) is not None]
        probabilities = np.array([[face.probabilities.get(label, 0.0) for label in LABELS] for face in scored])
        correct, kept = probabilities.argmax(axis=1) == truth, np.array([face.uncertain is False for face in scored])
        counts = metrics.confusion(probabilities.argmax(axis=1), truth, classes=len(LABELS))
        results[name] = {
            "found": sum(face is not None for face in faces),
            "labeled": len(labeled),
            "scored": len(shared),
            "accuracy": metrics.share(correct),
            "mean_class_accuracy": metrics.mean_class_interval(counts),
            "nll": metrics.mean(metrics.negative_log_likelihood(probabilities, truth)),
            "kept": metrics.share(kept) if kept.any() else None,
            "accuracy_of_kept": metrics.share(correct[kept]) if kept.any() else None,
            "confusion": counts.tolist(),
        }
    return results


def table(results: dict[str, dict[str, Any]]) -> str:
    """Results as a table in Markdown; shares in percent."""
    headings = (
        "program", "faces found", "accuracy", "mean class accuracy", "negative log likelihood",
        "kept at the threshold", "accuracy of what is kept",
    )  # fmt: skip
    rows = [
        (
            name,
            f"{result['found']} of {result['labeled']}",
            interval(result["accuracy"], 1),
            interval(result["mean_class_accuracy"], 1),
            interval(result["nll"], 3, scale=1),
            *(interval(result[name], 1) if result[name] else "" for name in ("kept", "accuracy_of_kept")),
        )
        for name, result in results.items()
    ]
    return markdown_table(headings, rows)


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--models", nargs="*", default=["fast"], help="names or folders")
    default = Path(os.environ.get("MIEN_DATA_DIR", ".")) / "webphotos" / "webphotos"
    parser.add_argument("--photos", type=Path, default=default, help=f"folder with {LABELS_FILE} (%(default)s)")
    parser.add_argument("--fer", type=Path, metavar="PYTHON", help="interpreter of an environment with fer")
    parser.add_argument("--js", type=Path, metavar="FOLDER", help="folder with node_modules")
    options = parser.parse_args(arguments)
    programs = {name: model_faces(name, options.photos) for name in options.models}
    for name, command in neighbor_commands(options.fer, options.js).items():
        with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
            measure_script(command, options.photos, file.name)
            programs[name] = predicted_faces(Path(file.name))
    results = measure(read_labels(options.photos), programs)
    print(table(results))
    write_results(results, json_file=options.json)


if __name__ == "__main__":
    main()
