"""`crops/`: every face as the model saw it, 112x112 PNG, written while the photo is open."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from app.labelling.products import CROPS, CROPS_DIR
from app.labelling.view import View

HELP: Final = "crops/: every face, 112x112 PNG"
PRODUCTS: Final = CROPS


def check() -> str | None:
    """Always possible."""
    return None


def render(view: View, out: Path) -> Sequence[Path]:  # noqa: ARG001  # as every output
    """Nothing is left to write."""
    return [out / CROPS_DIR]
