"""`fiftyone/`: a FiftyOneImageDetectionDataset: `data.json` (files by id) and `labels.json` (boxes and labels by id).

kind = fiftyone.types.FiftyOneImageDetectionDataset
fiftyone.Dataset.from_dir(dataset_dir="out/fiftyone", dataset_type=kind, data_path="data.json")
"""

import hashlib
import json
import os
from collections.abc import Iterator
from typing import IO, Any, Final

from mien.app.inference.pipeline import LabeledFace
from mien.app.labeling.columns import face_values
from mien.app.labeling.outputs import open_output
from mien.app.labeling.records import Result
from mien.app.labeling.view import View

HELP: Final = "fiftyone/: data.json and labels.json"
TARGETS: Final = ("fiftyone/data.json", "fiftyone/labels.json")


def render(view: View) -> None:
    """Write both files, without members of archives and frames of videos."""
    data, labels = TARGETS
    with open_output(view, data) as file:
        file.write("{")
        _entries(file, ((_id(image), os.fsdecode(image.input.path)) for image in _files(view)))
        file.write("}\n")
    with open_output(view, labels) as file:
        file.write(f'{{"classes": {json.dumps(view.expressions)},\n"labels": {{')
        _entries(file, ((_id(image), [_object(image, face) for face in image.faces]) for image in _files(view)))
        file.write("}}\n")


def _files(view: View) -> Iterator[Result]:
    return (image for image in view.images() if image.input.kind == "file" and image.status in ("ok", "no_face"))


def _id(image: Result) -> str:
    """An id without a dot: FiftyOne treats the part after a dot as a file extension, and drops it in one file only."""
    return hashlib.sha256(image.input.name.encode()).hexdigest()[:24]


def _entries(file: IO[str], entries: Iterator[tuple[str, Any]]) -> None:
    for number, (key, value) in enumerate(entries):
        file.write((",\n" if number else "\n") + f"{json.dumps(key)}: {json.dumps(value)}")


def _object(image: Result, face: LabeledFace) -> dict[str, Any]:
    """One detection, in fractions of the image size."""
    width, height = image.width or 1, image.height or 1
    x, y, box_width, box_height = face.box_px
    values = face_values(face)
    return {
        "label": face.label,
        "bounding_box": [
            round(x / width, 6),
            round(y / height, 6),
            round(box_width / width, 6),
            round(box_height / height, 6),
        ],
        "confidence": values["confidence"],
        "attributes": {name: values[name] for name in ("uncertainty", "uncertain", "roll", "sharpness")},
    }
