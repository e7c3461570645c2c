"""Which inputs are there? Folders, patterns, lists and single files become `Source`s, in no order (the journal sorts).

Nothing is opened but folders: what a file holds is found out when it is labelled. A pipe, a device or a dead link is a
source with its failure, and is never opened at all.
"""

import glob
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Literal

from app.labelling.files import LabellingError
from app.labelling.records import Failure, Kind, Source

PICTURES: Final = frozenset(
    (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".dib", ".gif", ".tif", ".tiff")
)
VIDEOS: Final = frozenset(
    (".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".wmv", ".3gp", ".mts", ".m2ts", ".ogv")
)
TARS: Final = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
Symlinks = Literal["files", "follow", "skip"]
# Files that systems leave in folders of photos, and that nobody asks to have labelled.
_LITTER: Final = frozenset(("Thumbs.db", "desktop.ini", "@eaDir", "__MACOSX"))


class NoInput(LabellingError):
    """An input that does not exist."""


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """What to take and what to leave.

    ignore: patterns (`*.tif`, `raw/*`) matched with the name within its root and with each of its parts.
    symlinks: `files` takes links to files, `follow` enters linked folders too, `skip` takes neither.
    sampling: which frames of a video are taken, in words; part of a video's signature.
    exclude: folders never entered: the output.
    """

    recursive: bool = True
    hidden: bool = False
    ignore: tuple[str, ...] = ()
    symlinks: Symlinks = "files"
    sampling: str = ""
    exclude: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Root:
    """A place to start from and what names under it begin with (empty, or ending in a slash)."""

    path: str
    prefix: str


def kind_of(name: str) -> Kind:
    """How an input is read, by its name's ending; everything else is tried as a picture."""
    lower = name.lower()
    if lower.endswith(TARS):
        return "tar"
    suffix = os.path.splitext(lower)[1]
    if suffix == ".zip":
        return "zip"
    return "video" if suffix in VIDEOS else "file"


def is_litter(part: str, *, hidden: bool) -> bool:
    """Whether a file or folder of this name is left out without a row."""
    return part in _LITTER or (part.startswith(".") and not hidden)


def roots_of(arguments: Sequence[str]) -> list[Root]:
    """Folders, files and patterns as given; one folder alone names its files without a prefix.

    Raises: NoInput.
    """
    paths: list[str] = []
    for argument in arguments:
        paths += _expanded(argument)
    if len(paths) == 1:
        return [Root(paths[0], "")]
    return [Root(path, prefix) for path, prefix in zip(paths, _prefixes(paths), strict=True)]


def _expanded(argument: str) -> list[str]:
    if os.path.lexists(argument):
        return [argument]
    found = sorted(glob.glob(argument, recursive=True)) if glob.has_magic(argument) else []
    if not found:
        what = "no file matches this pattern" if glob.has_magic(argument) else "there is no such folder or file"
        raise NoInput(f"input {printable(argument)}: {what}.")
    files = {path for path in found if not os.path.isdir(path)}
    # `**` lists a folder and what is in it; the folder would bring its files a second time.
    return sorted(files) if files else found


def _prefixes(paths: list[str]) -> list[str]:
    """The name of each folder given, made unique; files given one by one keep their place relative to each other."""
    if not any(os.path.isdir(path) for path in paths):
        parents = [os.path.dirname(os.path.abspath(path)) for path in paths]
        common = os.path.commonpath(parents)
        return [_slashed(os.path.relpath(parent, common)) for parent in parents]
    prefixes: list[str] = []
    seen: dict[str, int] = {}
    for path in paths:
        name = os.path.basename(os.path.abspath(path)) if os.path.isdir(path) else ""
        seen[name] = seen.get(name, 0) + 1
        prefixes.append(_slashed(f"{name}~{seen[name]}" if name and seen[name] > 1 else name))
    return prefixes


def _slashed(folder: str) -> str:
    return "" if folder in ("", ".") else f"{folder}/"


def printable(path: str | bytes) -> str:
    r"""A path as text that every output can hold: bytes that are no UTF-8 appear as `\xNN`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace").replace(os.sep, "/")


def scan_roots(roots: Sequence[Root], options: ScanOptions) -> Iterator[Source]:
    """Every input under the roots."""
    taken: set[str] = set()
    for root in roots:
        if os.path.isdir(root.path):
            yield from _folder(root.path, root.prefix, options)
            continue
        name = printable(root.prefix + os.path.basename(root.path))
        if name not in taken:
            taken.add(name)
            yield _source(os.path.abspath(root.path), name, options)


def scan_list(paths: Iterator[str], options: ScanOptions) -> Iterator[Source]:
    """Inputs named one by one, by a list; each keeps the name it was given by."""
    for path in paths:
        name = printable(path).removeprefix("./").lstrip("/") or printable(path)
        if os.path.isdir(path):
            yield from _folder(path, name.rstrip("/") + "/", options)
        else:
            yield _source(os.path.abspath(path), name, options)


def _folder(path: str, prefix: str, options: ScanOptions) -> Iterator[Source]:
    """Walk without recursion of the language, so that depth is no limit; linked folders are entered once."""
    excluded = {os.path.realpath(folder) for folder in options.exclude}
    visited = {_identity(path)}
    waiting = [(os.path.abspath(path), "")]
    while waiting:
        folder, below = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    inner = f"{below}{entry.name}"
                    if _left_out(entry.name, inner, options):
                        continue
                    if _enters(entry, options):
                        identity = _identity(entry.path)
                        if identity not in visited and os.path.realpath(entry.path) not in excluded:
                            visited.add(identity)
                            waiting.append((entry.path, f"{inner}/"))
                    elif not _is_skipped_link(entry, options):
                        yield _source(entry.path, printable(prefix + inner), options)
        except OSError as error:
            failure = _failure(error, "folder")
            name = printable(prefix + below).rstrip("/") or printable(os.path.basename(folder))
            yield Source(name, "none", os.fsencode(folder), None, 0, "", failure)


def _left_out(name: str, inner: str, options: ScanOptions) -> bool:
    if is_litter(name, hidden=options.hidden):
        return True
    return any(fnmatchcase(name, pattern) or fnmatchcase(inner, pattern.rstrip("/")) for pattern in options.ignore)


def _enters(entry: os.DirEntry[str], options: ScanOptions) -> bool:
    return options.recursive and entry.is_dir(follow_symlinks=options.symlinks == "follow")


def _is_skipped_link(entry: os.DirEntry[str], options: ScanOptions) -> bool:
    """Links that the policy leaves out, and folders that are not entered."""
    if entry.is_symlink():
        return options.symlinks == "skip" or entry.is_dir()
    return entry.is_dir()


def _identity(path: str) -> tuple[int, int] | str:
    try:
        status = os.stat(path)
    except OSError:
        return path
    return (status.st_dev, status.st_ino)


def _source(path: str, name: str, options: ScanOptions) -> Source:
    raw = os.fsencode(path)
    try:
        status = os.stat(path)
    except OSError as error:
        what = "link" if os.path.islink(path) else "file"
        return Source(name, "none", raw, None, 0, "", _failure(error, what))
    signature = f"{status.st_size}:{status.st_mtime_ns}"
    if not stat.S_ISREG(status.st_mode):
        failure = Failure("special_file", "a pipe, socket or device: never opened", "skipped")
        return Source(name, "none", raw, None, 0, signature, failure)
    kind = kind_of(name)
    if kind == "video":
        signature += f":{options.sampling}"
    return Source(name, kind, raw, None, status.st_size, signature)


def _failure(error: OSError, what: str) -> Failure:
    if isinstance(error, PermissionError):
        return Failure("permission_denied", f"this {what} may not be read by this user")
    if isinstance(error, FileNotFoundError):
        return Failure("not_found", f"this {what} points nowhere" if what == "link" else f"this {what} is gone")
    return Failure("unreadable", f"{what}: {error.strerror or error}")
