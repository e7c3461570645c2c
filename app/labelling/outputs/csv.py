"""`labels.csv`: one row a face, UTF-8, for spreadsheets and data frames."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from app.labelling.columns import FACE_COLUMNS, Column, Value, face_rows
from app.labelling.files import whole_file
from app.labelling.view import View

HELP: Final = "labels.csv: one row a face"
PRODUCTS: Final = 0
FILE: Final = "labels.csv"


def check() -> str | None:
    """Always possible."""
    return None


def render(view: View, out: Path) -> Sequence[Path]:
    """Write `labels.csv`."""
    target = out / FILE
    with whole_file(out, target, text=True) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([column.name for column in FACE_COLUMNS])
        for row in face_rows(view):
            writer.writerow([cell(column, row[column.name]) for column in FACE_COLUMNS])
    return [target]


def cell(column: Column, value: Value) -> str:
    """A value as text: nothing for None, true or false, probabilities with six digits."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if column.name == "confidence" or column.name.startswith("p_"):
        return f"{value:.6f}"
    return str(value)
