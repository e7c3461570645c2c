"""`report.html`: one self-contained page: counts, thumbnails by label, the least certain first, errors, weak faces."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from app.labelling.files import whole_file
from app.labelling.products import THUMBS
from app.labelling.report import render_page
from app.labelling.view import View

HELP: Final = "report.html: one page with thumbnails, errors and doubtful faces"
PRODUCTS: Final = THUMBS


def check() -> str | None:
    """Always possible."""
    return None


def render(view: View, out: Path) -> Sequence[Path]:
    """Write `report.html`."""
    target = out / "report.html"
    with whole_file(out, target, text=True) as file:
        file.write(render_page(view))
    return [target]
