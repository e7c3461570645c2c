"""Scores of a released detector on held-out pictures: the ONNX graph that users get, beside YuNet.

    python -m training.detector.evaluate [--artifact models/artifacts/NAME] [--json OUT]

Needs MIEN_DATA_DIR, the folder of the pictures, and MIEN_MODELS_DIR, that of YuNet's file.
The pictures are the tenth of each folder of the artifact's recipe that training did not read. What counts as a face is
YuNet's word: boxes and landmarks are means over eight looks. Every figure carries a 95 % bootstrap interval over
pictures.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

import cv2
import numpy as np
from rich.console import Console
from rich.table import Table

from data.atomic import write_atomic
from data.contract import Array
from data.errors import MienError
from models.detector.manifest import DetectorManifest, default_detector_dir, load_detector
from training.detector.config import DetectorData, DetectorRecipe
from training.detector.pictures import Picture, Pictures, load_pictures
from training.detector.runner import Network, with_free_sides
from training.detector.scenes import moved, similarity, sure_faces, warped
from training.detector.teacher import SCORE, box_iou
from training.loop.metrics import Estimate, bootstrap

Detect = Callable[[Array], Array]  # (H, W, 3) uint8 BGR -> (N, 15) float32
SAME_IOU: Final = 0.4
TEACHER_THRESHOLD: Final = 0.6  # that of serving
LEAST_FACE_PX: Final = 24.0
SIZES_PX: Final = ((12, 24), (24, 48), (48, 96), (96, 256))
TURNS_DEG: Final = (0, 15, 30, 90)
_NOTHING: Final = Estimate(float("nan"), float("nan"), float("nan"))
_REFERENCE_SCORE: Final = 0.8
_TURNED_PX: Final = (48.0, 160.0)  # sizes of the faces that are turned
_MOST_PX: Final = 640


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What one detector found in one picture, against YuNet's faces.

    found: (F,) bool, of the reference faces. errors: (M,) landmark errors of those found, in distances of the eyes.
    false: detections where YuNet sees nothing at all. detections: how many there are.
    """

    found: Array
    errors: Array
    false: int
    detections: int


Count = Callable[[Found], float]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of one detector."""

    name: str
    faces: int
    estimate: Estimate


def compare(rows: Array, faces: Array, doubtful: Array) -> Found:
    """Match detections (N, 15), best first, with reference faces (F, 14 and more), each at most once.

    A detection that matches none is false unless it overlaps one of the `doubtful` boxes (D, 4).
    """
    overlap = box_iou(rows[:, :4], faces[:, :4])
    found, errors, false = np.zeros(len(faces), bool), [], 0
    for number in range(len(rows)):
        free = np.where(found, 0.0, overlap[number])
        best = int(free.argmax()) if len(faces) else -1
        if best >= 0 and free[best] >= SAME_IOU:
            found[best] = True
            errors.append(landmark_error(rows[number, 4:14], faces[best, 4:14]))
        elif not (box_iou(rows[number : number + 1, :4], doubtful) >= SAME_IOU / 2).any():
            false += 1
    return Found(found, np.array(errors), false, len(rows))


def landmark_error(points: Array, true: Array) -> float:
    """Mean distance of five points (10,) from the true ones, in distances of the true eyes."""
    wanted = true.reshape(5, 2)
    distance = np.linalg.norm(points.reshape(5, 2) - wanted, axis=1).mean()
    return float(distance / max(1e-6, float(np.linalg.norm(wanted[1] - wanted[0]))))


def evaluate(detect: Detect, pictures: Pictures) -> list[Figure]:
    """All figures of one detector."""
    plain = [_plain(detect, picture) for picture in pictures.items]
    figures = [
        _recall(f"recall, faces of {LEAST_FACE_PX:.0f} px and more", plain),
        _share("false faces per 100 faces", plain, lambda one: 100 * one.false, _faces),
        _share("precision", plain, lambda one: one.detections - one.false, lambda one: one.detections),
        _error("landmark error, mean", plain),
        _median_error("landmark error, median", plain),
    ]
    for low, high in SIZES_PX:
        resized = [_warped_look(detect, *one) for one in _resized(pictures, low, high)]
        figures.append(_recall(f"recall, {low} to {high} px", resized))
    for turn in TURNS_DEG:
        turned = [_warped_look(detect, *one) for one in _turned(pictures, turn)]
        figures += [
            _recall(f"recall, turned by {turn} degrees", turned),
            _error(f"landmark error, turned by {turn} degrees", turned),
        ]
    return figures


def _plain(detect: Detect, picture: Picture) -> Found:
    """One look at a picture in its own size."""
    return compare(detect(picture.read()), reference_faces(picture), picture.faces[:, :4])


def reference_faces(picture: Picture) -> Array:
    """YuNet's faces (F, 15) that a detector should find: of 24 px and more, score 0.8 and more."""
    faces = picture.faces
    chosen = (faces[:, SCORE] >= _REFERENCE_SCORE) & (faces[:, 2:4].max(axis=1, initial=0) >= LEAST_FACE_PX)
    return np.asarray(faces[chosen])


def _warped_look(detect: Detect, image: Array, faces: Array, doubtful: Array) -> Found:
    return compare(detect(image), faces, doubtful)


def _resized(pictures: Pictures, low: float, high: float) -> Iterator[tuple[Array, Array, Array]]:
    """Pictures brought to a size where one of their faces has from `low` to `high` px, with those that have."""
    for number, (picture, face) in enumerate(_with_sure_face(pictures)):
        rng = np.random.default_rng([number, int(low)])
        scale = np.exp(rng.uniform(np.log(low), np.log(high))) / max(face[2:4])
        if scale <= 2:
            image, placed, all_boxes = _under(picture, scale, 0.0)
            size = placed[:, 2:4].max(axis=1)
            yield image, placed[(size >= low) & (size < high)], all_boxes


def _turned(pictures: Pictures, turn_deg: float) -> Iterator[tuple[Array, Array, Array]]:
    """Pictures turned about their middle on a canvas that holds them, to the left and to the right by turns."""
    for number, (picture, face) in enumerate(_with_sure_face(pictures)):
        size = float(np.clip(max(face[2:4]), *_TURNED_PX))
        image, placed, all_boxes = _under(picture, size / max(face[2:4]), turn_deg * (-1) ** number)
        sides = placed[:, 2:4].max(axis=1)
        yield image, placed[sides >= LEAST_FACE_PX], all_boxes


def _with_sure_face(pictures: Pictures) -> Iterator[tuple[Picture, Array]]:
    for picture in pictures.items:
        sure = sure_faces(picture.faces)
        if len(sure):
            yield picture, sure[sure[:, SCORE].argmax()]


def _under(picture: Picture, scale: float, turn_deg: float) -> tuple[Array, Array, Array]:
    """The picture scaled and turned on a gray canvas; its sure faces and all boxes there."""
    image = picture.read()
    height, width = image.shape[:2]
    turn = np.deg2rad(turn_deg)
    across = scale * np.abs([[np.cos(turn), np.sin(turn)], [np.sin(turn), np.cos(turn)]]) @ [width, height]
    size = tuple(int(side) for side in np.minimum(np.ceil(across), _MOST_PX))
    matrix = similarity(np.array([width, height]) / 2, np.array(size) / 2, scale, turn_deg)
    canvas = warped(image, matrix, (size[0], size[1]), scale, border=cv2.BORDER_CONSTANT)
    faces = moved(picture.faces, matrix)
    sure = sure_faces(picture.faces, faces)
    center = sure[:, :2] + sure[:, 2:4] / 2
    return canvas, sure[((center > 0) & (center < size)).all(axis=1)], faces[:, :4]


def _share(name: str, looks: list[Found], part: Count, whole: Count) -> Figure:
    """A sum over pictures divided by another, with its interval over pictures; NaN of nothing."""
    parts, wholes = np.array([part(one) for one in looks]), np.array([whole(one) for one in looks])

    def statistic(chosen: Array) -> float:
        total = wholes[chosen].sum()
        return float(parts[chosen].sum() / total) if total else float("nan")

    return Figure(
        name, sum(len(one.found) for one in looks), bootstrap(statistic, len(looks)) if wholes.sum() else _NOTHING
    )


def _recall(name: str, looks: list[Found]) -> Figure:
    return _share(name, looks, lambda one: float(one.found.sum()), _faces)


def _error(name: str, looks: list[Found]) -> Figure:
    return _share(name, looks, lambda one: float(one.errors.sum()), lambda one: len(one.errors))


def _median_error(name: str, looks: list[Found]) -> Figure:
    errors = np.concatenate([one.errors for one in looks])
    estimate = bootstrap(lambda chosen: float(np.median(errors[chosen])), len(errors)) if len(errors) else _NOTHING
    return Figure(name, sum(len(one.found) for one in looks), estimate)


def _faces(look: Found) -> float:
    return len(look.found)


def evaluate_artifact(
    folder: Path, data: DetectorData | None = None
) -> tuple[DetectorManifest, dict[str, list[Figure]]]:
    """Figures of an artifact, and of YuNet in one look, by name.

    Args:
        folder: the artifact's.
        data: where its pictures are; those of its recipe, in the folders that the environment names, without it.
    Raises: ArtifactError, DatasetError, RecipeError.
    """
    manifest = load_detector(folder)
    data = data or DetectorRecipe.model_validate(manifest.recipe).data
    pictures = load_pictures(data, "valid")
    detectors = {
        manifest.name: (Network(folder / manifest.graph.file), manifest.score_threshold),
        "YuNet": (Network(with_free_sides(data.resolved_teacher())), TEACHER_THRESHOLD),
    }
    return manifest, {
        name: evaluate(partial(network, threshold=least), pictures) for name, (network, least) in detectors.items()
    }


def table(figures: dict[str, list[Figure]]) -> Table:
    """One row per figure, one column per detector."""
    out = Table("on held-out pictures", "faces", *figures)
    for rows in zip(*figures.values(), strict=True):
        cells = [f"{one.estimate.value:.3f} ({one.estimate.low:.3f} to {one.estimate.high:.3f})" for one in rows]
        out.add_row(rows[0].name, str(rows[0].faces), *cells)
    return out


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m training.detector.evaluate", description="Score a released face detector beside YuNet."
    )
    parser.add_argument("--artifact", type=Path, help="artifact folder; the default detector when not given")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args(arguments)
    console = Console()
    try:
        manifest, figures = evaluate_artifact(options.artifact or default_detector_dir())
    except MienError as error:
        Console(stderr=True).print(f"[red]{error}[/red]", highlight=False)
        return 1
    console.print(table(figures))
    if options.json:
        values = {name: [asdict(one) for one in each] for name, each in figures.items()}
        write_atomic(options.json, json.dumps({"artifact": manifest.name, "figures": values}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
