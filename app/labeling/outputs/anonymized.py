"""`anonymized/`: copies to publish, whose faces cannot be recognized, written during labeling."""

from typing import Final

from mien.app.labeling.images import ANONYMIZED, ANONYMIZED_DIR

HELP: Final = "anonymized/: copies whose faces cannot be recognized"
IMAGES: Final = ANONYMIZED
TARGETS: Final = (ANONYMIZED_DIR,)
