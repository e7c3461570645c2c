"""Kinds of inputs by file name; the content is checked when a file is read."""

import os
from fnmatch import fnmatchcase
from typing import Final

from mien.app.labeling.records import Kind
from mien.app.labeling.request import Request

# Extensions of images; unsupported formats (camera raw, HEIC without pillow-heif) become error rows.
IMAGE_EXTENSIONS: Final = frozenset(
    (
        *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".dib", ".gif", ".tif", ".tiff"),
        *(".avif", ".heic", ".heif", ".hif", ".jxl", ".jp2", ".j2k", ".jpf", ".psd"),
        *(".dng", ".cr2", ".cr3", ".crw", ".nef", ".nrw", ".arw", ".srf", ".sr2", ".raf", ".orf", ".rw2", ".pef"),
        *(".srw", ".x3f", ".raw", ".rwl", ".iiq", ".3fr", ".kdc", ".dcr", ".mrw", ".erf", ".mef", ".mos"),
    )
)
VIDEOS: Final = frozenset(
    (".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".wmv", ".3gp", ".mts", ".m2ts", ".ogv")
)
TARS: Final = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
CONTAINERS: Final = ("zip", "tar", "video")
# Files that operating systems create in folders.
_LITTER: Final = frozenset(("Thumbs.db", "desktop.ini", "@eaDir", "__MACOSX"))


def kind_of(name: str) -> Kind:
    """Kind of an input by its extension; unknown extensions are read as images."""
    lower = name.lower()
    if lower.endswith(TARS):
        return "tar"
    suffix = os.path.splitext(lower)[1]
    if suffix == ".zip":
        return "zip"
    return "video" if suffix in VIDEOS else "file"


def is_hidden(name: str, request: Request) -> bool:
    """Whether an entry of a folder or archive is hidden or a file of the operating system, and is left out."""
    return name in _LITTER or (name.startswith(".") and not request.hidden)


def is_ignored(name: str, request: Request) -> bool:
    """Whether a pattern of `--ignore` matches a path, a part of it, or one of its parent folders."""
    if not request.ignore:
        return False
    parts = [part for part in name.split("/") if part not in ("", ".")]
    above = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return any(fnmatchcase(one, pattern.rstrip("/")) for pattern in request.ignore for one in (*parts, *above))
