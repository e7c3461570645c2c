"""`crops/`: every face as the model saw it, 112x112 PNG, written while the photo is open."""

from typing import Final

from app.labeling.files import OutputFolder
from app.labeling.journal import View
from app.labeling.products import CROPS, CROPS_DIR

HELP: Final = "crops/: every face, 112x112 PNG"
PRODUCTS: Final = CROPS
TARGETS: Final = (CROPS_DIR,)


def render(view: View, folder: OutputFolder) -> None:
    """Nothing is left to write."""
