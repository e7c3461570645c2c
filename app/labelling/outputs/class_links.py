"""`classes/train/<label>/`: links to the face crops by label, ready for training as class folders."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from app.labelling.class_folders import write_class_folders
from app.labelling.files import parts_dir
from app.labelling.outputs.classes import labelled_crops
from app.labelling.products import CROPS
from app.labelling.view import View

HELP: Final = "classes/: as above, with links into crops/"
PRODUCTS: Final = CROPS


def check() -> str | None:
    """Always possible."""
    return None


def render(view: View, out: Path) -> Sequence[Path]:
    """Write `classes/` with relative links."""
    write_class_folders(parts_dir(out), out / "classes", labelled_crops(view, out), link=True)
    return [out / "classes"]
