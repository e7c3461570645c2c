"""`labels.jsonl`: one JSON object per face, with the columns of `labels.csv`."""

import json
from typing import Final

from mien.app.labeling.columns import face_rows
from mien.app.labeling.outputs import open_output
from mien.app.labeling.view import View

HELP: Final = "labels.jsonl: one JSON object per face"
TARGETS: Final = ("labels.jsonl",)


def render(view: View) -> None:
    """Write `labels.jsonl`; empty values of the CSV are null."""
    with open_output(view, TARGETS[0]) as file:
        for row in face_rows(view):
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
