"""`crops/`: the input of the model for every face, 112x112 PNG, written during labeling."""

from typing import Final

from mien.app.labeling.images import CROPS, CROPS_DIR

HELP: Final = "crops/: every face, 112x112 PNG"
IMAGES: Final = CROPS
TARGETS: Final = (CROPS_DIR,)
