"""`files.csv`: one row per file, including files without a face or with an error."""

from typing import Final

from mien.app.labeling.columns import FILE_COLUMNS, file_rows
from mien.app.labeling.outputs import open_output
from mien.app.labeling.outputs.csv import write_csv
from mien.app.labeling.view import View

HELP: Final = "files.csv: one row per file, including those without a face"
TARGETS: Final = ("files.csv",)


def render(view: View) -> None:
    """Write `files.csv`."""
    with open_output(view, TARGETS[0]) as file:
        write_csv(view, file, FILE_COLUMNS, file_rows(view))
