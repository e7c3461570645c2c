"""`report.html`: a self-contained page with counts, thumbnails (least certain first), errors and low-quality faces."""

from typing import Final

from mien.app.labeling.journal import View
from mien.app.labeling.output_folder import OutputFolder
from mien.app.labeling.products import THUMBS
from mien.app.labeling.report import render_page

HELP: Final = "report.html: one page with thumbnails, errors and uncertain faces"
PRODUCTS: Final = THUMBS
TARGETS: Final = ("report.html",)


def render(view: View, folder: OutputFolder) -> None:
    """Write `report.html`."""
    with folder.file("report", TARGETS[0]) as file:
        file.write(render_page(view))
