"""`label_studio.json` and `label_studio.xml`: tasks with predictions for Label Studio, and its labeling config.

Images are referenced by Label Studio's local file serving, relative to the folder that was labeled: start it with
`LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT=<that folder>`.
"""

import json
from typing import Any, Final
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from mien.app.inference.records import Face
from mien.app.labeling.journal import Journal
from mien.app.labeling.outputs import labeled_files, open_output, write_entries
from mien.app.labeling.records import Result
from mien.data.contract.palette import hex_color

HELP: Final = "label_studio.json and .xml: tasks with predictions"
TARGETS: Final = ("label_studio.json", "label_studio.xml")


def render(journal: Journal) -> None:
    """Write one task per image file, and the labeling configuration."""
    tasks, config = TARGETS
    with open_output(journal, tasks) as file:
        file.write("[")
        write_entries(file, (json.dumps(_task(journal, image), ensure_ascii=False) for image in labeled_files(journal)))
        file.write("]\n")
    with open_output(journal, config) as file:
        file.write('<View>\n  <Image name="image" value="$image"/>\n')
        file.write('  <RectangleLabels name="expression" toName="image">\n')
        for label in journal.expressions:
            file.write(f'    <Label value={quoteattr(label)} background="{hex_color(label, journal.expressions)}"/>\n')
        file.write("  </RectangleLabels>\n</View>\n")


def _task(journal: Journal, image: Result) -> dict[str, Any]:
    scores = [face.confidence for face in image.faces]
    prediction = {
        "model_version": f"{journal.model} {journal.precision}",
        "score": round(min(scores), 6) if scores else 0.0,  # images with the least certain face are reviewed first
        "result": [_region(image, face) for face in image.faces],
    }
    return {
        "data": {"image": f"/data/local-files/?d={quote(image.input.name)}", "file_sha256": image.sha256},
        "predictions": [prediction],
    }


def _region(image: Result, face: Face) -> dict[str, Any]:
    """One rectangle, in percent of the image size."""
    width, height = image.width or 1, image.height or 1
    x, y, box_width, box_height = face.box
    return {
        "id": f"face{face.index}",
        "type": "rectanglelabels",
        "from_name": "expression",
        "to_name": "image",
        "original_width": width,
        "original_height": height,
        "image_rotation": 0,
        "score": round(face.confidence, 6),
        "value": {
            "x": round(100 * x / width, 4),
            "y": round(100 * y / height, 4),
            "width": round(100 * box_width / width, 4),
            "height": round(100 * box_height / height, 4),
            "rotation": 0,
            "rectanglelabels": [face.label],
        },
    }
