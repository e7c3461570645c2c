"""Output folder of a run, in which only recorded files are replaced or removed."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from mien.app.labeling.files import ForeignFile, foreign, parts_dir
from mien.app.labeling.journal import Journal
from mien.data.atomic import atomic_file, write_atomic


class OutputFolder:
    """Writes files below `path` and records them in the journal; names are relative, with forward slashes."""

    def __init__(self, path: Path, journal: Journal) -> None:
        self.path = path
        self._journal = journal

    def check(self, targets: Iterable[str]) -> None:
        """Check that targets do not exist or are recorded, before anything is written. Raises: ForeignFile."""
        for target in targets:
            path = self.path / target
            if os.path.lexists(path) and not os.path.isdir(path) and not self._journal.is_own(target):
                raise ForeignFile(foreign(path))

    def check_tree(self, name: str) -> None:
        """Check that all files in a folder that will be replaced are recorded. Raises: ForeignFile."""
        for folder, folders, names in os.walk(self.path / name):
            links = [one for one in folders if os.path.islink(os.path.join(folder, one))]
            for one in (*names, *links):
                below = os.path.relpath(os.path.join(folder, one), self.path).replace(os.sep, "/")
                if not self._journal.is_own(below):
                    raise ForeignFile(foreign(self.path / below))

    def claim(self, owner: str, names: Iterable[str]) -> None:
        """Record files before they are written. Raises: ForeignFile."""
        self._journal.claim(owner, names)

    @contextlib.contextmanager
    def file(self, owner: str, name: str, mode: str = "w") -> Iterator[IO[Any]]:
        """Open an output file that replaces the old one at the end of the block. Raises: ForeignFile, OSError."""
        self.claim(owner, [name])
        with atomic_file(self.path / name, mode, staging=parts_dir(self.path)) as file:
            yield file

    def write_image(self, name: str, payload: bytes) -> None:
        """Write an encoded image under a recorded name.

        Images are not synced to the disk individually, because this would take longer than labeling.
        """
        write_atomic(self.path / name, payload, staging=parts_dir(self.path), durable=False)

    @contextlib.contextmanager
    def tree(self, name: str, files: Callable[[], Iterable[str]]) -> Iterator[None]:
        """Record the files of a folder that is replaced in the block. Raises: ForeignFile."""
        self.check_tree(name)
        self.claim(name, files())
        yield
        self._journal.disown(self._journal.stale(name, files()))
