"""`coco.json`: a COCO data set of images, boxes, five keypoints and expressions as categories."""

import json
from collections.abc import Iterator
from typing import IO, Any, Final

from mien.app.inference.pipeline import LabeledFace
from mien.app.labeling.columns import face_values
from mien.app.labeling.outputs import open_output
from mien.app.labeling.view import View
from mien.data.contract import EIGHT_LABELS, LANDMARKS

HELP: Final = "coco.json: COCO detection and keypoints"
TARGETS: Final = ("coco.json",)


def render(view: View) -> None:
    """Write `coco.json`; images and annotations are streamed in two passes over the journal."""
    categories = [
        {"id": number, "name": label, "supercategory": "face", "keypoints": LANDMARKS, "skeleton": []}
        for number, label in enumerate(view.expressions, start=1)
    ]
    with open_output(view, TARGETS[0]) as file:
        info = {"description": "Facial expressions labeled by mien", "model": view.model, "precision": view.precision}
        info["detector"] = view.detector
        file.write(f'{{"info": {json.dumps(info)},\n"categories": {json.dumps(categories)},\n"images": [')
        _stream(file, _images(view))
        file.write('],\n"annotations": [')
        _stream(file, _annotations(view))
        file.write("]}\n")


def _stream(file: IO[str], objects: Iterator[dict[str, Any]]) -> None:
    for number, one in enumerate(objects):
        file.write((",\n" if number else "\n") + json.dumps(one, ensure_ascii=False))


def _images(view: View) -> Iterator[dict[str, Any]]:
    number = 0
    for image in view.images():
        if image.status not in ("ok", "no_face"):
            continue
        number += 1
        entry = {"id": number, "file_name": image.input.name, "width": image.width, "height": image.height}
        yield entry if image.frame is None else entry | {"frame": image.frame, "time_s": image.input.time_s}


def _annotations(view: View) -> Iterator[dict[str, Any]]:
    image_id, number = 0, 0
    for image in view.images():
        if image.status not in ("ok", "no_face"):
            continue
        image_id += 1
        for face in image.faces:
            number += 1
            yield _annotation(number, image_id, face)


def _annotation(number: int, image_id: int, face: LabeledFace) -> dict[str, Any]:
    values = face_values(face)
    x, y, width, height = (round(value, 1) for value in face.box_px)
    points = [value for name in LANDMARKS for value in (values[f"{name}_x"], values[f"{name}_y"], 2)]
    return {
        "id": number,
        "image_id": image_id,
        "category_id": EIGHT_LABELS.index(face.label) + 1,
        "bbox": [x, y, width, height],
        "area": round(width * height, 1),
        "iscrowd": 0,
        "keypoints": points,
        "num_keypoints": len(LANDMARKS),
        "score": values["confidence"],
        "attributes": {"uncertainty": values["uncertainty"], "roll": values["roll"], "sharpness": values["sharpness"]},
    }
