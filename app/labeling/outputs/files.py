"""`files.csv`: one row per file, including files without a face or with an error."""

from typing import Final

from mien.app.labeling.columns import FILE_COLUMNS, file_rows
from mien.app.labeling.journal import View
from mien.app.labeling.output_folder import OutputFolder
from mien.app.labeling.outputs.csv import write_csv

HELP: Final = "files.csv: one row per file, including those without a face"
TARGETS: Final = ("files.csv",)


def render(view: View, folder: OutputFolder) -> None:
    """Write `files.csv`."""
    with folder.file("files", TARGETS[0]) as file:
        write_csv(file, FILE_COLUMNS, file_rows(view))
