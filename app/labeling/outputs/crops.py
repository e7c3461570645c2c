"""`crops/`: the input of the model for every face, 112x112 PNG, written during labeling."""

from typing import Final

from mien.app.labeling.products import CROPS, CROPS_DIR

HELP: Final = "crops/: every face, 112x112 PNG"
PRODUCTS: Final = CROPS
TARGETS: Final = (CROPS_DIR,)
