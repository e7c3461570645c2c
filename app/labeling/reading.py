"""Reading of inputs, and reasons of failures."""

import hashlib
import os
import stat
from io import BufferedReader

from mien.app.errors import PayloadTooLarge
from mien.app.labeling.kinds import IMAGE_EXTENSIONS
from mien.app.labeling.records import Failure, Item, Status
from mien.data.contract import DecodeError, ImageTooLarge, UnsupportedImage
from mien.data.errors import MienError


class NotAFile(MienError, OSError):
    """A pipe, socket or device that replaced a file after the scan."""


def open_file(path: str | bytes) -> BufferedReader:
    """Open a regular file without blocking on a pipe that replaced it after the scan.

    Raises: NotAFile, OSError.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotAFile("the file was replaced by a pipe, socket or device")
    return os.fdopen(descriptor, "rb")


def read_file(item: Item, max_bytes: int) -> bytes:
    """Read a file after checking its size. Raises: OSError, PayloadTooLarge."""
    with open_file(item.path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise PayloadTooLarge(too_many_bytes(size, max_bytes))
        return file.read(max_bytes + 1)


def too_many_bytes(size: int, max_bytes: int) -> str:
    """Message about a file or member above the limit."""
    return f"{size:,} bytes, the limit is {max_bytes:,} (MIEN_MAX_BYTES)"


def file_sha256(path: str | bytes) -> str:
    """SHA-256 of a file, 64 hexadecimal digits. Raises: OSError."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def failure_of(error: Exception, name: str) -> Failure:
    """Reason for an error during reading or decoding."""
    known = os.path.splitext(name)[1].lower() in IMAGE_EXTENSIONS
    status: Status = "error" if known else "skipped"
    if isinstance(error, UnsupportedImage):
        return Failure("unsupported" if known else "not_an_image", str(error), status)
    if isinstance(error, PayloadTooLarge | ImageTooLarge | MemoryError):
        return Failure("too_large", str(error) or "out of memory", status)
    if isinstance(error, DecodeError):
        return Failure("empty" if str(error).startswith("empty") else "corrupt", str(error), status)
    return _unread(error) if isinstance(error, OSError) else Failure("failed", f"{type(error).__name__}: {error}")


def _unread(error: OSError) -> Failure:
    if isinstance(error, NotAFile):
        return Failure("special_file", str(error), "skipped")
    if isinstance(error, PermissionError):
        return Failure("permission_denied", "no permission to read this file")
    if isinstance(error, FileNotFoundError):
        return Failure("not_found", "this file no longer exists")
    return Failure("unreadable", error.strerror or str(error))
