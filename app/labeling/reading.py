"""Reading of inputs: their kind by file name, their bytes, and the reasons of failures."""

import contextlib
import hashlib
import io
import os
import stat
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatchcase
from io import BufferedReader
from typing import Final

from mien.app.labeling.options import LabelOptions
from mien.app.labeling.records import Failure, Kind
from mien.app.labeling.store import download, is_url
from mien.data.contract import EmptyImage, ImageTooLarge, UnsupportedImage
from mien.data.errors import MienError

_RAW: Final = frozenset(
    (
        *(".dng", ".cr2", ".cr3", ".crw", ".nef", ".nrw", ".arw", ".srf", ".sr2", ".raf", ".orf", ".rw2", ".pef"),
        *(".srw", ".x3f", ".raw", ".rwl", ".iiq", ".3fr", ".kdc", ".dcr", ".mrw", ".erf", ".mef", ".mos"),
    )
)
# Extensions of images; unsupported formats (camera raw, HEIC without pillow-heif) become error rows.
IMAGE_EXTENSIONS: Final = _RAW | frozenset(
    (
        *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".dib", ".gif", ".tif", ".tiff", ".mpo"),
        *(".apng", ".avif", ".heic", ".heif", ".hif", ".jxl", ".jp2", ".j2k", ".jpf", ".j2c", ".jpc", ".jpx", ".psd"),
        *(".ppm", ".pgm", ".pbm", ".pnm", ".tga"),
    )
)
VIDEOS: Final = frozenset(
    (
        *(".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".wmv", ".3gp", ".mts", ".m2ts", ".ogv"),
        *(".ts", ".flv", ".vob", ".asf", ".mp4v", ".qt", ".3g2", ".f4v", ".m2v", ".mpe", ".mxf", ".dv", ".divx"),
    )
)
# A Live Photo is a photo, and a video with its name in its folder.
LIVE_VIDEO: Final = ".mov"
LIVE_PHOTOS: Final = (".heic", ".HEIC", ".heif", ".HEIF", ".jpg", ".JPG", ".jpeg", ".JPEG")
_ZIPS: Final = (".zip", ".cbz")
_ARCHIVES: Final = (".tar", ".tgz", ".tbz2", ".txz", ".tzst", ".cbt", ".rar", ".cbr", ".7z", ".cb7")
_COMPRESSED: Final = (".gz", ".bz2", ".xz", ".zst", ".lz4")
# Files that operating systems create in folders.
_LITTER: Final = frozenset(("Thumbs.db", "desktop.ini", "@eaDir", "__MACOSX"))


class NotAFile(MienError, OSError):
    """A pipe, socket or device that replaced a file after the scan."""

    code = "special_file"


def kind_of(name: str) -> Kind:
    """Kind of an input by its extension; the content is checked when it is read, unknown extensions as images."""
    return "video" if os.path.splitext(name)[1].lower() in VIDEOS else "file"


def unread(name: str) -> Failure | None:
    """What to use for a file of a kind that is not read, by its name; None for all others."""
    stem, suffix = os.path.splitext(name.lower())
    inner = os.path.splitext(stem)[1]
    if suffix in _ZIPS:
        return Failure("unsupported", "an archive: unzip it first")
    if suffix in _ARCHIVES or (suffix in _COMPRESSED and inner in {".tar"} | IMAGE_EXTENSIONS | VIDEOS):
        return Failure("unsupported", "an archive or a compressed file: unpack it first")
    if suffix in _RAW:
        return Failure("unsupported", "camera raw: extract its preview with exiftool, or convert it with ImageMagick")
    return Failure("unsupported", "TGA: convert it with ImageMagick") if suffix == ".tga" else None


def is_hidden(name: str, options: LabelOptions) -> bool:
    """Return whether an entry of a folder is hidden or a file of the operating system, and is left out."""
    return name in _LITTER or (name.startswith(".") and not options.hidden)


def is_ignored(name: str, options: LabelOptions) -> bool:
    """Return whether a pattern of `--ignore` matches a path, a part of it, or one of its parent folders."""
    if not options.ignore:
        return False
    parts = [part for part in name.split("/") if part not in ("", ".")]
    parents = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return any(fnmatchcase(path, pattern.rstrip("/")) for pattern in options.ignore for path in (*parts, *parents))


def open_file(path: str | bytes) -> BufferedReader:
    """Open a regular file without blocking on a pipe that replaced it after the scan.

    Raises: NotAFile, OSError.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotAFile("not a regular file, but a folder, pipe, socket or device")
    return os.fdopen(descriptor, "rb")


def read_file(path: bytes, max_bytes: int) -> bytes:
    """Read a file or an object of a store, after checking its size. Raises: OSError, ImageTooLarge."""
    if is_url(path):
        download(os.fsdecode(path), payload := io.BytesIO(), max_bytes + 1)
        if payload.tell() > max_bytes:
            raise ImageTooLarge(f"more bytes than the limit of {max_bytes:,} (MIEN_MAX_BYTES)")
        return payload.getvalue()
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise ImageTooLarge(f"{size:,} bytes, the limit is {max_bytes:,} (MIEN_MAX_BYTES)")
        return file.read(max_bytes + 1)


@contextlib.contextmanager
def local_file(path: bytes) -> Iterator[bytes]:
    """A path that can be opened: an object of a store is downloaded to the temporary folder. Raises: OSError."""
    if not is_url(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="mien-") as folder:
        copy = os.path.join(os.fsencode(folder), os.path.basename(path.split(b"?")[0])[-100:] or b"file")
        with open(copy, "wb") as file:
            download(os.fsdecode(path), file)
        yield copy


def file_sha256(path: bytes) -> str:
    """SHA-256 of a file, 64 hexadecimal digits. Raises: OSError."""
    with local_file(path) as local, open_file(local) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def failure_of(error: Exception, name: str, payload: bytes | None = None) -> Failure:
    """Reason for an error during reading or decoding; a file without the name and the content of an image is skipped.

    payload: the file's bytes, if it could be read.
    """
    if isinstance(error, OSError):
        return unreadable(error, "file")
    if isinstance(error, MemoryError):
        error = ImageTooLarge(str(error) or "out of memory")
    if not isinstance(error, MienError):
        return Failure("failed", f"{type(error).__name__}: {error}")
    is_image = os.path.splitext(name)[1].lower() in IMAGE_EXTENSIONS | VIDEOS
    if isinstance(error, UnsupportedImage) and not is_image:
        return Failure("not_an_image", str(error), "skipped")
    is_image |= payload is not None and not isinstance(error, EmptyImage)  # a decoder knows its format
    return Failure(error.code, str(error), "error" if is_image else "skipped")


def unreadable(error: Exception, what: str) -> Failure:
    """Reason why a file, a folder or a link cannot be opened."""
    match error:
        case NotAFile():
            return Failure(error.code, str(error), "skipped")
        case PermissionError():
            return Failure("permission_denied", f"no permission to read this {what}")
        case FileNotFoundError():
            missing = "the link points to nothing" if what == "link" else f"this {what} no longer exists"
            return Failure("not_found", missing)
    return Failure("unreadable", f"{what}: {getattr(error, 'strerror', None) or error}")
