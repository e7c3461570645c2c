"""`fiftyone/`: a FiftyOneImageDetectionDataset: `data.json` (files by id) and `labels.json` (boxes and labels by id).

kind = fiftyone.types.FiftyOneImageDetectionDataset
fiftyone.Dataset.from_dir(dataset_dir="out/fiftyone", dataset_type=kind, data_path="data.json")
"""

import hashlib
import json
import os
from typing import Any, Final

from mien.app.inference.records import Face
from mien.app.labeling.columns import face_values
from mien.app.labeling.journal import Journal
from mien.app.labeling.outputs import labeled_files, open_output, write_entries
from mien.app.labeling.records import Result

HELP: Final = "fiftyone/: data.json and labels.json"
TARGETS: Final = ("fiftyone/data.json", "fiftyone/labels.json")


def render(journal: Journal) -> None:
    """Write both files, without members of archives and frames of videos."""
    data, labels = TARGETS
    with open_output(journal, data) as file:
        file.write("{")
        write_entries(file, (_entry(image, os.fsdecode(image.input.path)) for image in labeled_files(journal)))
        file.write("}\n")
    with open_output(journal, labels) as file:
        file.write(f'{{"classes": {json.dumps(journal.expressions)},\n"labels": {{')
        write_entries(
            file, (_entry(image, [_object(image, face) for face in image.faces]) for image in labeled_files(journal))
        )
        file.write("}}\n")


def _entry(image: Result, value: Any) -> str:
    """A value under an id without a dot: FiftyOne drops the part after a dot as a file extension, in one file only."""
    return f'"{hashlib.sha256(image.input.name.encode()).hexdigest()[:24]}": {json.dumps(value)}'


def _object(image: Result, face: Face) -> dict[str, Any]:
    """One detection, in fractions of the image size."""
    width, height = image.width or 1, image.height or 1
    x, y, box_width, box_height = face.box
    values = face_values(face)
    return {
        "label": face.label,
        "bounding_box": [round(v, 6) for v in (x / width, y / height, box_width / width, box_height / height)],
        "confidence": values["confidence"],
        "attributes": {name: values[name] for name in ("uncertainty", "uncertain", "roll", "sharpness")},
    }
