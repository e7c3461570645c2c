"""Decisions of a person, appended to `corrections.jsonl`; each line is on the disk before it counts."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

import filelock

from mien.app.errors import LabelingError
from mien.app.inference.records import Face
from mien.app.labeling.copies import disk_errors
from mien.app.labeling.inputs import CORRECTIONS, STATE_DIR, counted
from mien.app.labeling.journal import NOT_A_FACE, UNDONE, Correction, Result, is_whole


def face_of(image: Result, number: int) -> Face:
    """A face of an image. Raises: LabelingError, if it does not exist."""
    if not 0 <= number < len(image.faces):
        faces = counted(len(image.faces), "face")
        raise LabelingError(f"{image.name} has {faces}; number {number} does not exist")
    return image.faces[number]


def decision(image: Result, face: Face, label: str) -> Correction:
    """A decision about a face of an image. Raises: LabelingError, for a label that the model lacks."""
    if label not in (choices := (*face.probabilities, NOT_A_FACE, UNDONE)):
        raise LabelingError(f"label {label!r}: expected one of {', '.join(choices)}")
    sha256, frame = image.key
    return Correction(image.name, frame, face.index, sha256, face.label, label, tuple(face.box))


def append(out: Path, correction: Correction) -> None:
    """Append a decision and sync it to disk. Raises: DiskFull; OutputRefused, if the folder cannot be written."""
    state = out / STATE_DIR
    with disk_errors(out):
        state.mkdir(exist_ok=True)  # not its parents: a folder that was moved would be created again
        # without the lock, a line that another writer has written half would be taken for a truncated one
        with filelock.FileLock(state / f"{CORRECTIONS}.lock"), (out / CORRECTIONS).open("a+b") as file:
            _end_last_line(file)
            file.write(json.dumps(asdict(correction), ensure_ascii=False).encode() + b"\n")
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
    if is_whole(last):
        file.write(b"\n")
    else:
        file.truncate(len(lines) - len(last))
