"""Files of people's decisions: one JSON object per line, only appended to, each line on the disk before it counts.

The last line may lack its line feed, if an editor removed it. If it is not a JSON object, the process was killed while
it wrote the line, and the decision was never confirmed.
"""

import json
import os
from abc import ABC, abstractmethod
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import filelock

from mien.app.inference.records import Face
from mien.app.labeling.files import STATE_DIR, LabelingError, disk_errors
from mien.app.labeling.records import Result
from mien.app.wording import counted

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MIN_IOU: Final = 0.5  # a decision applies to a face whose box overlaps its box at least so much


class DecisionsFile(ABC):
    """The decisions in a file, which a subclass keeps; `refresh` reads those that any process has added since."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises: LabelingError, naming an invalid line."""
        self.path = path
        self._lock = Lock()  # requests are in several threads
        self._bytes = self._lines = 0
        self._clear()
        self.refresh()

    @abstractmethod
    def _clear(self) -> None:
        """Forget all decisions."""

    @abstractmethod
    def _apply(self, values: dict[str, Any]) -> None:
        """Keep the decision of one line. Raises: ValueError, TypeError or KeyError, if it is not a decision."""

    def refresh(self) -> None:
        """Read what was added to the file since the last call. Raises: LabelingError, naming an invalid line."""
        with self._lock:
            size = self.path.stat().st_size if self.path.exists() else 0
            if size < self._bytes:  # edited by hand
                self._bytes = self._lines = 0
                self._clear()
            if size == self._bytes:
                return
            with self.path.open("rb") as file:
                file.seek(self._bytes)
                for line in file:
                    if not line.endswith(b"\n") and not _is_whole(line):
                        return
                    try:
                        if line.strip():  # not the line feed that an editor left out
                            self._apply(json.loads(line))
                    except (ValueError, TypeError, KeyError) as error:
                        where = f"{self.path} line {self._lines + 1}"
                        raise LabelingError(f"{where} cannot be used ({error}): repair or remove it.") from error
                    self._lines += 1
                    self._bytes += len(line)

    def append(self, record: "DataclassInstance") -> None:
        """Append a decision and sync it to disk. Raises: DiskFull; OutputRefused, if the folder cannot be written."""
        state = self.path.parent / STATE_DIR
        with disk_errors(self.path.parent):
            state.mkdir(exist_ok=True)  # not its parents: a folder that was moved would be created again
            # without the lock, a line that another writer has written half would be taken for a truncated one
            with filelock.FileLock(state / f"{self.path.name}.lock"), self.path.open("a+b") as file:
                _end_last_line(file)
                file.write(json.dumps(asdict(record), ensure_ascii=False).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        self.refresh()


def _is_whole(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _end_last_line(file: BinaryIO) -> None:
    """Add the line feed that an editor left out, or remove a truncated line, which would corrupt the next one."""
    if not file.tell():
        return
    file.seek(-1, os.SEEK_END)
    if file.read(1) == b"\n":
        return
    file.seek(0)
    lines = file.read()
    last = lines.rpartition(b"\n")[2]
    if _is_whole(last):
        file.write(b"\n")
    else:
        file.truncate(len(lines) - len(last))


def face_of(image: Result, number: int) -> Face:
    """A face of an image. Raises: LabelingError, if it does not exist."""
    if not 0 <= number < len(image.faces):
        faces = counted(len(image.faces), "face")
        raise LabelingError(f"{image.input.name} has {faces}; number {number} does not exist")
    return image.faces[number]
