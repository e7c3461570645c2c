"""Scan of inputs: folders, lists and single files, unsorted (the journal sorts them).

Only folders are opened; the content of files is checked when they are labeled. A pipe, a device or a dangling link
is an input with a failure, and is never opened. Names are unique.
"""

import codecs
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

from mien.app.labeling.files import NoInput
from mien.app.labeling.options import LabelOptions
from mien.app.labeling.outputs import owned_names
from mien.app.labeling.reading import is_hidden, is_ignored, kind_of, unread, unreadable
from mien.app.labeling.records import Failure, Input
from mien.app.labeling.store import check_store, is_url, is_web, objects

_ENCODED: Final = re.compile(rb"\\(?=x[0-9a-f]{2})")
_HINT: Final = "If it is on an external disk, check that it is mounted."


def scan(options: LabelOptions, had_inputs: Callable[[str], bool] = lambda _: False) -> Iterator[Input]:
    """Every input of a run.

    had_inputs: whether the last run had inputs with a prefix. Raises: NoInput, also if there is nothing to label.
    """
    empty = True
    for item in _from_list(options) if options.files_from is not None else _from_arguments(options, had_inputs):
        empty = False
        yield item
    if empty:
        where = options.files_from or ", ".join(map(printable, options.inputs))
        ignored = "Check --ignore. " if options.ignore else ""
        raise NoInput(f"No files found in {where}. {ignored}{_HINT}")


def printable(path: str | bytes) -> str:
    r"""A path as text for outputs: bytes that are not UTF-8 become `\xNN`.

    A backslash that could be confused with such an escape becomes `\x5c`, so different paths have different texts.
    """
    raw = os.fsencode(path)
    raw = _ENCODED.sub(rb"\\x5c", raw) if os.sep == "/" else raw.replace(os.fsencode(os.sep), b"/")
    return raw.decode("utf-8", "backslashreplace")


# Folders and files of the command line


def _roots(options: LabelOptions) -> dict[str, str]:
    """Name of each path to scan; the files of a single folder have no prefix. Raises: NoInput."""
    paths: dict[str, str] = {}
    for path in options.inputs:
        if not (is_url(path) or os.path.lexists(path)):
            raise NoInput(f"Input {printable(path) or '(empty)'} does not exist.")
        paths.setdefault(_identity(path), path)
    if len(paths) == 1:
        (path,) = paths.values()
        return {path: "" if os.path.isdir(path) or is_url(path) else printable(os.path.basename(path))}
    # the last part of each path if these are unique, else the part in which the paths differ
    names = [os.path.basename(identity) for identity in paths]
    if any(map(is_url, paths)):
        names = list(paths) if len(set(names)) < len(names) else names
    elif len(set(names)) < len(names) or not any(os.path.isdir(path) for path in paths):
        names = list(paths)
        with suppress(ValueError):  # two drives of Windows
            common = os.path.commonpath([os.path.dirname(identity) for identity in paths])
            names = [os.path.relpath(identity, common) for identity in paths]
    return dict(zip(paths.values(), map(printable, names), strict=True))


def _from_arguments(options: LabelOptions, had_inputs: Callable[[str], bool]) -> Iterator[Input]:
    roots = _roots(options)
    owned, visited = owned_names(options.out), {_file_id(str(options.out))}
    folders = {path: name for path, name in roots.items() if is_url(path) or os.path.isdir(path)}
    files = {_identity(path): path for path in roots if path not in folders}
    for path, name in folders.items():
        if is_url(path) and is_web(path):
            yield _unlisted_object(path)
            continue
        if not is_url(path) and _file_id(path) in visited:  # below another input
            continue
        prefix = f"{name}/" if name else ""
        empty = True
        for item in _objects(path, prefix, options) if is_url(path) else _folder(path, prefix, options, visited):
            empty = False
            if files:
                files.pop(_identity(os.fsdecode(item.path)), None)
            yield item
        if empty and had_inputs(prefix):
            raise NoInput(
                f"No files found in {printable(path)}, which had files in the last run. {_HINT} If it is empty on "
                "purpose, leave it out or choose another --out."
            )
    for path in files.values():  # in none of the folders
        if not _is_output(path, options.out, owned):
            yield _input(path, roots[path])


# Lists


def _from_list(options: LabelOptions) -> Iterator[Input]:
    """Inputs of a list, named as in the list."""
    owned, visited = owned_names(options.out), {_file_id(str(options.out))}
    for path in _paths(options.files_from or "-", null=options.null):
        if is_url(path):
            check_store(path)
            if not is_ignored(path, options):
                yield _unlisted_object(path)
            continue
        parts = [part for part in printable(path).split("/") if part not in ("", ".")]
        name = ("/" if path.startswith("/") else "") + "/".join(parts)
        if is_ignored(name, options) or _is_output(path, options.out, owned):
            continue
        if os.path.isdir(path):
            yield from _folder(path, f"{name}/" if name else "", options, visited)
        else:
            yield _input(path, name)


def _paths(source: str, *, null: bool) -> Iterator[str]:
    """Paths from a file or standard input; on POSIX, bytes that are not UTF-8 are preserved. Raises: NoInput."""
    try:
        stream = sys.stdin.buffer if source == "-" else Path(source).open("rb")  # noqa: SIM115  # closed below
    except OSError as error:
        raise NoInput(f"--files-from {source}: {error.strerror}.") from error
    ending = b"\0" if null else b"\n"
    with stream:
        rest = stream.read(1 << 16).removeprefix(codecs.BOM_UTF8)
        if rest.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # `>` of PowerShell 5, Notepad
            raise NoInput(f"--files-from {source} is UTF-16. Save the list as UTF-8.")
        while rest:
            if not null and b"\0" in rest:
                raise NoInput(f"--files-from {source} contains NUL characters: add --null.")
            *names, rest = rest.split(ending)
            block = stream.read(1 << 16)
            if not block:
                names.append(rest)
            rest = rest + block if block else b""
            for name in filter(None, (name.removesuffix(b"\r") for name in names)):
                try:
                    yield os.fsdecode(name) if null else _unquoted(os.fsdecode(name))
                except UnicodeDecodeError as error:
                    raise NoInput(f"--files-from {source}: {name!r} is not UTF-8. Save the list as UTF-8.") from error


def _unquoted(name: str) -> str:
    """A path without the quotes of "Copy as path" in Windows, unless they are part of an existing name."""
    is_quoted = len(name) > 2 and name.startswith('"') and name.endswith('"')
    return name[1:-1] if is_quoted and not os.path.lexists(name) else name


# Entries


def _unlisted_object(url: str) -> Input:
    """An object without a request to its server; a query, such as a signature, is not part of its name."""
    name = url.split("?", maxsplit=1)[0].split("#", maxsplit=1)[0] if is_web(url) else url
    return _by_name(printable(name), os.fsencode(url), 0, "")


def _objects(url: str, prefix: str, options: LabelOptions) -> Iterator[Input]:
    """Objects of a store below a prefix, or one object."""
    for key, size, version in objects(url):
        name = prefix + printable(key) if key else prefix.rstrip("/") or printable(url.rsplit("/", 1)[-1])
        parts = [part for part in key.split("/") if part]
        hidden = any(is_hidden(part, options) for part in parts) or key.endswith("/")
        if hidden or is_ignored(key, options) or (len(parts) > 1 and not options.recursive):
            continue
        path = f"{url.rstrip('/')}/{key}" if key else url
        yield _by_name(name, os.fsencode(path), size, version)


def _folder(path: str, prefix: str, options: LabelOptions, visited: set[tuple[int, int] | str]) -> Iterator[Input]:
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
                raise NoInput(f"{printable(path)} cannot be read: {error.strerror or error}.") from error
            name = printable(prefix + below).rstrip("/")
            yield Input(name, "folder", os.fsencode(folder), 0, failure=unreadable(error, "folder"))
            continue
        owned = owned_names(Path(folder))
        for entry in entries:
            inner = f"{below}{entry.name}"
            if entry.name in owned or is_hidden(entry.name, options) or is_ignored(printable(inner), options):
                continue
            if options.recursive and _is_folder(entry, follow=False):
                file_id = _file_id(entry.path)
                if file_id not in visited:
                    visited.add(file_id)
                    waiting.append((entry.path, f"{inner}/"))
            elif not _is_folder(entry, follow=True):
                yield _input(entry.path, printable(prefix + inner))


def _input(path: str, name: str) -> Input:
    raw = os.fsencode(_full(path))
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        return Input(name, "none", raw, 0, failure=unreadable(error, "link" if os.path.islink(path) else "file"))
    signature = f"{status.st_size}:{status.st_mtime_ns}"
    if not stat.S_ISREG(status.st_mode):
        failure = Failure("special_file", "a pipe, socket or device: never opened", "skipped")
        return Input(name, "none", raw, 0, signature, failure)
    return _by_name(name, raw, status.st_size, signature)


def _by_name(name: str, path: bytes, size: int, version: str) -> Input:
    """A file or an object, by its size and version; one of a kind that is not read has a failure."""
    failure = unread(name)
    return Input(name, "none" if failure else kind_of(name), path, size, version, failure)


def _is_output(path: str, out_folder: Path, owned: set[str]) -> bool:
    """Return whether a file is in the output folder and written by `mien label`."""
    identity, out = _identity(path), _identity(str(out_folder))
    return identity.startswith(out + os.sep) and os.path.relpath(identity, out).split(os.sep)[0] in owned


def _identity(path: str) -> str:
    """The path with resolved parent links, which is the same for all spellings of an entry."""
    if is_url(path):
        return path.rstrip("/")
    head, tail = os.path.split(_full(path))
    return os.path.join(_real_folder(head), tail)


def _full(path: str) -> str:
    return os.path.abspath(path) if os.pardir not in path.split(os.sep) else os.path.realpath(path)


@lru_cache(maxsize=4096)
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)


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
