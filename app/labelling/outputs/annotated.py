"""`annotated/`: copies of the pictures with boxes and labels, written while the photo is open."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from app.labelling.products import ANNOTATED, ANNOTATED_DIR
from app.labelling.view import View

HELP: Final = "annotated/: copies with boxes and labels"
PRODUCTS: Final = ANNOTATED


def check() -> str | None:
    """Always possible."""
    return None


def render(view: View, out: Path) -> Sequence[Path]:  # noqa: ARG001  # as every output
    """Nothing is left to write."""
    return [out / ANNOTATED_DIR]
