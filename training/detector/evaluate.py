"""Evaluation of a released detector on held-out images, next to YuNet.

    mien detector evaluate [--artifact models/artifacts/NAME] [--json OUT]

MIEN_DATA_DIR contains the images, MIEN_MODELS_DIR YuNet's file. The images are the test split of each folder of the
artifact's recipe. The reference is YuNet's labels (teacher.py). Intervals are 95 % bootstrap intervals over images.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import cv2
import numpy as np

from mien.data.contract import Array
from mien.models.detector.decode import detect_rows
from mien.models.detector.manifest import DetectorMetric, default_detector_dir, load_detector
from mien.models.detector.yunet import dynamic_graph
from mien.training.detector.config import DetectorData, DetectorRecipe
from mien.training.detector.images import LabeledImage, LabeledImages, load_images
from mien.training.detector.scenes import is_sure, similarity, transform_faces, warp
from mien.training.detector.teacher import SCORE, VIEW_SHARE, box_iou
from mien.training.evaluate import open_graph
from mien.training.metrics import bootstrap
from mien.training.wording import ResultFiles, interval, plain_interval, print_table

Detect = Callable[[Array], Array]  # (H, W, 3) uint8 BGR -> (N, 15) float32
SAME_IOU: Final = 0.4
TEACHER_THRESHOLD: Final = 0.6  # as in serving
MIN_FACE_PX: Final = 24.0
SIZES_PX: Final = ((12, 24), (24, 48), (48, 96), (96, 256))
ROTATIONS_DEG: Final = (0, 15, 30, 90)
_REFERENCE_SCORE, _REFERENCE_SHARE = 0.8, 0.15
THRESHOLDS: Final = tuple(round(0.4 + 0.01 * number, 2) for number in range(56))
_ROTATED_PX: Final = (48.0, 160.0)  # sizes of rotated faces
_MAX_PX: Final = 640


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """Detections in one image, matched with the reference.

    found: (F,) bool, one per reference face. errors: (M,) landmark errors of the found faces. false: number of false
    positives. detections: number of detections.
    """

    found: Array
    errors: Array
    false: int
    detections: int


def compare(rows: Array, faces: Array, doubtful: Array) -> Matches:
    """Match detections (N, 15), best first, with reference faces (F, 14 or more), each at most once.

    A detection without a match is a false positive unless it overlaps one of the `doubtful` boxes (D, 4).
    """
    iou = box_iou(rows[:, :4], faces[:, :4])
    found, errors, false = np.zeros(len(faces), bool), [], 0
    for number in range(len(rows)):
        free = np.where(found, 0.0, iou[number])
        best = int(free.argmax()) if len(faces) else -1
        if best >= 0 and free[best] >= SAME_IOU:
            found[best] = True
            errors.append(landmark_error(rows[number, 4:14], faces[best, 4:14]))
        elif not (box_iou(rows[number : number + 1, :4], doubtful) >= SAME_IOU / 2).any():
            false += 1
    return Matches(found, np.array(errors), false, len(rows))


def landmark_error(points: Array, true: Array) -> float:
    """Mean distance of five landmarks (10,) from the reference, divided by the distance between its eyes."""
    wanted = true.reshape(5, 2)
    distance = np.linalg.norm(points.reshape(5, 2) - wanted, axis=1).mean()
    return float(distance / max(1e-6, float(np.linalg.norm(wanted[1] - wanted[0]))))


def evaluate(detect: Detect, images: LabeledImages) -> list[DetectorMetric]:
    """All metrics of one detector."""
    plain = [compare(detect(item.read()), reference_faces(item), item.faces[:, :4]) for item in images.items]
    errors = np.concatenate([matches.errors for matches in plain])
    median = bootstrap(np.median, errors) if len(errors) else None
    recall = _recall(f"recall, faces of {MIN_FACE_PX:.0f} px and more", plain)
    metrics = [
        recall,
        _ratio(
            "false positives per 100 faces", plain, [(100 * matches.false, len(matches.found)) for matches in plain]
        ),
        _ratio("precision", plain, [(matches.detections - matches.false, matches.detections) for matches in plain]),
        _error("landmark error, mean", plain),
        DetectorMetric(name="landmark error, median", faces=recall.faces, estimate=median),
    ]
    for low, high in SIZES_PX:
        of_size = [compare(detect(image), *known) for image, *known in resized(images, low, high)]
        metrics.append(_recall(f"recall, {low} to {high} px", of_size))
    for angle in ROTATIONS_DEG:
        rotated = [compare(detect(image), *known) for image, *known in _rotated(images, angle)]
        metrics += [
            _recall(f"recall, rotated by {angle} degrees", rotated),
            _error(f"landmark error, rotated by {angle} degrees", rotated),
        ]
    return metrics


def reference_faces(item: LabeledImage) -> Array:
    """Labels (F, 16) with at least 24 px and a score of 0.8, seen in several views."""
    faces = item.faces
    sure = (faces[:, SCORE] >= _REFERENCE_SCORE) & (faces[:, VIEW_SHARE] >= _REFERENCE_SHARE)
    return np.asarray(faces[sure & (faces[:, 2:4].max(axis=1, initial=0) >= MIN_FACE_PX)])


def select_threshold(detect_rows_at: Callable[[Array, float], Array], images: LabeledImages) -> float:
    """Lowest score threshold with less than one false positive per 100 faces of 24 px and more."""
    views = [(detect_rows_at(item.read(), min(THRESHOLDS)), item) for item in images.items]
    faces = sum(len(reference_faces(item)) for _, item in views)

    def false_positives(threshold: float) -> int:
        return sum(
            compare(rows[rows[:, 14] >= threshold], reference_faces(item), item.faces[:, :4]).false
            for rows, item in views
        )

    return next((threshold for threshold in THRESHOLDS if 100 * false_positives(threshold) < faces), max(THRESHOLDS))


def resized(images: LabeledImages, low: float, high: float) -> Iterator[tuple[Array, Array, Array]]:
    """Images scaled so that one face has `low` to `high` px, with their faces in this range."""
    for number, (item, face) in enumerate(_with_sure_face(images)):
        rng = np.random.default_rng([number, int(low)])
        scale = np.exp(rng.uniform(np.log(low), np.log(high))) / max(face[2:4])
        if scale <= 2:
            image, placed, all_boxes = _under(item, scale, 0.0)
            size = placed[:, 2:4].max(axis=1)
            yield image, placed[(size >= low) & (size < high)], all_boxes


def _rotated(images: LabeledImages, angle_deg: float) -> Iterator[tuple[Array, Array, Array]]:
    """Images rotated around their center, alternately left and right, on a canvas that contains them."""
    for number, (item, face) in enumerate(_with_sure_face(images)):
        size = float(np.clip(max(face[2:4]), *_ROTATED_PX))
        image, placed, all_boxes = _under(item, size / max(face[2:4]), angle_deg * (-1) ** number)
        sides = placed[:, 2:4].max(axis=1)
        yield image, placed[sides >= MIN_FACE_PX], all_boxes


def _with_sure_face(images: LabeledImages) -> Iterator[tuple[LabeledImage, Array]]:
    for item in images.items:
        sure = item.faces[is_sure(item.faces)]
        if len(sure):
            yield item, sure[sure[:, SCORE].argmax()]


def _under(item: LabeledImage, scale: float, angle_deg: float) -> tuple[Array, Array, Array]:
    """Scale and rotate an image on a black canvas; returns it with its reliable faces and all boxes."""
    image = item.read()
    height, width = image.shape[:2]
    angle = np.deg2rad(angle_deg)
    across = scale * np.abs([[np.cos(angle), np.sin(angle)], [np.sin(angle), np.cos(angle)]]) @ [width, height]
    size = tuple(int(side) for side in np.minimum(np.ceil(across), _MAX_PX))
    matrix = similarity(np.array([width, height]) / 2, np.array(size) / 2, scale, angle_deg)
    canvas = warp(image, matrix, (size[0], size[1]), scale, border=cv2.BORDER_CONSTANT)
    faces = transform_faces(item.faces, matrix)
    sure = faces[is_sure(item.faces)]
    center = sure[:, :2] + sure[:, 2:4] / 2
    return canvas, sure[((center > 0) & (center < size)).all(axis=1)], faces[:, :4]


def _ratio(name: str, views: list[Matches], shares: list[tuple[float, int]]) -> DetectorMetric:
    """Ratio of two sums over images, with its interval, from both numbers of each; None if the second sum is 0."""
    parts, wholes = np.array(shares, np.float64).reshape(-1, 2).T

    def ratio(parts: Array, wholes: Array) -> float:
        return parts.sum() / wholes.sum() if wholes.any() else float("nan")

    estimate = bootstrap(ratio, parts, wholes) if wholes.any() else None
    return DetectorMetric(name=name, faces=sum(len(matches.found) for matches in views), estimate=estimate)


def _recall(name: str, views: list[Matches]) -> DetectorMetric:
    return _ratio(name, views, [(matches.found.sum(), len(matches.found)) for matches in views])


def _error(name: str, views: list[Matches]) -> DetectorMetric:
    return _ratio(name, views, [(matches.errors.sum(), len(matches.errors)) for matches in views])


def cell(metric: DetectorMetric) -> str:
    """Text of an estimate, "" without one."""
    if metric.estimate is None:
        return ""
    if metric.name.startswith(("recall", "precision")):
        return interval(metric.estimate, 1).replace(" ", " % ", 1)
    return plain_interval(metric.estimate)


def metric_rows(metrics: dict[str, list[DetectorMetric]]) -> list[tuple[str, ...]]:
    """Rows of a table with a column for each detector."""
    return [(row[0].name, str(row[0].faces), *map(cell, row)) for row in zip(*metrics.values(), strict=True)]


def evaluate_graph(
    graph: Path, name: str, threshold: float, images: LabeledImages, data: DetectorData
) -> dict[str, list[DetectorMetric]]:
    """Metrics of a detector's graph, and of YuNet on a single view, by name. Raises: DatasetError, RecipeError."""
    detectors: dict[str, tuple[Path | bytes, float]] = {
        name: (graph, threshold),
        "YuNet": (dynamic_graph(data.resolved_teacher()), TEACHER_THRESHOLD),
    }
    return {
        name: evaluate(partial(detect_rows, open_graph(graph, threads=1).run, threshold=minimum), images)
        for name, (graph, minimum) in detectors.items()
    }


def run(artifact: Path | None, *, json_file: Path | None) -> None:
    """Print the metrics of an artifact, by default the default detector, on its test images, and write them."""
    folder = artifact or default_detector_dir()
    manifest = load_detector(folder)
    data = DetectorRecipe.model_validate(manifest.recipe).data
    graph, images = folder / manifest.graph.file, load_images(data, "test")
    metrics = evaluate_graph(graph, manifest.name, manifest.score_threshold, images, data)
    print_table(("on held-out images", "faces", *metrics), metric_rows(metrics))
    ResultFiles(json_file).write((), (), {"artifact": manifest.name, "metrics": metrics})
