"""Corrections in `corrections.jsonl`, one line per decision; predictions are never changed.

A decision belongs to a face of a photo, whatever its name and number: it applies to the same bytes, and to the face
whose box overlaps the box of the decision by at least `MIN_IOU`. The last line for a face is used.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mien.app.inference.detect.base import iou
from mien.app.inference.records import Box, Face
from mien.app.labeling.decisions_file import MIN_IOU, DecisionsFile
from mien.app.labeling.files import CORRECTIONS, REVIEWS, LabelingError
from mien.app.labeling.journal import Journal
from mien.app.labeling.records import Result

NOT_A_FACE: Final = "not_a_face"
UNDONE: Final = "undone"


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
        if not correction.label.isidentifier():
            raise ValueError(f"label {correction.label!r}")
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
