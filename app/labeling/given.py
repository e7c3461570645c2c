"""Faces that the user gives instead of a detector: boxes or landmarks from a CSV or COCO file.

    mien label photos --boxes faces.csv

A CSV has one row per face: `file`, the name of the input as in `labels.csv`, and `x`, `y`, `width`, `height`, or the
ten coordinates of the landmarks (`left_eye_x` ...), or both; `frame` for frames of videos. COCO has `file_name` and
`bbox`, and five `keypoints` with the names of the landmarks, if it has some.
"""

import csv
import hashlib
import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from mien.app.inference.boxes import detection_of
from mien.app.inference.records import Box, Detection
from mien.app.labeling.files import LabelingError
from mien.app.labeling.records import STILL, Input
from mien.data.contract import LANDMARKS

_BOX: Final = ("x", "y", "width", "height")
_POINTS: Final = tuple(f"{point}_{axis}" for point in LANDMARKS for axis in "xy")


@dataclass(slots=True)
class GivenFaces:
    """The faces of a file, by name and frame of their image, and its SHA-256."""

    sha256: str
    faces: dict[tuple[str, int], list[Box | Detection]] = field(default_factory=dict)

    def of(self, item: Input) -> list[Box | Detection]:
        """Faces of an image; none if the file does not name it."""
        return self.faces.get((item.name, item.frame), [])

    def names(self) -> set[str]:
        """Names of the images."""
        return {name for name, _ in self.faces}


def read_given(path: Path) -> GivenFaces:
    """Read a CSV or COCO file; values that are not numbers become NaN, reported later. Raises: LabelingError."""
    try:
        payload = path.read_bytes()
        text = payload.decode("utf-8-sig")
        rows = _coco(json.loads(text)) if text.lstrip().startswith("{") else _table(text)
        given = GivenFaces(hashlib.sha256(payload).hexdigest())
        for name, frame, face in rows:
            given.faces.setdefault((name, frame), []).append(face)
    except OSError as error:
        raise LabelingError(f"--boxes {path}: cannot be read ({error.strerror}).") from error
    except (ValueError, KeyError, TypeError, AttributeError, csv.Error) as error:
        detail = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise LabelingError(
            f"--boxes {path}: {detail}. Expected a CSV with the columns file, x, y, width, height, or COCO JSON."
        ) from error
    return given


def _table(text: str) -> Iterator[tuple[str, int, Box | Detection]]:
    rows = csv.DictReader(io.StringIO(text, newline=""))
    columns = set(rows.fieldnames or ())
    has_box, has_points = columns.issuperset(_BOX), columns.issuperset(_POINTS)
    if "file" not in columns or not (has_box or has_points):
        raise ValueError(f"columns {', '.join(rows.fieldnames or ()) or 'none'}")
    for row in rows:
        box = [_number(row[name]) for name in _BOX] if has_box else []
        points = [_number(row[name]) for name in _POINTS] if has_points else []
        if not any(row[name] for name in (_BOX if has_box else _POINTS)):  # an image without a face
            continue
        frame = row.get("frame")
        yield row["file"], int(frame) if frame else STILL, _face(box, points)


def _coco(document: dict[str, Any]) -> Iterator[tuple[str, int, Box | Detection]]:
    images = {image["id"]: image for image in document["images"]}
    named = {category["id"] for category in document.get("categories", ()) if _has_landmarks(category)}
    for annotation in document["annotations"]:
        image = images[annotation["image_id"]]
        points = annotation.get("keypoints", ()) if annotation.get("category_id") in named else ()
        flat = [_number(value) for place, value in enumerate(points) if place % 3 < 2]
        box = [_number(value) for value in annotation["bbox"]]
        yield image["file_name"], image.get("frame", STILL), _face(box, flat)


def _has_landmarks(category: dict[str, Any]) -> bool:
    return tuple(category.get("keypoints", ())) == LANDMARKS


def _face(box: list[float], points: list[float]) -> Box | Detection:
    if len(points) != len(_POINTS) or np.isnan(points).all():
        return Box(*box)
    detection = detection_of(np.array(points, np.float32).reshape(-1, 2))
    return Detection(Box(*box), detection.landmarks_px, detection.score) if box else detection


def _number(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]  # ValueError and TypeError are expected
    except (TypeError, ValueError):
        return math.nan
