"""`labels.csv`: one row per face, UTF-8, for spreadsheets and data frames."""

import csv
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any, Final

from mien.app.labeling.columns import Column, Row, face_columns, face_rows
from mien.app.labeling.images import THUMBS
from mien.app.labeling.journal import Journal
from mien.app.labeling.outputs import open_output

HELP: Final = "labels.csv: one row per face"
TARGETS: Final = ("labels.csv",)
IMAGES: Final = THUMBS  # people of videos are recognized by them
REVIEWED: Final = True
BYTE_ORDER_MARK: Final = "\ufeff"  # without it, Excel takes UTF-8 for the code page of Windows
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")  # first characters of texts that spreadsheets run


def render(journal: Journal) -> None:
    """Write `labels.csv`."""
    with open_output(journal, TARGETS[0]) as file:
        write_csv(journal, file, face_columns(journal), face_rows(journal))


def write_csv(journal: Journal, file: IO[str], columns: Sequence[Column], rows: Iterable[Row]) -> None:
    """Write a table with a header and line feeds as line endings."""
    safe = journal.options.spreadsheet_safe
    formats = {column.name: text for column in columns if (text := _format(column, safe=safe))}
    names = [column.name for column in columns]
    file.write(BYTE_ORDER_MARK if safe else "")
    writer = csv.writer(_LineFeeds(file))
    writer.writerow(names)
    for row in rows:
        for name, text in formats.items():
            if (value := row[name]) is not None:
                row[name] = text(value)
        writer.writerow([row[name] for name in names])


def _format(column: Column, *, safe: bool) -> Callable[[Any], str] | None:
    """Return the format of a column: true or false, six digits for probabilities; None for that of `str`."""
    if column.type == "boolean":
        return lambda value: "true" if value else "false"
    if column.type == "number":
        is_share = column.name in ("confidence", "agreement") or column.name.startswith("p_")
        return "{:.6f}".format if is_share else None
    if column.type == "text" and safe:
        return without_formula
    return None


def without_formula(text: str) -> str:
    """The text, with an apostrophe first if a spreadsheet would run it."""
    return f"'{text}" if text.startswith(_FORMULA) else text


class _LineFeeds:
    """Stream that converts the line ending of a row to a line feed.

    With a line feed as `lineterminator`, `csv.writer` does not quote a name with a carriage return, which
    DuckDB rejects.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, row: str) -> int:
        return self._file.write(row.removesuffix("\r\n") + "\n")
