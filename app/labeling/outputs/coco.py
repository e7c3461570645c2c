"""`coco.json`: a COCO data set of images, boxes, five keypoints and expressions as categories."""

import json
from collections.abc import Iterator
from typing import Final

from mien.app.inference.records import Face, flat
from mien.app.labeling.journal import Journal, Result
from mien.app.labeling.outputs import open_output, write_entries
from mien.data.contract import LANDMARKS

HELP: Final = "coco.json: COCO detection and keypoints"
TARGETS: Final = ("coco.json",)


def render(journal: Journal) -> None:
    """Write `coco.json`; images and annotations are streamed in two passes over the journal."""
    categories = [
        {"id": number, "name": label, "supercategory": "face", "keypoints": LANDMARKS, "skeleton": []}
        for number, label in enumerate(journal.expressions, start=1)
    ]
    info = {"description": "Facial expressions labeled by mien", "model": journal.model, "precision": journal.precision}
    info["detector"] = journal.detector
    faces = ((image_id, face) for image_id, image in _labeled(journal) for face in image.faces)
    with open_output(journal, TARGETS[0]) as file:
        file.write(f'{{"info": {json.dumps(info)},\n"categories": {json.dumps(categories)},\n"images": [')
        write_entries(file, (_image(number, image) for number, image in _labeled(journal)))
        file.write('],\n"annotations": [')
        write_entries(file, (_annotation(journal, number, *face) for number, face in enumerate(faces, start=1)))
        file.write("]}\n")


def _labeled(journal: Journal) -> Iterator[tuple[int, Result]]:
    return enumerate((image for image in journal.results() if image.status not in ("error", "skipped")), start=1)


def _image(number: int, image: Result) -> str:
    entry = {"id": number, "file_name": image.name, "width": image.width, "height": image.height}
    frame = {} if image.frame is None else {"frame": image.frame, "time_s": image.time_s}
    return json.dumps(entry | frame, ensure_ascii=False)


def _annotation(journal: Journal, number: int, image_id: int, face: Face) -> str:
    values = flat(face)
    x, y, width, height = (round(value, 1) for value in face.box)
    points = [value for name in LANDMARKS for value in (values[f"{name}_x"], values[f"{name}_y"], 2)]
    annotation = {
        "id": number,
        "image_id": image_id,
        "category_id": journal.expressions.index(face.label) + 1,
        "bbox": [x, y, width, height],
        "area": round(width * height, 1),
        "iscrowd": 0,
        "keypoints": points,
        "num_keypoints": len(LANDMARKS),
        "score": values["confidence"],
        "attributes": {"uncertainty": values["uncertainty"], "roll": values["roll"], "sharpness": values["sharpness"]},
    }
    return json.dumps(annotation, ensure_ascii=False)
