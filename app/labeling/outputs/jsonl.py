"""`labels.jsonl`: one JSON object per face, with the columns of `labels.csv`."""

import json
from typing import Final

from mien.app.labeling.columns import face_rows
from mien.app.labeling.images import THUMBS
from mien.app.labeling.journal import Journal
from mien.app.labeling.outputs import open_output

HELP: Final = "labels.jsonl: one JSON object per face"
TARGETS: Final = ("labels.jsonl",)
IMAGES: Final = THUMBS  # people of videos are recognized by them
REVIEWED: Final = True


def render(journal: Journal) -> None:
    """Write `labels.jsonl`; empty values of the CSV are null."""
    with open_output(journal, TARGETS[0]) as file:
        for row in face_rows(journal):
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
