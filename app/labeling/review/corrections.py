"""Corrections in `corrections.jsonl`, one line per decision; predictions are never changed.

The last line for a face is used. A line is ignored if the bytes of its image have changed.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from mien.app.labeling.files import CORRECTIONS, LabelingError
from mien.app.labeling.records import Result
from mien.data.contract import EIGHT_LABELS

NOT_A_FACE: Final = "not_a_face"
UNDONE: Final = "undone"
DECISIONS: Final = (*EIGHT_LABELS, NOT_A_FACE, UNDONE)
Key = tuple[str, int, int]


class BadCorrection(LabelingError):
    """A decision about a missing face, or one that is not in `DECISIONS`."""


@dataclass(frozen=True, slots=True)
class Correction:
    """One decision.

    file, frame, face: identify the face; frame is -1 for still images.
    label: one of `DECISIONS`; the predicted label if it was confirmed.
    """

    file: str
    frame: int
    face: int
    file_sha256: str
    predicted: str
    label: str


def read_corrections(out: Path) -> dict[Key, Correction]:
    """Current decisions by face. Raises: LabelingError, naming an invalid line."""
    path = out / CORRECTIONS
    if not path.exists():
        return {}
    found: dict[Key, Correction] = {}
    for number, correction in _lines(path):
        if correction.label not in DECISIONS:
            raise BadCorrection(f"{path} line {number}: label {correction.label!r}, expected {', '.join(DECISIONS)}")
        key = (correction.file, correction.frame, correction.face)
        if correction.label == UNDONE:
            found.pop(key, None)
        else:
            found[key] = correction
    return found


def _lines(path: Path) -> Iterator[tuple[int, Correction]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith("\n"):
                return  # truncated by a kill and never acknowledged
            try:
                yield number, Correction(**json.loads(line))
            except (ValueError, TypeError) as error:
                raise LabelingError(
                    f"{path} line {number} is not a correction ({error}): repair or remove it."
                ) from error


def append_correction(out: Path, correction: Correction) -> None:
    """Append a decision and sync it to disk."""
    path = out / CORRECTIONS
    _drop_cut_line(path)
    with path.open("ab") as file:
        file.write(json.dumps(asdict(correction), ensure_ascii=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _drop_cut_line(path: Path) -> None:
    """Remove a truncated last line, which would corrupt the next one."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) == b"\n":
            return
    os.truncate(path, path.read_bytes().rfind(b"\n") + 1)


def decision(image: Result, face: int, label: str) -> Correction:
    """Validate a decision about a face. Raises: BadCorrection."""
    if label not in DECISIONS:
        raise BadCorrection(f"label {label!r}: expected one of {', '.join(DECISIONS)}")
    if not 0 <= face < len(image.faces):
        raise BadCorrection(f"{image.input.name} has {len(image.faces)} faces; number {face} does not exist")
    predicted = image.faces[face].label
    return Correction(image.input.name, image.input.frame, face, image.sha256 or "", predicted, label)


def applies(correction: Correction | None, image: Result) -> bool:
    """Whether a decision was made for the same bytes."""
    return correction is not None and correction.file_sha256 == (image.sha256 or "")
