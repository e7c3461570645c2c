"""Kinds of inputs, told by the name; what a file holds is found out when it is read."""

import os
from fnmatch import fnmatchcase
from typing import Final

from app.labeling.records import Kind
from app.labeling.request import Request

# Named like an image; in a format that is not read here (camera raw, HEIC without pillow-heif), it is an error row.
PICTURES: Final = frozenset(
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
# Files that operating systems leave in folders of photos.
_LITTER: Final = frozenset(("Thumbs.db", "desktop.ini", "@eaDir", "__MACOSX"))


def kind_of(name: str) -> Kind:
    """How an input is read, by its file extension; everything else is tried as an image."""
    lower = name.lower()
    if lower.endswith(TARS):
        return "tar"
    suffix = os.path.splitext(lower)[1]
    if suffix == ".zip":
        return "zip"
    return "video" if suffix in VIDEOS else "file"


def is_hidden(name: str, request: Request) -> bool:
    """Whether a leading dot, or being an operating system's own file, leaves out an entry of a folder or archive."""
    return name in _LITTER or (name.startswith(".") and not request.hidden)


def is_ignored(name: str, request: Request) -> bool:
    """Whether `--ignore` leaves out a path: a pattern matches it, a part of it, or a folder above it."""
    if not request.ignore:
        return False
    parts = [part for part in name.split("/") if part not in ("", ".")]
    above = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return any(fnmatchcase(one, pattern.rstrip("/")) for pattern in request.ignore for one in (*parts, *above))
