"""Files of people's decisions: one JSON object per line, only appended to, each line on the disk before it counts.

The last line may lack its line feed, if an editor removed it. If it is not a JSON object, the process was killed while
it wrote the line, and the decision was never confirmed.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import filelock

from mien.app.labeling.files import STATE_DIR, disk_errors

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def read_lines(path: Path, offset: int = 0) -> Iterator[bytes]:
    """Lines from an offset in bytes, without a truncated last one."""
    if path.exists():
        with path.open("rb") as file:
            file.seek(offset)
            yield from (line for line in file if line.endswith(b"\n") or _is_whole(line))


def _is_whole(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def append_line(path: Path, record: "DataclassInstance") -> None:
    """Append a record and sync it to disk. Raises: DiskFull; OutputRefused, if the folder cannot be written."""
    state = path.parent / STATE_DIR
    with disk_errors(path.parent):
        state.mkdir(parents=True, exist_ok=True)
        # without the lock, a line that another writer has written half would be taken for a truncated one
        with filelock.FileLock(state / f"{path.name}.lock"), path.open("a+b") as file:
            _end_last_line(file)
            file.write(json.dumps(asdict(record), ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


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
