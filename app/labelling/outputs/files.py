"""`files.csv`: one row a file, also those without a face or with an error."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from app.labelling.columns import FILE_COLUMNS, file_rows
from app.labelling.files import whole_file
from app.labelling.outputs.csv import cell
from app.labelling.view import View

HELP: Final = "files.csv: one row a file, also those without a face"
PRODUCTS: Final = 0


def check() -> str | None:
    """Always possible."""
    return None


def render(view: View, out: Path) -> Sequence[Path]:
    """Write `files.csv`."""
    target = out / "files.csv"
    with whole_file(out, target, text=True) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([column.name for column in FILE_COLUMNS])
        for row in file_rows(view):
            writer.writerow([cell(column, row[column.name]) for column in FILE_COLUMNS])
    return [target]
