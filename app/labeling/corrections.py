"""Decisions of people: files of them, and corrections of labels in `corrections.jsonl`; predictions are never changed.

A file has one JSON object per line, is only appended to, and each line is on the disk before it counts. Its last line
may lack its line feed, if an editor removed it. If it is not a JSON object, the process was killed while it wrote the
line, and the decision was never confirmed.

A correction belongs to a face of a photo, whatever its name and number: it applies to the same bytes, and to the face
whose box overlaps the box of the correction by at least `MIN_IOU`. The last line for a face is used.
"""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import filelock

from mien.app.inference.detect.base import iou
from mien.app.inference.records import Box, Face
from mien.app.labeling.files import CORRECTIONS, REVIEWS, STATE_DIR, LabelingError, disk_errors
from mien.app.labeling.journal import Journal
from mien.app.labeling.records import Result
from mien.app.wording import counted

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MIN_IOU: Final = 0.5  # a decision applies to a face whose box overlaps its box at least so much
NOT_A_FACE: Final = "not_a_face"
UNDONE: Final = "undone"


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


@dataclass(frozen=True, slots=True)
class Correction:
    """One decision.

    file_sha256, frame, box: identify the face; frame is -1 for still images; the box, pixels, is missing in lines of
        earlier versions, which apply to the face with their number and prediction.
    file, face: name and number of the face at the time of the decision.
    label: one of the model, `NOT_A_FACE` or `UNDONE`; the predicted label if it was confirmed.
    reviewer: name of the person who decided, if it was given.
    """

    file: str
    frame: int
    face: int
    file_sha256: str
    predicted: str
    label: str
    box: tuple[float, ...] | None = None
    reviewer: str = ""

    def __post_init__(self) -> None:
        """Check what may have been edited by hand. Raises: ValueError, TypeError."""
        if not str.isidentifier(self.label):
            raise ValueError(f"label {self.label!r}")
        if self.box is not None:
            Box(*map(float, self.box))

    def overlap(self, face: Face) -> float:
        """Share of the box that a face has in common with it."""
        if self.box is None:
            return float(face.index == self.face and face.label == self.predicted)
        return iou(Box(*self.box), face.box)


class Corrections(DecisionsFile):
    """The current decisions of an output folder, or those of a reviewer."""

    def __init__(self, out: Path, reviewer: str = "") -> None:
        super().__init__(out / REVIEWS / f"{reviewer}.jsonl" if reviewer else out / CORRECTIONS)

    def _clear(self) -> None:
        self._by_image: dict[tuple[str, int], list[Correction]] = {}

    def __iter__(self) -> Iterator[Correction]:
        return (correction for corrections in list(self._by_image.values()) for correction in corrections)

    def __len__(self) -> int:
        return sum(map(len, list(self._by_image.values())))

    def _apply(self, values: dict[str, Any]) -> None:
        """Replace the earlier decision about the same face."""
        correction = Correction(**values)
        others = [
            other
            for other in self._by_image.get((correction.file_sha256, correction.frame), [])
            if not _is_same_face(other, correction)
        ]
        others += [] if correction.label == UNDONE else [correction]
        self._by_image[correction.file_sha256, correction.frame] = others

    def label_of(self, face: Correction) -> str | None:
        """The label that was decided for the face of another decision."""
        decided = self._by_image.get((face.file_sha256, face.frame), [])
        return next((other.label for other in decided if _is_same_face(other, face)), None)

    def of(self, image: Result) -> dict[int, Correction]:
        """Decisions about the faces of an image, by number; each is used once, the largest overlap first."""
        corrections = self._by_image.get((image.sha256 or "", image.input.frame), [])
        pairs = [(correction.overlap(face), correction, face) for correction in corrections for face in image.faces]
        decided: dict[int, Correction] = {}
        for overlap, correction, face in sorted(pairs, key=lambda pair: -pair[0]):
            if overlap >= MIN_IOU and face.index not in decided and correction not in decided.values():
                decided[face.index] = correction
        return decided

    def of_face(self, journal: Journal, image: Result, face: Face) -> Correction | None:
        """Decision about a face of an image, which may lack its other faces."""
        if not self._by_image.get((image.sha256 or "", image.input.frame)):
            return None
        whole = journal.image(image.input.name, image.input.frame)
        return self.of(whole).get(face.index) if whole else None

    def count(self, journal: Journal) -> tuple[int, int]:
        """Numbers of reviewed faces of the last run, and of those with another label than the predicted one."""
        reviewed = corrected = 0
        for sha256, frame in self._by_image:
            image = journal.image_of(sha256, frame)
            decided = self.of(image) if image else {}
            predicted = {face.index: face.label for face in image.faces} if image else {}
            reviewed += len(decided)
            corrected += sum(decision.label != predicted[face] for face, decision in decided.items())
        return reviewed, corrected


def _is_same_face(correction: Correction, other: Correction) -> bool:
    if correction.box is None or other.box is None:
        return correction.face == other.face
    return iou(Box(*correction.box), Box(*other.box)) >= MIN_IOU


def decision(image: Result, face: Face, label: str, reviewer: str = "") -> Correction:
    """A decision about a face of an image. Raises: LabelingError, for a label that the model lacks."""
    if label not in (choices := (*face.probabilities, NOT_A_FACE, UNDONE)):
        raise LabelingError(f"label {label!r}: expected one of {', '.join(choices)}")
    name, frame, sha256 = image.input.name, image.input.frame, image.sha256 or ""
    return Correction(name, frame, face.index, sha256, face.label, label, tuple(face.box), reviewer)
