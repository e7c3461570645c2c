"""HTML pages of labeling: report, timeline and review, in the type, colors and dark theme of the live page."""

import os
from pathlib import Path
from typing import Final

from mien import app

_STYLE: Final = Path(app.__file__).parent / "static" / "page" / "page.css"
_MARK: Final = "/* page.css */"


def load_page(path: Path) -> str:
    """The text of a page, with the stylesheet that all pages share."""
    return path.read_text(encoding="utf-8").replace(_MARK, _STYLE.read_text(encoding="utf-8"))


def relative_link(path: bytes, out: Path) -> str:
    """Relative path from the output folder to a file, "" if it would tell names of folders that are not shared.

    A page is passed on: `../photos/a.jpg` says nothing about its author, `../../home/anna/photos/a.jpg` does.
    """
    start = os.fsencode(out.absolute())
    common = os.path.commonpath([path, start])
    if common == os.path.dirname(common) or common in map(os.fsencode, Path.home().parents):
        return ""
    return os.fsdecode(os.path.relpath(path, start))
