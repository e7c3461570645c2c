"""`labels.jsonl`: one JSON object a face, with the columns of `labels.csv`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from app.labelling.columns import face_rows
from app.labelling.files import whole_file
from app.labelling.view import View

HELP: Final = "labels.jsonl: one JSON object a face"
PRODUCTS: Final = 0


def check() -> str | None:
    """Always possible."""
    return None


def render(view: View, out: Path) -> Sequence[Path]:
    """Write `labels.jsonl`; what is empty in the CSV is null here."""
    target = out / "labels.jsonl"
    with whole_file(out, target, text=True) as file:
        for row in face_rows(view):
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return [target]
