"""`files.csv`: one row per file, including files without a face or with an error."""

from typing import Final

from mien.app.labeling.columns import FILE_COLUMNS, file_rows
from mien.app.labeling.journal import Journal
from mien.app.labeling.outputs import open_output
from mien.app.labeling.outputs.csv import write_csv

HELP: Final = "files.csv: one row per file, including those without a face"
TARGETS: Final = ("files.csv",)


def render(journal: Journal) -> None:
    """Write `files.csv`."""
    with open_output(journal, TARGETS[0]) as file:
        write_csv(journal, file, FILE_COLUMNS, file_rows(journal))
