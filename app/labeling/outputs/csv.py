"""`labels.csv`: one row per face, UTF-8, for spreadsheets and data frames."""

import csv
from collections.abc import Iterable, Sequence
from typing import IO, Final

from mien.app.labeling.columns import FACE_COLUMNS, Column, Row, Value, face_rows
from mien.app.labeling.outputs import open_output
from mien.app.labeling.view import View

HELP: Final = "labels.csv: one row per face"
TARGETS: Final = ("labels.csv",)
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")  # first characters of texts that spreadsheets run


def render(view: View) -> None:
    """Write `labels.csv`."""
    with open_output(view, TARGETS[0]) as file:
        write_csv(view, file, FACE_COLUMNS, face_rows(view))


def write_csv(view: View, file: IO[str], columns: Sequence[Column], rows: Iterable[Row]) -> None:
    """Write a table with a header and line feeds as line endings."""
    formula = _FORMULA if view.get("spreadsheet_safe") == "True" else ()
    writer = csv.writer(_LineFeeds(file))
    writer.writerow([column.name for column in columns])
    for row in rows:
        writer.writerow([_cell(column, row[column.name], formula) for column in columns])


class _LineFeeds:
    """Stream that converts the line ending of a row to a line feed.

    With a line feed as `lineterminator`, `csv.writer` does not quote a name with a carriage return, which
    DuckDB rejects.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, row: str) -> int:
        return self._file.write(row.removesuffix("\r\n") + "\n")


def _cell(column: Column, value: Value, formula: tuple[str, ...]) -> str:
    """A value as text: empty for None, true or false for booleans, six digits for probabilities."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if column.name == "confidence" or column.name.startswith("p_"):
        return f"{value:.6f}"
    text = str(value)
    return f"'{text}" if column.type == "text" and text.startswith(formula) else text
