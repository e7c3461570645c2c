"""`timeline.csv` and `timeline.html`: expressions of each person in a video over time, smoothed."""

from typing import Final

from mien.app.labeling.journal import View
from mien.app.labeling.output_folder import OutputFolder
from mien.app.labeling.outputs.csv import write_csv
from mien.app.labeling.timeline import COLUMNS, rows, write_page

HELP: Final = "timeline.csv and .html: each person in a video over time"
TARGETS: Final = ("timeline.csv", "timeline.html")


def render(view: View, folder: OutputFolder) -> None:
    """Write the table and the page of plots."""
    table, page = TARGETS
    with folder.file("timeline", table) as file:
        write_csv(file, COLUMNS, rows(view))
    with folder.file("timeline", page) as file:
        write_page(view, file)
