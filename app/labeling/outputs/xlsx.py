"""`labels.xlsx`: the rows of `labels.csv` as a workbook; requires the extra `excel`."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any, Final

from mien.app.labeling.columns import Column, Row, face_columns, face_rows
from mien.app.labeling.files import parts_dir
from mien.app.labeling.images import THUMBS
from mien.app.labeling.journal import Journal
from mien.app.labeling.outputs import open_output

HELP: Final = "labels.xlsx: labels.csv as a workbook (extra `excel`)"
TARGETS: Final = ("labels.xlsx",)
IMAGES: Final = THUMBS  # people of videos are recognized by them
REVIEWED: Final = True
NEEDS: Final = "xlsxwriter"
MAX_ROWS: Final = 1_048_576  # of a sheet, with its header
_MAX_CHARACTERS: Final = 32_767  # of a cell


def render(journal: Journal) -> None:
    """Write the sheet, row by row; more rows than it can have continue on another one."""
    import xlsxwriter

    # a text that begins like a formula, a number or a link stays a text
    texts = dict.fromkeys(("strings_to_formulas", "strings_to_numbers", "strings_to_urls"), False)
    folder = parts_dir(journal.out)
    folder.mkdir(parents=True, exist_ok=True)
    with open_output(journal, TARGETS[0], "wb") as file:
        workbook = xlsxwriter.Workbook(file, texts | {"constant_memory": True, "tmpdir": str(folder)})
        workbook.set_properties({"created": datetime(2000, 1, 1, tzinfo=UTC)})  # equal runs have equal files
        columns = face_columns(journal)
        for title, part in _sheets("faces", face_rows(journal)):
            _write_sheet(workbook, title, columns, part)
        try:
            workbook.close()
        except xlsxwriter.exceptions.FileCreateError as error:
            raise error.args[0] from None  # the OSError, such as that of a full disk


def _sheets(name: str, rows: Iterable[Row]) -> Iterator[tuple[str, Iterator[Row]]]:
    """Titles and rows of the sheets of a table; at least one."""
    rows, number = iter(rows), 1
    yield name, islice(rows, MAX_ROWS - 1)
    for row in rows:
        number += 1
        yield f"{name} {number}", chain([row], islice(rows, MAX_ROWS - 2))


def _write_sheet(workbook: Any, title: str, columns: Sequence[Column], rows: Iterable[Row]) -> None:
    sheet = workbook.add_worksheet(title)
    sheet.freeze_panes(1, 1)
    sheet.write_row(0, 0, [column.name for column in columns], workbook.add_format({"bold": True}))
    for index, row in enumerate(rows, start=1):
        for number, column in enumerate(columns):
            match row[column.name]:
                case None:
                    continue
                case bool(value):
                    sheet.write_boolean(index, number, value)
                case str(value):
                    sheet.write_string(index, number, value[:_MAX_CHARACTERS])
                case value:
                    sheet.write_number(index, number, value)
