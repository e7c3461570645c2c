"""`classes/train/<label>/`: links to the face crops by label, ready for training as class folders."""

from typing import Final

from mien.app.labeling.outputs import classes
from mien.app.labeling.view import View

HELP: Final = "classes/: as classes, with links to crops/"
IMAGES: Final = classes.IMAGES
TARGETS: Final = classes.TARGETS


def render(view: View) -> None:
    """Write `classes/` with relative links."""
    classes.render(view, link=True)
