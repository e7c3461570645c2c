"""`annotated/`: copies of the images with boxes and labels, written during labeling."""

from typing import Final

from app.labeling.files import OutputFolder
from app.labeling.journal import View
from app.labeling.products import ANNOTATED, ANNOTATED_DIR

HELP: Final = "annotated/: copies with boxes and labels"
PRODUCTS: Final = ANNOTATED
TARGETS: Final = (ANNOTATED_DIR,)


def render(view: View, folder: OutputFolder) -> None:
    """Do nothing: the files are written during labeling."""
