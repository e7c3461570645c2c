"""Corrections of the people in videos, in `people.jsonl`: merged, split and named numbers.

An edit names faces by frame and box, like corrections of labels, so it stays with its people after another run.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from mien.app.inference.detect import Box
from mien.app.inference.detect.base import iou
from mien.app.inference.pipeline import LabeledFace
from mien.app.labeling.files import PEOPLE, LabelingError
from mien.app.labeling.records import Result
from mien.app.labeling.review.corrections import MIN_IOU, face_of
from mien.app.labeling.review.decisions_file import DecisionsFile

Action = Literal["merge", "split", "name", "undo"]
MAX_NAME: Final = 80


@dataclass(frozen=True, slots=True)
class Anchor:
    """A face of a video: its frame, and its box in pixels."""

    frame: int
    box: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Edit:
    """One edit of a video.

    action: `merge` makes `who` the person of `other`, `split` makes them another person from that frame on, `name`
        names them, and `undo` reverts the last edit.
    """

    file_sha256: str
    action: Action
    who: Anchor | None = None
    other: Anchor | None = None
    name: str = ""


class People(DecisionsFile):
    """The edits of an output folder."""

    def __init__(self, out: Path) -> None:
        super().__init__(out / PEOPLE)

    def _clear(self) -> None:
        self._edits: dict[str, list[Edit]] = {}

    def _apply(self, values: dict[str, Any]) -> None:
        given = {name: values[name] for name in ("who", "other") if values.get(name)}
        anchors = {name: Anchor(face["frame"], tuple(face["box"])) for name, face in given.items()}
        edit = Edit(**values | anchors)
        edits = self._edits.setdefault(edit.file_sha256, [])
        if edit.action == "undo":
            del edits[-1:]
        else:
            edits.append(edit)

    def of(self, sha256: str | None) -> list[Edit]:
        """Edits of a video, in order."""
        return self._edits.get(sha256 or "", [])


@dataclass(slots=True)
class Numbers:
    """Numbers and names of the people of one video, after the edits; `unmatched` edits name no face of this run."""

    names: dict[int, str] = field(default_factory=dict)
    unmatched: int = 0
    _steps: list[tuple[int, int, int]] = field(default_factory=list)  # person, first frame, new number

    def person(self, track: int, frame: int) -> int:
        """Number of the person of a track in a frame."""
        for person, first, new in self._steps:
            if track == person and frame >= first:
                track = new
        return track

    def edit(self, edits: list[Edit], frames: Iterable[tuple[Result, list[LabeledFace]]]) -> None:
        """Apply edits; `frames` are all of the video, with the tracks of their faces."""
        wanted = {anchor for edit in edits for anchor in (edit.who, edit.other) if anchor is not None}
        tracks: dict[Anchor, int] = {}
        last = 0
        for image, faces in frames:
            last = max(last, *(face.track for face in faces), 0)
            for anchor in (anchor for anchor in wanted if anchor.frame == image.input.frame):
                best = max(faces, key=lambda face: iou(Box(*anchor.box), face.box_px), default=None)
                if best is not None and iou(Box(*anchor.box), best.box_px) >= MIN_IOU:
                    tracks[anchor] = best.track
        for edit in edits:
            if edit.who is None or not all(anchor in tracks for anchor in (edit.who, edit.other) if anchor is not None):
                self.unmatched += 1
                continue
            person = self.person(tracks[edit.who], edit.who.frame)
            if edit.action == "name":
                self.names[person] = edit.name
            elif edit.action == "split":
                last += 1
                self._steps.append((person, edit.who.frame, last))
            elif edit.other is not None:
                into = self.person(tracks[edit.other], edit.other.frame)
                self._steps.append((person, 0, into))
                if name := self.names.pop(person, ""):
                    self.names.setdefault(into, name)


def edit_of(
    video: Result, action: Action, *, who: int, other: tuple[Result, int] | None = None, name: str = ""
) -> Edit:
    """An edit about a face of a frame. Raises: LabelingError, for a face that does not exist."""
    if action == "merge" and other is None:
        raise LabelingError("merge: the other person is missing")
    if len(name) > MAX_NAME:
        raise LabelingError(f"a name has at most {MAX_NAME} characters")
    return Edit(
        video.sha256 or "",
        action,
        None if action == "undo" else _anchor(video, who),
        None if other is None else _anchor(*other),
        name,
    )


def _anchor(image: Result, face: int) -> Anchor:
    return Anchor(image.input.frame, tuple(face_of(image, face).box_px))
