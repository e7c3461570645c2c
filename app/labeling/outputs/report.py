"""`report.html`: a self-contained page with counts, thumbnails (least certain first), errors and low-quality faces."""

from typing import Final

from mien.app.labeling.images import THUMBS
from mien.app.labeling.outputs import open_output
from mien.app.labeling.report import render_page
from mien.app.labeling.view import View

HELP: Final = "report.html: one page with thumbnails, errors and uncertain faces"
IMAGES: Final = THUMBS
TARGETS: Final = ("report.html",)


def render(view: View) -> None:
    """Write `report.html`."""
    with open_output(view, TARGETS[0]) as file:
        file.write(render_page(view))
