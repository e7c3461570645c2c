"""`classes/train/<label>/`: links to the face crops by label, ready for training as class folders."""

from typing import Final

from mien.app.labeling.journal import View
from mien.app.labeling.output_folder import OutputFolder
from mien.app.labeling.outputs.classes import TARGETS, write_labeled_crops
from mien.app.labeling.products import CROPS

HELP: Final = "classes/: the same, with links to crops/"
PRODUCTS: Final = CROPS

__all__ = ["HELP", "PRODUCTS", "TARGETS", "render"]


def render(view: View, folder: OutputFolder) -> None:
    """Write `classes/` with relative links."""
    write_labeled_crops(view, folder, link=True)
