"""Files of a data set, in a folder, a zip, or a folder with one zip.

Readers access a `FileTree` by relative names, so they need not distinguish folders and zips. Zips are not unpacked:
the published ones are uncompressed, so reading them is as fast as reading a folder.
"""

import csv
import io
import os
import re
import zipfile
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from mien.data.errors import MienError

_HIDDEN: Final = re.compile(r"(^|/)(\.|__MACOSX(/|$))")


class DatasetError(MienError):
    """A data set that is missing, incomplete or not in the expected layout."""


class FileTree(ABC):
    """Files by relative POSIX name; can be shared by threads, forked and pickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all files below the root, sorted, without hidden files and `__MACOSX`.

        Raises: DatasetError, for a name that is not UTF-8: the hashes of the data need its characters.
        """
        names = sorted(name for name in self._list() if not _HIDDEN.search(name))
        for name in names:
            if (stored := name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")) != name:
                raise DatasetError(f"{self.path}: the name of {stored} is not UTF-8. Rename the file.")
        return tuple(names)

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._known

    @abstractmethod
    def _list(self) -> list[str]: ...

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return a file's bytes. Raises: DatasetError, naming the file."""

    def read_text(self, name: str) -> str:
        """Return a UTF-8 file's text, without a byte-order mark. Raises: DatasetError, naming the file."""
        try:
            return self.read(name).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise DatasetError(f"{self.path}: {name} is not UTF-8 text ({error}). Save it as UTF-8.") from error

    def read_csv(self, name: str) -> "csv.DictReader[str]":
        """Return the rows of a CSV file, by the names of its columns. Raises: see `read_text`."""
        return csv.DictReader(io.StringIO(self.read_text(name), newline=""))

    def prefix_of(self, marker: str) -> str | None:
        """Return the shortest folder prefix ("" or "a/b/") in front of `marker`; None if there is no such file."""
        matching = [name for name in self.names if name == marker or name.endswith(f"/{marker}")]
        return min(matching, key=len)[: -len(marker)] if matching else None


class FolderTree(FileTree):
    """Files of a folder; links to folders are followed, and each real folder is read once."""

    def _list(self) -> list[str]:
        names: list[str] = []
        visited: set[str] = set()
        for folder, subfolders, files in os.walk(self.path, followlinks=True):
            real = os.path.realpath(folder)
            if real in visited:
                subfolders.clear()
                continue
            visited.add(real)
            relative = Path(folder).relative_to(self.path)
            names += [(relative / file).as_posix() for file in files]
        return names

    def read(self, name: str) -> bytes:
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            raise DatasetError(f"cannot read {self.path / name}: {error.strerror}") from error


class ZipTree(FileTree):
    """Files of a zip; every process opens the zip itself, because a shared file offset would be a race condition."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._by_process: dict[int, zipfile.ZipFile] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_by_process": {}}

    def _zip(self) -> zipfile.ZipFile:
        handle = self._by_process.get(os.getpid())
        if handle is None:
            try:
                handle = self._by_process.setdefault(os.getpid(), zipfile.ZipFile(self.path))
            except (OSError, zipfile.BadZipFile) as error:
                raise DatasetError(f"cannot open {self.path} as a zip: {error}. Copy or download it again.") from error
        return handle

    def _list(self) -> list[str]:
        return [entry.filename for entry in self._zip().infolist() if not entry.is_dir()]

    def read(self, name: str) -> bytes:
        """Return an entry's bytes, checked against its CRC. Raises: DatasetError, naming the file."""
        try:
            return self._zip().read(name)
        except KeyError:
            raise DatasetError(f"cannot read {name} in {self.path}: no such file in the zip") from None
        except (OSError, RuntimeError, NotImplementedError, zipfile.BadZipFile, EOFError) as error:
            raise DatasetError(f"cannot read {name} in {self.path}: {error}") from error


def open_tree(root: Path) -> FileTree:
    """Open a folder, a zip, or a folder with one zip and no subfolders.

    Raises: DatasetError, if `root` does not exist.
    """
    if root.is_file():
        return ZipTree(root)
    if not root.is_dir():
        raise DatasetError(f"no data at {root}: expected a folder or a zip")
    visible = [entry for entry in root.iterdir() if not entry.name.startswith(".")]
    zips = [entry for entry in visible if entry.suffix.lower() == ".zip" and entry.is_file()]
    if len(zips) == 1 and not any(entry.is_dir() for entry in visible):
        return ZipTree(zips[0])
    return FolderTree(root)
