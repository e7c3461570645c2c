"""Faces that the user gives instead of a detector: boxes or landmarks from a CSV or COCO file.

    mien label photos --boxes faces.csv

A CSV has one row per face: `file`, the name of the input as in `labels.csv`, and `x`, `y`, `width`, `height`, or the
ten coordinates of the landmarks (`left_eye_x` ...), or both; `frame` for frames of videos and pages. COCO has
`file_name` and `bbox`, and five `keypoints` with the names of the landmarks, if it has some.
"""

import csv
import hashlib
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
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
class FaceFile:
    """Its faces by the name of their image and its frame, and the SHA-256 of the file."""

    sha256: str
    faces: dict[str, dict[int, list[Box | Detection]]] = field(default_factory=dict)

    def of(self, item: Input) -> list[Box | Detection]:
        """Faces of an image; none if the file does not name it. A still image has no frames: other tools count it."""
        frames = self.faces.get(item.name, {})
        return [*chain(*frames.values())] if item.frame == STILL else frames.get(item.frame, [])


def read_face_file(path: Path) -> FaceFile:
    """Read a CSV or COCO file; values that are not numbers become NaN, reported later. Raises: LabelingError."""
    try:
        return parse_face_file(path.read_bytes())
    except OSError as error:
        raise LabelingError(f"--boxes {path}: cannot be read ({error.strerror}).") from error
    except LabelingError as error:
        raise LabelingError(f"--boxes {path}: {error}") from error


def parse_face_file(payload: bytes) -> FaceFile:
    """The faces of a CSV or COCO file. Raises: LabelingError."""
    try:
        text = payload.decode("utf-8-sig")
        rows = _coco(json.loads(text)) if text.lstrip().startswith("{") else _table(text)
        face_file = FaceFile(hashlib.sha256(payload).hexdigest())
        for name, frame, face in rows:
            face_file.faces.setdefault(name, {}).setdefault(frame, []).append(face)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, csv.Error) as error:
        detail = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise LabelingError(
            f"{detail}. Expected a CSV with the columns file, x, y, width, height, or COCO JSON."
        ) from error
    return face_file


def write_face_file(path: Path, faces: Mapping[str, Mapping[int, Sequence[Box | Detection]]]) -> None:
    """Write faces as a CSV that is read as the same faces."""
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(("file", "frame", *_BOX, *_POINTS))
        for name, frames in faces.items():
            for frame, face in ((frame, face) for frame, values in frames.items() for face in values):
                points = face.landmarks_px.ravel().tolist() if isinstance(face, Detection) else ()
                box = face.box if isinstance(face, Detection) else face
                table.writerow((name, "" if frame == STILL else frame, *box, *points))


def _table(text: str) -> Iterator[tuple[str, int, Box | Detection]]:
    header = text.partition("\n")[0]
    delimiter = max(",;\t|", key=header.count)
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows.fieldnames = [name.strip() for name in rows.fieldnames or ()]
    columns = set(rows.fieldnames)
    has_box, has_points = columns.issuperset(_BOX), columns.issuperset(_POINTS)
    if "file" not in columns or not (has_box or has_points):
        raise ValueError(f"columns {', '.join(rows.fieldnames) or 'none'}")
    for row in rows:
        if delimiter != ",":  # maybe the decimal sign
            row |= {name: row[name].replace(",", ".") for name in (*_BOX, *_POINTS) if row.get(name)}
        box = [_number(row[name]) for name in _BOX] if has_box else []
        points = [_number(row[name]) for name in _POINTS] if has_points else []
        if not any(row.get(name) for name in (*_BOX, *_POINTS)):  # an image without a face
            continue
        if row["file"] is None:  # a line that ends early
            raise ValueError(f"line {rows.line_num} has no file")
        yield row["file"], _frame(row.get("frame"), f"line {rows.line_num}"), _face(box, points)


def _coco(document: dict[str, Any]) -> Iterator[tuple[str, int, Box | Detection]]:
    images = {image["id"]: image for image in document["images"]}
    named = {category["id"] for category in document.get("categories", ()) if _has_landmarks(category)}
    for number, annotation in enumerate(document["annotations"]):
        if (image := images.get(annotation["image_id"])) is None:
            raise ValueError(f"annotations[{number}]: no image has the id {annotation['image_id']!r}")
        points = _numbers(annotation.get("keypoints"), 3 * len(LANDMARKS))
        if annotation.get("category_id") not in named or not all(points[2::3]):  # 0: not labeled
            points = []
        flat = [value for index, value in enumerate(points) if index % 3 < 2]
        box = _numbers(annotation.get("bbox"), len(_BOX))
        yield image["file_name"], _frame(image.get("frame"), f"image {image['id']!r}"), _face(box, flat)


def _has_landmarks(category: dict[str, Any]) -> bool:
    return tuple(category.get("keypoints", ())) == LANDMARKS


def _face(box: list[float], points: list[float]) -> Box | Detection:
    if len(points) != len(_POINTS) or np.isnan(points).all():
        return Box(*box)
    detection = detection_of(np.array(points, np.float32).reshape(-1, 2))
    return detection if np.isnan(box).all() else Detection(Box(*box), detection.landmarks_px, detection.score)


def _frame(value: object, where: str) -> int:
    if value in (None, ""):
        return STILL
    if not (number := _number(value)).is_integer():
        raise ValueError(f"{where}: the frame {value!r} is not a whole number")
    return int(number)


def _numbers(values: object, count: int) -> list[float]:
    """So many numbers; all NaN for anything else."""
    return (
        [_number(value) for value in values]
        if isinstance(values, list) and len(values) == count
        else [math.nan] * count
    )


def _number(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]  # ValueError and TypeError are expected
    except (TypeError, ValueError):
        return math.nan
