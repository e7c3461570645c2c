"""HTML pages of labeling: report and review, in the type, colors and dark theme of the live page."""

import os
from pathlib import Path
from typing import Final
from urllib.parse import quote

from mien import app
from mien.app.labeling.store import is_url
from mien.models.strict import expand_home

_STYLE: Final = Path(app.__file__).parent / "static" / "page" / "page.css"
_MARK: Final = "/* page.css */"


def load_page(path: Path) -> str:
    """The text of a page, with the stylesheet that all pages share."""
    return path.read_text(encoding="utf-8").replace(_MARK, _STYLE.read_text(encoding="utf-8"))


def relative_link(path: bytes, out: Path) -> str:
    """Relative URL of a file for a page in the output folder, "" for an object of a store.

    It is "" also if it told names of folders that are not shared, because a page is passed on: `../photos/a.jpg` says
    nothing about its author, `../../home/anna/photos/a.jpg` does.
    """
    if is_url(path):
        return ""
    start = os.fsencode(out.absolute())
    try:
        common = os.path.commonpath([path, start])
    except ValueError:  # two drives of Windows
        return ""
    if common == os.path.dirname(common) or common in map(os.fsencode, expand_home("~").parents):
        return ""
    return quote(os.path.relpath(path, start).replace(os.fsencode(os.sep), b"/"))
