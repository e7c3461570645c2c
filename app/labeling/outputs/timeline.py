"""`timeline.csv` and `timeline.html`: expressions of each person in a video over time, smoothed."""

from typing import Final

from mien.app.labeling.images import THUMBS
from mien.app.labeling.outputs import open_output
from mien.app.labeling.outputs.csv import write_csv
from mien.app.labeling.timeline import COLUMNS, rows, write_page
from mien.app.labeling.view import View

HELP: Final = "timeline.csv and .html: each person in a video over time"
IMAGES: Final = THUMBS  # people are recognized by them
TARGETS: Final = ("timeline.csv", "timeline.html")


def render(view: View) -> None:
    """Write the table and the page of plots."""
    table, page = TARGETS
    with open_output(view, table) as file:
        write_csv(view, file, COLUMNS, rows(view))
    with open_output(view, page) as file:
        write_page(view, file)
