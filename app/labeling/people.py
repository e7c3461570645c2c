"""People in the videos of a run: their numbers, by tracking, and their names, in `people.jsonl`.

People keep their numbers from frame to frame as on the live page, by position and by face. A name belongs to a face by
frame and box, as a correction of a label does, so it stays with its person after another run.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from mien.app.inference.detect.base import iou
from mien.app.inference.records import Box, Face
from mien.app.inference.tracking import Tracker, TrackingRules
from mien.app.labeling.corrections import MIN_IOU, DecisionsFile, face_of
from mien.app.labeling.files import PEOPLE, LabelingError
from mien.app.labeling.journal import Journal
from mien.app.labeling.records import Result
from mien.data import contract

MAX_NAME: Final = 80
RULES: Final = TrackingRules(smoothing_s=0.5, confirmed_s=0)  # every face of a frame has its row
# With sparse sampling, a person may be missed in this many frames.
_MISSED_FRAMES: Final = 2.5


def moments(journal: Journal, name: str, rules: TrackingRules = RULES) -> Iterator[tuple[Result, float]]:
    """The frames of one video, with the numbers of people as tracks of their faces, and the time of a gap, seconds."""
    for image, gap_s, faces in _tracked(journal, name, rules):
        yield replace(image, faces=tuple(faces)), gap_s


def _tracked(journal: Journal, name: str, rules: TrackingRules = RULES) -> Iterator[tuple[Result, float, list[Face]]]:
    """Frames of a video, how long a person may be missed then, and the faces with their tracks."""
    tracker, last_s = Tracker(float(journal.facts.get("confidence_threshold", 0)), rules), 0.0
    scene = 0
    for image in journal.frames(name):
        time_s = image.input.time_s or 0.0
        gap_s = max(rules.lost_s, _MISSED_FRAMES * (time_s - last_s))
        tracker.rules = replace(rules, lost_s=gap_s, slow_s=gap_s)
        # thumbnails suffice to compare faces
        jpegs = [face.thumb or journal.thumb(image.input.row or 0, face.index) for face in image.faces]
        faces = [
            replace(face, crop=contract.decode(jpeg)) if jpeg else face
            for face, jpeg in zip(image.faces, jpegs, strict=True)
        ]
        yield image, gap_s, tracker.update(tuple(faces), time_s, cut=image.input.scene != scene)
        last_s, scene = time_s, image.input.scene


@dataclass(frozen=True, slots=True)
class Anchor:
    """A face of a video: its frame, and its box in pixels."""

    frame: int
    box: Box


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
        self._names: dict[str, dict[Anchor, str]] = {}

    def _apply(self, values: dict[str, Any]) -> None:
        if values["action"] != "name":  # of an earlier version
            return
        names, who = self._names.setdefault(values["file_sha256"], {}), values["who"]
        anchor = Anchor(who["frame"], Box(*map(float, who["box"])))
        names.pop(anchor, None)  # the last one counts of several for one person
        names[anchor] = values["name"]

    def names(self, journal: Journal, video: str) -> tuple[dict[int, str], int]:
        """Names of the people of a video by number, and the number of names whose face is not in this run."""
        names = dict(self._names.get(next(journal.frames(video)).sha256 or "", {}))
        numbers: dict[Anchor, int] = {}
        for image, _, faces in _tracked(journal, video) if names else ():
            for anchor in names:
                if anchor.frame == image.input.frame and faces:
                    best = max(faces, key=lambda face: iou(anchor.box, face.box))  # called here
                    if iou(anchor.box, best.box) >= MIN_IOU:
                        numbers[anchor] = best.track
        by_number = {numbers[anchor]: name for anchor, name in names.items() if anchor in numbers}
        return by_number, len(names) - len(numbers)


def naming_of(image: Result, face: int, name: str) -> Naming:
    """A name for the person with a face. Raises: LabelingError, for a face that does not exist or a name too long."""
    if len(name) > MAX_NAME:
        raise LabelingError(f"a name has at most {MAX_NAME} characters")
    return Naming(image.sha256 or "", Anchor(image.input.frame, face_of(image, face).box), name)
