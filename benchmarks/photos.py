"""Accuracy on real color photos with labeled faces: models of Mien, and other programs, on the same faces.

    MIEN_DATA_DIR=... MIEN_MODELS_DIR=... python -m benchmarks.photos [--models fast v3] [--live] [--photos FOLDER]
        [--fer PYTHON] [--js FOLDER] --json out/photos.json

The folder has photos and `labels.csv` with a row per face: file, face_x, face_y (rough center, pixels), label, second
(the rival of an arguable label) and certainty. Only faces whose label is `certain` count. A face is the detected one
whose box contains the point, or the nearest one. Each model is run as it serves: detected, aligned, softened, with the
correction for rare expressions; with `--live` once more as it serves frames of a stream. `benchmarks.neighbors`
describes how to install the other programs. All programs are scored on the faces that all of them find.
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
from mien.models.manifest import artifact_dir, read_manifest
from mien.training.data import Split
from mien.training.evaluate import scores
from mien.training.metrics import print_table, scores_table, write_results

LABELS_FILE: Final = "labels.csv"
_MAX_DISTANCE: Final = 1.0  # of the point from the center of a box, in its longer sides


class LabeledFace(NamedTuple):
    """A row of the labels."""

    file: str
    x: float
    y: float
    label: str


class FoundFace(NamedTuple):
    """A face that a program found: box (x, y, width, height) in pixels, and probabilities by label."""

    box: Sequence[float]
    probabilities: dict[str, float]


class Program(NamedTuple):
    """What a program finds in the photo with a name, and its confidence threshold, if it has one."""

    find: Callable[[str], list[FoundFace]]
    threshold: float | None = None


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


def mien_program(model: str, folder: Path, *, live: bool = False) -> Program:
    """A model of Mien, as it labels; `live`: as in a frame of a stream."""
    labeler = Labeler.open(load_settings(model=artifact_dir(model), device="cpu"))

    def find(file: str) -> list[FoundFace]:
        photo = labeler.label((folder / file).read_bytes(), live=live)
        return [FoundFace(tuple(face.box), face.probabilities) for face in photo.faces]

    return Program(find, read_manifest(artifact_dir(model)).confidence_threshold)


def other_program(path: Path) -> Program:
    """Another program, which has written its faces as JSON lines: file, box and probabilities by label."""
    by_file: dict[str, list[FoundFace]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        face: dict[str, Any] = json.loads(line)
        by_file.setdefault(face["file"], []).append(FoundFace(face["box"], face["probabilities"]))
    return Program(lambda file: by_file.get(file, []))


def measure(labeled: Sequence[LabeledFace], programs: dict[str, Program]) -> dict[str, dict[str, Any]]:
    """Scores of each program on the faces that all programs find, and how many it found."""
    found = {}
    for name, program in programs.items():
        of_photo = {file: program.find(file) for file in sorted({face.file for face in labeled})}
        found[name] = [face_at(of_photo[face.file], face.x, face.y) for face in labeled]
    shared = [index for index, faces in enumerate(zip(*found.values(), strict=True)) if all(faces)]
    labels = np.array([LABELS.index(labeled[index].label) for index in shared])
    keys, nothing = tuple(labeled[index].file for index in shared), np.empty(0)
    split = Split("photos", "certain", nothing, labels, nothing, None, LABELS, keys, index_sha256="")
    results = {}
    for name, faces in found.items():
        scored = [face for index in shared if (face := faces[index]) is not None]
        probabilities = np.array([[face.probabilities.get(label, 0.0) for label in LABELS] for face in scored])
        results[name] = scores(split, probabilities, threshold=programs[name].threshold)
        results[name]["found"] = sum(face is not None for face in faces)
    return results


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--models", nargs="*", default=["fast"], help="names or folders")
    parser.add_argument("--live", action="store_true", help="search each photo as a frame of a stream, too")
    default = Path(os.environ.get("MIEN_DATA_DIR", ".")) / "webphotos" / "webphotos"
    parser.add_argument("--photos", type=Path, default=default, help=f"folder with {LABELS_FILE} (%(default)s)")
    parser.add_argument("--fer", type=Path, metavar="PYTHON", help="interpreter of an environment with fer")
    parser.add_argument("--js", type=Path, metavar="FOLDER", help="folder with node_modules")
    options = parser.parse_args(arguments)
    if not (options.photos / LABELS_FILE).exists():
        parser.error(f"{options.photos} has no {LABELS_FILE}: unpack webphotos.zip, or name another folder by --photos")
    programs = {name: mien_program(name, options.photos) for name in options.models}
    if options.live:
        programs |= {f"{name}, live": mien_program(name, options.photos, live=True) for name in options.models}
    for name, command in neighbor_commands(options.fer, options.js).items():
        with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
            measure_script(command, options.photos, file.name)
            programs[name] = other_program(Path(file.name))
    labeled = read_labels(options.photos)
    results = measure(labeled, programs)
    titles = [f"{name}, {of['found']} of {len(labeled)} faces found" for name, of in results.items()]
    print_table(*scores_table(titles, [*results.values()]))
    write_results(results, json_file=options.json)


if __name__ == "__main__":
    main()
