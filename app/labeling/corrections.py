"""Corrections of labels by a person, in `corrections.jsonl`; predictions are never changed.

The file has one JSON object per line, is only appended to, and each line is on the disk before it counts. Its last line
may lack its line feed, if an editor removed it. If it is not a JSON object, the process was killed while it wrote the
line, and the decision was never confirmed.

A correction belongs to a face of a photo, whatever its name and number: it applies to the same bytes, and to the face
whose box overlaps the box of the correction by at least `MIN_IOU`. The last line for a face is used.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import BinaryIO, Final

import filelock

from mien.app.inference.records import Box, Face
from mien.app.inference.search import iou
from mien.app.labeling.files import CORRECTIONS, STATE_DIR, LabelingError, disk_errors
from mien.app.labeling.inputs import STILL
from mien.app.labeling.journal import Journal, Result
from mien.app.wording import counted

MIN_IOU: Final = 0.5  # a decision applies to a face whose box overlaps its box at least so much
NOT_A_FACE: Final = "not_a_face"
UNDONE: Final = "undone"


@dataclass(frozen=True, slots=True)
class Correction:
    """One decision.

    file_sha256, frame, box: identify the face; frame is -1 for still images.
    file, face: name and number of the face at the time of the decision.
    label: one of the model, `NOT_A_FACE` or `UNDONE`; the predicted label if it was confirmed.
    """

    file: str
    frame: int
    face: int
    file_sha256: str
    predicted: str
    label: str
    box: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check what may have been edited by hand. Raises: ValueError, TypeError."""
        if not str.isidentifier(self.label):
            raise ValueError(f"label {self.label!r}")
        Box(*map(float, self.box))

    def overlap(self, box: Box) -> float:
        """Share of the box that a face has in common with it."""
        return iou(Box(*self.box), box)


class Corrections:
    """The current decisions of an output folder; `refresh` reads those that any process has added since."""

    def __init__(self, out: Path) -> None:
        """Read the file. Raises: LabelingError, naming an invalid line."""
        self.path = out / CORRECTIONS
        self._lock = Lock()  # requests are in several threads
        self._bytes = self._lines = 0
        self._by_image: dict[tuple[str, int], list[Correction]] = {}
        self.refresh()

    def __iter__(self) -> Iterator[Correction]:
        return (correction for corrections in list(self._by_image.values()) for correction in corrections)

    def __len__(self) -> int:
        return sum(map(len, list(self._by_image.values())))

    def refresh(self) -> None:
        """Read what was added to the file since the last call. Raises: LabelingError, naming an invalid line."""
        with self._lock:
            size = self.path.stat().st_size if self.path.exists() else 0
            if size < self._bytes:  # edited by hand
                self._bytes = self._lines = 0
                self._by_image = {}
            if size == self._bytes:
                return
            with self.path.open("rb") as file:
                file.seek(self._bytes)
                for line in file:
                    if not line.endswith(b"\n") and not _is_whole(line):
                        return
                    try:
                        if line.strip():  # not the line feed that an editor left out
                            self._apply(Correction(**json.loads(line)))
                    except (ValueError, TypeError, KeyError) as error:
                        where = f"{self.path} line {self._lines + 1}"
                        raise LabelingError(f"{where} cannot be used ({error}): repair or remove it.") from error
                    self._lines += 1
                    self._bytes += len(line)

    def _apply(self, correction: Correction) -> None:
        """Replace the earlier decision about the same face."""
        image = correction.file_sha256, correction.frame
        others = [other for other in self._by_image.get(image, []) if other.overlap(Box(*correction.box)) < MIN_IOU]
        self._by_image[image] = others if correction.label == UNDONE else [*others, correction]

    def append(self, correction: Correction) -> None:
        """Append a decision and sync it to disk. Raises: DiskFull; OutputRefused, if the folder cannot be written."""
        state = self.path.parent / STATE_DIR
        with disk_errors(self.path.parent):
            state.mkdir(exist_ok=True)  # not its parents: a folder that was moved would be created again
            # without the lock, a line that another writer has written half would be taken for a truncated one
            with filelock.FileLock(state / f"{self.path.name}.lock"), self.path.open("a+b") as file:
                _end_last_line(file)
                file.write(json.dumps(asdict(correction), ensure_ascii=False).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        self.refresh()

    def of(self, image: Result) -> dict[int, Correction]:
        """Decisions about the faces of an image, by number; each is used once, the largest overlap first."""
        corrections = self._by_image.get(_key(image), [])
        pairs = [(correction.overlap(face.box), correction, face) for correction in corrections for face in image.faces]
        decided: dict[int, Correction] = {}
        for overlap, correction, face in sorted(pairs, key=lambda pair: -pair[0]):
            if overlap >= MIN_IOU and face.index not in decided and correction not in decided.values():
                decided[face.index] = correction
        return decided

    def decided(self, journal: Journal) -> Iterator[tuple[Face, Correction]]:
        """Faces of the last run with their decisions; copies of a photo count once."""
        moved = set[tuple[str, int]]()  # photos with another name than at the time of the decision
        for key, corrections in self._by_image.items():
            image = journal.result(corrections[-1].file, None if key[1] == STILL else key[1]) if corrections else None
            if image is not None and _key(image) == key:
                yield from ((image.faces[number], correction) for number, correction in self.of(image).items())
            elif corrections:
                moved.add(key)
        for image in journal.results() if moved else ():
            if _key(image) in moved:
                moved.remove(_key(image))
                yield from ((image.faces[number], correction) for number, correction in self.of(image).items())

    def count(self, journal: Journal) -> tuple[int, int]:
        """Numbers of reviewed faces of the last run, and of those with another label than the predicted one."""
        labels = [(face.label, correction.label) for face, correction in self.decided(journal)]
        return len(labels), sum(predicted != decided for predicted, decided in labels)


def _key(image: Result) -> tuple[str, int]:
    return image.sha256 or "", STILL if image.frame is None else image.frame


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
        raise LabelingError(f"{image.name} has {faces}; number {number} does not exist")
    return image.faces[number]


def decision(image: Result, face: Face, label: str) -> Correction:
    """A decision about a face of an image. Raises: LabelingError, for a label that the model lacks."""
    if label not in (choices := (*face.probabilities, NOT_A_FACE, UNDONE)):
        raise LabelingError(f"label {label!r}: expected one of {', '.join(choices)}")
    name, (sha256, frame) = image.name, _key(image)
    return Correction(name, frame, face.index, sha256, face.label, label, tuple(face.box))
