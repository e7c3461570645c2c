"""`annotated/`: copies of the pictures with boxes and labels, written while the photo is open."""

from typing import Final

from app.labeling.files import OutputFolder
from app.labeling.journal import View
from app.labeling.products import ANNOTATED, ANNOTATED_DIR

HELP: Final = "annotated/: copies with boxes and labels"
PRODUCTS: Final = ANNOTATED
TARGETS: Final = (ANNOTATED_DIR,)


def render(view: View, folder: OutputFolder) -> None:
    """Nothing is left to write."""
