"""`annotated/`: copies of the images with boxes and labels, written during labeling."""

from typing import Final

from mien.app.labeling.images import ANNOTATED, ANNOTATED_DIR

HELP: Final = "annotated/: copies with boxes and labels"
IMAGES: Final = ANNOTATED
TARGETS: Final = (ANNOTATED_DIR,)
