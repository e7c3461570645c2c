"""Scan of inputs: folders, patterns, lists and single files as `Source`s, unsorted (the journal sorts them).

Only folders are opened; the content of files is checked when they are labeled. A pipe, a device or a dangling link is a
source with a failure, and is never opened. Names are unique.
"""

import codecs
import glob
import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Protocol

from mien.app.labeling.files import CORRECTIONS, STATE_DIR, LabelingError
from mien.app.labeling.journal import files_written_in
from mien.app.labeling.kinds import CONTAINERS, is_hidden, is_ignored, kind_of
from mien.app.labeling.records import Failure, Kind, Source
from mien.app.labeling.request import Request

_ENCODED: Final = re.compile(rb"\\(?=x[0-9a-f]{2})")


class NoInput(LabelingError):
    """An input that does not exist, or inputs without anything to label."""


class Known(Protocol):
    """Records of earlier runs in the output folder."""

    def is_own(self, name: str) -> bool:
        """Whether a file, named relative to the output folder, was written by a run."""
        ...

    def had_inputs(self, prefix: str) -> bool:
        """Whether the last run had inputs with this prefix."""
        ...


class NothingKnown:
    """An output folder without records, for a dry run."""

    def is_own(self, name: str) -> bool:
        """Return False."""
        return False

    def had_inputs(self, prefix: str) -> bool:
        """Return False."""
        return False


@dataclass(frozen=True, slots=True)
class Root:
    """Root of a scan: its path, and the prefix of names below it, which may be empty."""

    path: str
    name: str


def sources_of(request: Request, known: Known) -> Iterator[Source]:
    """Every input of a request. Raises: NoInput, also if there is nothing to label."""
    scan = _Scan(request, known)
    if request.files_from is not None:
        sources = scan.listed(_names(request.files_from, null=request.null))
    else:
        sources = scan.roots(roots_of(request))
    empty = True
    for source in sources:
        empty = False
        yield source
    if empty:
        where = request.files_from if request.files_from is not None else ", ".join(map(printable, request.inputs))
        raise NoInput(f"there is nothing to label in {where}. Is its disk mounted? Nothing was changed.")


def printable(path: str | bytes) -> str:
    r"""A path as text for outputs: bytes that are not UTF-8 become `\xNN`.

    A backslash that could be confused with such an escape becomes `\x5c`, so different paths have different texts.
    """
    raw = os.fsencode(path)
    raw = _ENCODED.sub(rb"\\x5c", raw) if os.sep == "/" else raw.replace(os.fsencode(os.sep), b"/")
    return raw.decode("utf-8", "backslashreplace")


# Arguments


def roots_of(request: Request) -> list[Root]:
    """Roots of folders, files and patterns; the files of a single folder have no prefix. Raises: NoInput."""
    out = _identity(str(request.out))
    found: dict[str, str] = {}
    for argument in request.inputs:
        given = os.path.lexists(argument)
        for path in [argument] if given else _matches(argument):
            identity = _identity(path)
            if given or not (identity == out or is_ignored(printable(path), request)):
                found.setdefault(identity, path)
    if len(found) == 1:
        (path,) = found.values()
        return [Root(path, "" if os.path.isdir(path) else printable(os.path.basename(path)))]
    return [Root(path, name) for path, name in zip(found.values(), _root_names(found), strict=True)]


def _matches(pattern: str) -> list[str]:
    """Matches of a pattern; for `**`, which matches folders and their contents, only files are used."""
    if not glob.has_magic(pattern):
        raise NoInput(f"input {printable(pattern)}: there is no such folder or file.")
    found = sorted(glob.glob(pattern, recursive=True))
    if "**" in pattern:
        found = [path for path in found if not os.path.isdir(path)]
    if not found:
        raise NoInput(f"input {printable(pattern)}: no file matches this pattern.")
    return found


def _root_names(found: dict[str, str]) -> list[str]:
    """Names of several roots by identity: the last part of the path if it is unique, else the differing part."""
    names = [os.path.basename(identity) for identity in found]
    if len(set(names)) < len(names) or not any(os.path.isdir(path) for path in found.values()):
        common = os.path.commonpath([os.path.dirname(identity) for identity in found])
        names = [os.path.relpath(identity, common) for identity in found]
    return [printable(name) for name in names]


def _identity(path: str) -> str:
    """The path with resolved parent links, which is the same for all spellings of an entry."""
    head, tail = os.path.split(os.path.abspath(path) if os.pardir not in path.split(os.sep) else os.path.realpath(path))
    return os.path.join(_real_folder(head), tail)


@lru_cache(maxsize=4096)
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)


def _names(source: str, *, null: bool) -> Iterator[str]:
    """Paths from a file or standard input; on POSIX, bytes that are not UTF-8 are preserved. Raises: NoInput."""
    try:
        stream = sys.stdin.buffer if source == "-" else Path(source).open("rb")  # noqa: SIM115  # closed below
    except OSError as error:
        raise NoInput(f"--files-from {source}: {error.strerror}.") from error
    ending = b"\0" if null else b"\n"
    with stream:
        rest = stream.read(1 << 16).removeprefix(codecs.BOM_UTF8)
        if rest.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # `>` of PowerShell 5
            raise NoInput(f"--files-from {source} is UTF-16: save the list as UTF-8.")
        while rest:
            *names, rest = rest.split(ending)
            block = stream.read(1 << 16)
            if not block:
                names.append(rest)
            rest = rest + block if block else b""
            for name in filter(None, (name.removesuffix(b"\r") for name in names)):
                try:
                    yield os.fsdecode(name)
                except UnicodeDecodeError as error:
                    raise NoInput(f"--files-from {source}: {name!r} is not UTF-8. Save the list as UTF-8.") from error


# Folders


class _Scan:
    """One walk over the inputs of a request."""

    def __init__(self, request: Request, known: Known) -> None:
        self._request, self._known = request, known
        self._out = _identity(str(request.out))

    def roots(self, roots: Sequence[Root]) -> Iterator[Source]:
        for root in roots:
            if not os.path.isdir(root.path):
                if not self._is_own(root.path):
                    yield self._source(root.path, root.name)
                continue
            prefix = f"{root.name}/" if root.name else ""
            empty = True
            for source in self._folder(root.path, prefix):
                empty = False
                yield source
            if empty and self._known.had_inputs(prefix):
                raise NoInput(
                    f"{printable(root.path)} has nothing to label, but had in the last run. Is its disk mounted? "
                    "Nothing was changed: leave the folder out, or choose another --out."
                )

    def listed(self, paths: Iterator[str]) -> Iterator[Source]:
        """Inputs of a list, named as in the list."""
        for path in paths:
            parts = [part for part in printable(path).split("/") if part not in ("", ".")]
            name = ("/" if path.startswith("/") else "") + "/".join(parts)
            if is_ignored(name, self._request) or self._is_own(path):
                continue
            if os.path.isdir(path):
                yield from self._folder(path, f"{name}/" if name else "")
            else:
                yield self._source(path, name)

    def _is_own(self, path: str) -> bool:
        """Whether a file was or will be written by `mien label`."""
        identity = _identity(path)
        if identity != self._out and not identity.startswith(self._out + os.sep):
            return False
        below = printable(os.path.relpath(identity, self._out))
        return below.split("/")[0] in (STATE_DIR, CORRECTIONS) or self._known.is_own(below)

    def _folder(self, path: str, prefix: str) -> Iterator[Source]:
        """Walk a folder without recursion, so that its depth is not limited; linked folders are entered once."""
        inside = (_identity(path) + os.sep).startswith(self._out + os.sep)
        visited = {_file_id(path)}
        waiting = [(os.path.abspath(path), "")]
        written: set[str] = set()  # by other runs, in folders below this one
        while waiting:
            folder, below = waiting.pop()
            if _identity(folder) != self._out:
                written |= files_written_in(Path(folder))
            try:
                entries = _entries(folder)
            except OSError as error:
                if not below:
                    raise NoInput(f"{printable(path)} cannot be read: {error.strerror or error}.") from error
                name = printable(prefix + below).rstrip("/")
                yield Source(name, "folder", os.fsencode(folder), 0, "", _failure(error, "folder"))
                continue
            for entry in entries:
                inner = f"{below}{entry.name}"
                if entry.name == STATE_DIR or is_hidden(entry.name, self._request) or is_ignored(inner, self._request):
                    continue
                if self._enters(entry):
                    file_id = _file_id(entry.path)
                    if file_id not in visited and os.path.realpath(entry.path) != self._out:
                        visited.add(file_id)
                        waiting.append((entry.path, f"{inner}/"))
                elif not (self._is_skipped(entry) or entry.path in written or (inside and self._is_own(entry.path))):
                    yield self._source(entry.path, printable(prefix + inner))

    def _enters(self, entry: os.DirEntry[str]) -> bool:
        return self._request.recursive and _is_folder(entry, follow=self._request.symlinks == "follow")

    def _is_skipped(self, entry: os.DirEntry[str]) -> bool:
        """Whether an entry is a link to skip, or a folder not to enter."""
        return (entry.is_symlink() and self._request.symlinks == "skip") or _is_folder(entry, follow=True)

    def _source(self, path: str, name: str) -> Source:
        raw = os.fsencode(os.path.abspath(path) if os.pardir not in path.split(os.sep) else os.path.realpath(path))
        try:
            status = os.stat(path)
        except (OSError, ValueError) as error:
            return Source(name, "none", raw, 0, "", _failure(error, "link" if os.path.islink(path) else "file"))
        signature = f"{status.st_size}:{status.st_mtime_ns}"
        if not stat.S_ISREG(status.st_mode):
            failure = Failure("special_file", "a pipe, socket or device: never opened", "skipped")
            return Source(name, "none", raw, 0, signature, failure)
        kind = kind_of(name)
        return Source(name, kind, raw, status.st_size, signature + self._selection(kind))

    def _selection(self, kind: Kind) -> str:
        """Options that affect the images of a container."""
        if kind not in CONTAINERS:
            return ""
        chosen = self._request.sampling if kind == "video" else self._request.selection
        return f":{chosen}" if chosen else ""


def _entries(folder: str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return list(entries)


def _is_folder(entry: os.DirEntry[str], *, follow: bool) -> bool:
    try:
        return entry.is_dir(follow_symlinks=follow)
    except OSError:  # a link to itself or through an unreadable folder: it gets its own row
        return False


def _file_id(path: str) -> tuple[int, int] | str:
    try:
        status = os.stat(path)
    except OSError:
        return path
    return (status.st_dev, status.st_ino)


def _failure(error: Exception, what: str) -> Failure:
    if isinstance(error, PermissionError):
        return Failure("permission_denied", f"no permission to read this {what}")
    if isinstance(error, FileNotFoundError):
        return Failure("not_found", "the link points to nothing" if what == "link" else f"this {what} no longer exists")
    return Failure("unreadable", f"{what}: {getattr(error, 'strerror', None) or error}")
