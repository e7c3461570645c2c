"""Inputs of labeling: photos and videos of folders, lists and object stores; their names and their pixels.

`scan` finds them without opening files; `open_pixels` reads a labeled image again, for the review. A pipe, a device, a
dangling link, or a file of a kind that is not read is an item with a failure.
"""

import codecs
import hashlib
import io
import json
import os
import re
import shlex
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import quote

from mien.app.errors import LabelingError
from mien.app.labeling.options import LabelOptions
from mien.app.labeling.store import download, objects, open_store
from mien.app.video.reader import Skipped, Video, VideoError, VideoFrame
from mien.data.contract import Array, DecodeError, EmptyImage, ImageTooLarge, UnsupportedImage, decode
from mien.data.errors import MienError

if TYPE_CHECKING:
    from mien.app.labeling.journal import Result

Status = Literal["ok", "no_face", "error", "skipped"]
STILL: Final = -1  # Photos have it as the number of their frame.
# Limits for one image of a local collection: they admit large scans, but not decompression bombs.
MAX_BYTES: Final = 1_000_000_000
MAX_PIXELS: Final = 250_000_000
# Files of an output folder
STATE_DIR: Final = ".mien"
JOURNAL: Final = "journal.sqlite3"
RUN_FILE: Final = "run.json"
CORRECTIONS: Final = "corrections.jsonl"
_URL: Final = re.compile(rb"(s3|gs|az)://[^/]+")

_RAW: Final = frozenset(
    (
        *(".dng", ".cr2", ".cr3", ".crw", ".nef", ".nrw", ".arw", ".srf", ".sr2", ".raf", ".orf", ".rw2", ".pef"),
        *(".srw", ".x3f", ".raw", ".rwl", ".iiq", ".3fr", ".kdc", ".dcr", ".mrw", ".erf", ".mef", ".mos"),
    )
)
# A file with one of these names is an error if it cannot be read.
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
# A Live Photo is a photo, and a video of the same name in its folder.
LIVE_VIDEO: Final = ".mov"
LIVE_PHOTOS: Final = (".heic", ".HEIC", ".heif", ".HEIF", ".jpg", ".JPG", ".jpeg", ".JPEG")
# What to use for files of kinds that are not read
_ADVICE: Final = {
    **dict.fromkeys((".zip", ".cbz"), "an archive: unzip it first"),
    **dict.fromkeys(
        (".tar", ".tgz", ".tbz2", ".txz", ".tzst", ".cbt", ".rar", ".cbr", ".7z", ".cb7"), "an archive: unpack it first"
    ),
    **dict.fromkeys(_RAW, "camera raw: extract its preview with exiftool, or convert it with ImageMagick"),
    ".tga": "TGA: convert it with ImageMagick",
}
_COMPRESSED: Final = (".gz", ".bz2", ".xz", ".zst", ".lz4")
# Files that operating systems create in folders
_LITTER: Final = frozenset(("Thumbs.db", "desktop.ini", "@eaDir", "__MACOSX"))
_ENCODED: Final = re.compile(rb"\\(?=x[0-9a-f]{2})")
_HINT: Final = "If it is on an external disk, check that it is mounted."


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an input has no faces: a stable code, and a message."""

    reason: str
    message: str
    status: Status = "error"


@dataclass(frozen=True, slots=True)
class Item:
    """A photo, a video, or an entry that cannot be labeled.

    Attributes:
        name: unique name in all outputs, with forward slashes.
        path: path or URL, as bytes.
        mtime: time of the last change, or the version of an object.
        failure: why it cannot be labeled, if that is known without opening it.
        is_folder: whether it is a folder that cannot be read.
    """

    name: str
    path: bytes
    size: int = 0
    mtime: str = ""
    failure: Failure | None = None
    is_folder: bool = False

    @property
    def is_video(self) -> bool:
        """Return whether it is a video, by its name."""
        return is_video(self.name)


class NotAFile(MienError, OSError):
    """A pipe, socket or device that replaced a file after the walk."""


def is_video(name: str) -> bool:
    """Return whether a file is a video, by its name."""
    return os.path.splitext(name)[1].lower() in VIDEOS


def _unread(name: str) -> Failure | None:
    """The failure of a file of a kind that is not read, by its name."""
    stem, suffix = os.path.splitext(name.lower())
    advice = _ADVICE.get(suffix)
    if suffix in _COMPRESSED and os.path.splitext(stem)[1] in {".tar"} | IMAGE_EXTENSIONS | VIDEOS:
        advice = "a compressed file: unpack it first"
    return None if advice is None else Failure("unsupported", advice)


def is_url(path: str | bytes) -> bool:
    """Return whether a path is an object of a store."""
    return _URL.match(os.fsencode(path)) is not None


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 file`, `1,204 files`."""
    return f"{number:,} {noun if number == 1 else f'{noun}s'}"


# Finding


def scan(options: LabelOptions, names: Mapping[str, str]) -> dict[str, Item]:
    """Every input of a run by its name.

    Args:
        names: what the names of the files of an input begin with, from `roots`.
    Raises: LabelingError, if an input does not exist, there is nothing to label, or two have one name.
    """
    items = dict[str, Item]()
    for item in _from_list(options) if options.files_from is not None else _from_arguments(options, names):
        # A pattern matches a path, or a part of it, such as one of its folders.
        if any(fnmatchcase(f"/{item.name}/", f"*/{pattern.rstrip('/')}/*") for pattern in options.ignore):
            continue
        if (other := items.setdefault(item.name, item)).path != item.path:
            paths = f"{other.path!r} and {item.path!r}"
            raise LabelingError(f"two inputs have the name {item.name}: {paths}. Use two output folders.")
    if not items:
        where = options.files_from or ", ".join(map(printable, options.inputs))
        ignored = "Check --ignore. " if options.ignore else ""
        raise LabelingError(f"No files found in {where}. {ignored}{_HINT}")
    for name in [name for name, item in items.items() if name.lower().endswith(LIVE_VIDEO) and not item.failure]:
        photos = (name[: -len(LIVE_VIDEO)] + suffix for suffix in LIVE_PHOTOS)
        if photo := next((photo for photo in photos if photo in items), None):
            failure = Failure("live_photo", f"the video of the Live Photo {photo}", "skipped")
            items[name] = replace(items[name], failure=failure)
    return items


def roots(options: LabelOptions, prefixes: Mapping[str, str]) -> dict[str, str]:
    """What the names of each input begin with, by its full path; the files of a single folder have no prefix.

    Inputs in `prefixes` keep theirs. Raises: LabelingError.
    """
    if options.files_from not in (None, "-") and not os.path.lexists(str(options.files_from)):
        raise LabelingError(f"--files-from {printable(str(options.files_from))} does not exist.")
    paths: dict[str, str] = {}
    for path in options.inputs:
        if not (is_url(path) or os.path.lexists(path)):
            raise LabelingError(f"Input {printable(path) or '(empty)'} does not exist.")
        paths.setdefault(_identity(path), path)
    if len(paths) == 1:
        ((identity, path),) = paths.items()
        is_folder = os.path.isdir(path) or is_url(path)
        return {identity: prefixes.get(identity, "" if is_folder else printable(os.path.basename(path)))}
    # Names begin with the last part of each path if these are unique, else with the part in which the paths differ.
    names = [os.path.basename(identity) for identity in paths]
    is_ambiguous, has_url = len(set(names)) < len(names), any(map(is_url, paths))
    if is_ambiguous or not (has_url or any(map(os.path.isdir, paths))):
        names = list(paths)
        if not has_url:
            with suppress(ValueError):  # They may be on two drives of Windows.
                common = os.path.commonpath([os.path.dirname(identity) for identity in paths])
                names = [os.path.relpath(identity, common) for identity in paths]
    named = zip(paths, map(printable, names), strict=True)
    return {identity: prefixes.get(identity, name) for identity, name in named}


def _from_arguments(options: LabelOptions, names: Mapping[str, str]) -> Iterator[Item]:
    owned, visited = owned_names(options.out), {_file_id(str(options.out))}
    folders = [path for path in names if is_url(path) or os.path.isdir(path)]
    files = set(names).difference(folders)
    for path in folders:
        prefix = f"{names[path]}/" if names[path] else ""
        found = _objects(path, prefix) if is_url(path) else _folder(path, prefix, visited)
        for item in found:
            if files:
                files.discard(_identity(os.fsdecode(item.path)))
            yield item
    for path in names:
        if path in files and not _is_output(path, options.out, owned):  # It is in none of the folders.
            yield _file(path, names[path])


def _from_list(options: LabelOptions) -> Iterator[Item]:
    """Inputs of a list, named as in the list."""
    owned, visited = owned_names(options.out), {_file_id(str(options.out))}
    for path in _paths(options.files_from or "-"):
        if is_url(path):
            open_store(path)
            yield _named(printable(path), os.fsencode(path), 0, "")
            continue
        parts = [part for part in printable(path).split("/") if part not in ("", ".")]
        name = ("/" if path.startswith("/") else "") + "/".join(parts)
        if os.path.isdir(path):
            yield from _folder(path, f"{name}/" if name else "", visited)
        elif not _is_output(path, options.out, owned):
            yield _file(path, name)


def _paths(source: str) -> Iterator[str]:
    """Paths from a file or standard input; on POSIX, bytes that are not UTF-8 are preserved. Raises: LabelingError.

    They are separated by NUL if there is one, as from `find -print0`, else by line feeds.
    """
    try:
        payload = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise LabelingError(f"--files-from {source}: {error.strerror}.") from error
    if payload.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # PowerShell 5 and Notepad write it.
        raise LabelingError(f"--files-from {source} is UTF-16. Save the list as UTF-8.")
    null = b"\0" in payload
    for name in payload.removeprefix(codecs.BOM_UTF8).split(b"\0" if null else b"\n"):
        try:
            path = os.fsdecode(name.removesuffix(b"\r"))
        except UnicodeDecodeError as error:
            raise LabelingError(f"--files-from {source}: {name!r} is not UTF-8. Save the list as UTF-8.") from error
        if path:
            # "Copy as path" of Windows adds quotes.
            is_quoted = not null and len(path) > 2 and path[0] == path[-1] == '"' and not os.path.lexists(path)
            yield path[1:-1] if is_quoted else path


def _objects(url: str, prefix: str) -> Iterator[Item]:
    """Objects of a store below a prefix, or one object."""
    for key, size, version in objects(url):
        name = prefix + printable(key) if key else prefix.rstrip("/") or printable(url.rsplit("/", 1)[-1])
        parts = [part for part in key.split("/") if part]
        if not any(map(_is_hidden, parts)) and not key.endswith("/"):
            yield _named(name, os.fsencode(f"{url.rstrip('/')}/{key}" if key else url), size, version)


def _folder(path: str, prefix: str, visited: set[tuple[int, int] | str]) -> Iterator[Item]:
    """Walk a folder without recursion, so that its depth is not limited; each folder is entered once."""
    waiting = [(os.path.abspath(path), "")] if _file_id(path) not in visited else []
    visited.add(_file_id(path))
    while waiting:
        folder, below = waiting.pop()
        try:
            with os.scandir(folder) as opened:
                entries = list(opened)
        except OSError as error:
            if not below:
                raise LabelingError(f"{printable(path)} cannot be read: {error.strerror or error}.") from error
            name = printable(prefix + below).rstrip("/")
            yield Item(name, os.fsencode(folder), failure=_unreadable(error, "folder"), is_folder=True)
            continue
        owned = owned_names(Path(folder))
        for entry in entries:
            inner = f"{below}{entry.name}"
            if entry.name in owned or _is_hidden(entry.name):
                continue
            if _is_folder(entry, follow=False):
                file_id = _file_id(entry.path)
                if file_id not in visited:
                    visited.add(file_id)
                    waiting.append((entry.path, f"{inner}/"))
            elif not _is_folder(entry, follow=True):
                yield _file(entry.path, printable(prefix + inner))


def _file(path: str, name: str) -> Item:
    raw = os.fsencode(_full(path))
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        return Item(name, raw, failure=_unreadable(error, "link" if os.path.islink(path) else "file"))
    if not stat.S_ISREG(status.st_mode):
        return Item(name, raw, failure=Failure("special_file", "a pipe, socket or device: never opened", "skipped"))
    return _named(name, raw, status.st_size, str(status.st_mtime_ns))


def _named(name: str, path: bytes, size: int, mtime: str) -> Item:
    return Item(name, path, size, mtime, _unread(name))


def printable(path: str | bytes) -> str:
    r"""A path as text for outputs: bytes that are not UTF-8 become `\xNN`.

    A backslash that could be confused with such an escape becomes `\x5c`, so different paths have different texts.
    """
    raw = os.fsencode(path)
    raw = _ENCODED.sub(rb"\\x5c", raw) if os.sep == "/" else raw.replace(os.fsencode(os.sep), b"/")
    return raw.decode("utf-8", "backslashreplace")


def quoted(path: Path) -> str:
    """A path for a command that is suggested to the user, in the quotes of the system's shell."""
    return subprocess.list2cmdline([str(path)]) if os.name == "nt" else shlex.quote(str(path))


def _is_hidden(name: str) -> bool:
    """Return whether an entry is hidden or a file of the operating system, and is left out."""
    return name in _LITTER or name.startswith(".")


def owned_names(folder: Path) -> set[str]:
    """Names of the entries of a folder that runs of `mien label` have written there."""
    path = folder / STATE_DIR / JOURNAL
    if path.exists():
        with suppress(sqlite3.Error), closing(connect(path, write=False)) as journal:
            row = journal.execute("SELECT value FROM settings WHERE key='targets'").fetchone()
            names = {target.split("/")[0] for target in json.loads(row[0])} if row else set[str]()
            return names | {STATE_DIR, RUN_FILE, CORRECTIONS}
    return {STATE_DIR}


def connect(path: Path, *, write: bool) -> sqlite3.Connection:
    """Open a journal. Raises: sqlite3.Error."""
    mode = "rwc" if write else "ro"
    if not write and not os.access(path.parent, os.W_OK) and not os.path.exists(f"{path}-wal"):
        mode = "ro&immutable=1"  # Otherwise, SQLite creates files beside the journal to read it.
    # `file:///home/a`, `file:///C:/a` or, on a share, `file:////nas/share/a`. `Path.as_uri` has `file://nas/share/a`,
    # which SQLite refuses.
    posix = path.absolute().as_posix()
    uri = f"file://{'' if posix.startswith('/') else '/'}{quote(os.fsencode(posix))}?mode={mode}"
    # The review reads in several threads. Since Python 3.12, two threads that execute the same cached statement at once
    # can get each other's rows.
    return sqlite3.connect(
        uri, uri=True, isolation_level=None, timeout=30.0, check_same_thread=False, cached_statements=0
    )


def _is_output(path: str, out_folder: Path, owned: set[str]) -> bool:
    """Return whether a file is in the output folder and written by `mien label`."""
    identity, out = _identity(path), _identity(str(out_folder))
    return identity.startswith(out + os.sep) and os.path.relpath(identity, out).split(os.sep)[0] in owned


def _identity(path: str) -> str:
    """The path with resolved parent links, which is the same for all spellings of an entry."""
    if is_url(path):
        return path.rstrip("/")
    head, tail = os.path.split(_full(path))
    return os.path.join(_real_path(head), tail)


_real_path: Final = lru_cache(maxsize=4096)(os.path.realpath)


def _full(path: str) -> str:
    return os.path.abspath(path) if os.pardir not in path.split(os.sep) else os.path.realpath(path)


def _is_folder(entry: os.DirEntry[str], *, follow: bool) -> bool:
    try:
        return entry.is_dir(follow_symlinks=follow)
    except OSError:  # A link to itself or through an unreadable folder gets its own row.
        return False


def _file_id(path: str) -> tuple[int, int] | str:
    try:
        status = os.stat(path)
    except OSError:
        return path
    return (status.st_dev, status.st_ino)


# Reading


def _open_file(path: str | bytes) -> io.BufferedReader:
    """Open a regular file without blocking on a pipe that replaced it after the walk. Raises: NotAFile, OSError."""
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
    with _open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise ImageTooLarge(f"{size:,} bytes, the limit is {max_bytes:,} (MIEN_MAX_BYTES)")
        return file.read(max_bytes + 1)


@contextmanager
def local_file(path: bytes) -> Iterator[bytes]:
    """A path that can be opened: an object of a store is downloaded to the temporary folder. Raises: OSError."""
    if not is_url(path):
        _open_file(path).close()
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="mien-") as folder:
        copy = os.path.join(os.fsencode(folder), os.path.basename(path)[-100:] or b"file")
        with open(copy, "wb") as file:
            download(os.fsdecode(path), file)
        yield copy


def file_sha256(path: bytes) -> str:
    """SHA-256 of a file, 64 hexadecimal digits. Raises: OSError."""
    with local_file(path) as local, _open_file(local) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def failure_of(error: Exception, name: str, payload: bytes | None = None) -> Failure:
    """Reason for an error during reading or decoding; a file without the name and the content of an image is skipped.

    payload: the file's bytes, if it could be read.
    """
    if isinstance(error, OSError):
        return _unreadable(error, "file")
    if isinstance(error, MemoryError):
        error = ImageTooLarge(str(error) or "out of memory")
    if isinstance(error, Skipped):
        return Failure(error.code, str(error), "skipped")
    if not isinstance(error, MienError):
        return Failure("failed", f"{type(error).__name__}: {error}")
    is_image = os.path.splitext(name)[1].lower() in IMAGE_EXTENSIONS | VIDEOS
    if isinstance(error, UnsupportedImage) and not is_image:
        return Failure("not_an_image", str(error), "skipped")
    is_image |= payload is not None and not isinstance(error, EmptyImage)  # A decoder knows its format.
    return Failure(error.code, str(error), "error" if is_image else "skipped")


def _unreadable(error: Exception, what: str) -> Failure:
    """Reason why a file, a folder or a link cannot be opened."""
    match error:
        case NotAFile():
            return Failure("special_file", str(error), "skipped")
        case PermissionError():
            return Failure("permission_denied", f"no permission to read this {what}")
        case FileNotFoundError():
            missing = "the link points to nothing" if what == "link" else f"this {what} no longer exists"
            return Failure("not_found", missing)
    return Failure("unreadable", f"{what}: {getattr(error, 'strerror', None) or error}")


class Sources(ExitStack):
    """Reads labeled images again; the frames of a video are decoded once if they are read in order."""

    def __init__(self) -> None:
        super().__init__()
        self._frames: Iterator[VideoFrame] = iter(())
        self._path, self._next_frame, self._sha256 = b"", 0, ""

    def open_pixels(self, image: "Result") -> Array:
        """The pixels of an image, (H, W, 3) uint8 RGB. Raises: LabelingError, if its source is gone or was changed."""
        try:
            if image.frame is None:
                payload = read_file(image.path, MAX_BYTES)
                sha256, pixels = (
                    hashlib.sha256(payload).hexdigest(),
                    decode(payload, max_pixels=MAX_PIXELS, incomplete=True),
                )
            else:
                pixels, sha256 = self._frame(image.path, image.frame), self._sha256
        except (OSError, VideoError, DecodeError) as error:
            reason = getattr(error, "strerror", None) or error  # An OSError also names its path, as bytes.
            raise LabelingError(f"{image.name} can no longer be read ({reason}): label the folder again.") from error
        if sha256 != image.sha256:
            raise LabelingError(f"{image.name} is not the image that was labeled: label the folder again.")
        return pixels

    def _frame(self, source: bytes, number: int) -> Array:
        if self._path != source or self._next_frame > number:
            self.close()
            self._path, self._next_frame = source, 0
            path = self.enter_context(local_file(source))
            self._sha256, self._frames = _sha256(path), iter(self.enter_context(Video(path)))
        for frame in self._frames:
            self._next_frame = frame.number + 1
            if frame.number == number:
                return frame.pixels()
        raise VideoError(f"frame {number} cannot be read")


def _sha256(path: bytes) -> str:
    """SHA-256 of a file; a local one is read again only after a change, because a video has many frames to show."""
    status = os.stat(path)
    return _hashed(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@lru_cache(maxsize=256)
def _hashed(path: bytes, _size: int, _mtime_ns: int, _ctime_ns: int) -> str:
    return file_sha256(path)
