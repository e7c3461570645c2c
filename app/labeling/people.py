"""Names of the people in videos, in `people.jsonl`.

A name belongs to a face by frame and box, as a correction of a label does, so it stays with its person after another
run.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mien.app.inference.detect.base import iou
from mien.app.inference.records import Box, Face
from mien.app.labeling.decisions_file import MIN_IOU, DecisionsFile, face_of
from mien.app.labeling.files import PEOPLE, LabelingError
from mien.app.labeling.records import Result

MAX_NAME: Final = 80


@dataclass(frozen=True, slots=True)
class Anchor:
    """A face of a video: its frame, and its box in pixels."""

    frame: int
    box: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Naming:
    """The name of the person with a face; an empty one removes an earlier name."""

    file_sha256: str
    who: Anchor
    name: str
    action: str = "name"


class People(DecisionsFile):
    """The names of an output folder."""

    def __init__(self, out: Path) -> None:
        super().__init__(out / PEOPLE)

    def _clear(self) -> None:
        self._edits: dict[str, list[Naming | None]] = {}

    def _apply(self, values: dict[str, Any]) -> None:
        edits = self._edits.setdefault(values["file_sha256"], [])
        match values["action"]:
            case "name":
                who = Anchor(values["who"]["frame"], tuple(values["who"]["box"]))
                edits.append(Naming(values["file_sha256"], who, values["name"]))
            case "merge" | "split":  # of an earlier version; not used
                edits.append(None)
            case "undo":  # of an earlier version
                del edits[-1:]

    def of(self, sha256: str | None) -> list[Naming]:
        """Names in a video, in order."""
        return [edit for edit in self._edits.get(sha256 or "", []) if edit is not None]


def names_by_track(namings: list[Naming], frames: Iterable[tuple[int, list[Face]]]) -> tuple[dict[int, str], int]:
    """Name of each track, and the number of names whose face is not in this run.

    frames: all of the video, with the tracks of their faces.
    """
    tracks: dict[Anchor, int] = {}
    for frame, faces in frames:
        for anchor in (naming.who for naming in namings if naming.who.frame == frame):
            best = max(faces, key=lambda face: iou(Box(*anchor.box), face.box), default=None)
            if best is not None and iou(Box(*anchor.box), best.box) >= MIN_IOU:
                tracks[anchor] = best.track
    names = {tracks[naming.who]: naming.name for naming in namings if naming.who in tracks}
    return names, sum(naming.who not in tracks for naming in namings)


def naming_of(image: Result, face: int, name: str) -> Naming:
    """A name for the person with a face. Raises: LabelingError, for a face that does not exist or a name too long."""
    if len(name) > MAX_NAME:
        raise LabelingError(f"a name has at most {MAX_NAME} characters")
    return Naming(image.sha256 or "", Anchor(image.input.frame, tuple(face_of(image, face).box)), name)
