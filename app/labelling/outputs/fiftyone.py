"""`fiftyone/`: a FiftyOneImageDetectionDataset: `data.json` (pictures by id) and `labels.json` (boxes and labels).

fiftyone.Dataset.from_dir(dataset_dir="out/fiftyone", dataset_type=fiftyone.types.FiftyOneImageDetectionDataset)
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final

from app.labelling.columns import face_values
from app.labelling.files import whole_file
from app.labelling.records import FaceRecord
from app.labelling.view import Picture, View
from data.contract import LABELS

HELP: Final = "fiftyone/: data.json and labels.json"
PRODUCTS: Final = 0


def check() -> str | None:
    """Always possible."""
    return None


def render(view: View, out: Path) -> Sequence[Path]:
    """Write both files; members of archives and frames of videos have no file of their own and are left out."""
    data, labels = out / "fiftyone" / "data.json", out / "fiftyone" / "labels.json"
    with whole_file(out, data, text=True) as file:
        file.write("{")
        _entries(file, ((picture.name, picture.path) for picture in _files(view)))
        file.write("}\n")
    with whole_file(out, labels, text=True) as file:
        file.write(f'{{"classes": {json.dumps(LABELS)},\n"labels": {{')
        _entries(file, ((picture.name, [_object(picture, face) for face in picture.faces]) for picture in _files(view)))
        file.write("}}\n")
    return [data.parent]


def _files(view: View) -> Iterator[Picture]:
    return (one for one in view.pictures() if one.kind == "file" and one.status in ("ok", "no_face"))


def _entries(file: IO[str], entries: Iterator[tuple[str, Any]]) -> None:
    for number, (key, value) in enumerate(entries):
        file.write((",\n" if number else "\n") + f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=True)}")


def _object(picture: Picture, face: FaceRecord) -> dict[str, Any]:
    """One detection; FiftyOne counts in fractions of the picture."""
    width, height = picture.width or 1, picture.height or 1
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
