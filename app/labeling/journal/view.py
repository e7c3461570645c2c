"""Read-only view of a run for outputs: images by name and frame, each with its faces.

Rows are streamed, so memory does not depend on the number of images. The checksum of every row is verified.
"""

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from mien.app.inference.detect import Box
from mien.app.inference.pipeline import LabeledFace
from mien.app.labeling.files import DamagedJournal, LabelingError
from mien.app.labeling.journal.schema import CONTAINER_KINDS, checksum, journal_path
from mien.app.labeling.journal.writer import Journal
from mien.app.labeling.records import STILL
from mien.data.contract import LABELS, Array

# the fields of LabeledImage, then the parent and the checksum
_ITEM: Final = (
    "i.id, i.name, i.frame, i.kind, i.path, i.member, i.size, i.status, i.reason, i.error, i.sha256, i.width, "
    "i.height, i.time_s, i.parent, i.checksum"
)
_FACE: Final = (
    "f.face, f.box, f.landmarks, f.score, f.probabilities, f.label, f.confidence, f.uncertain, f.roll, f.sharpness, "
    "f.checksum"
)
_ITEM_COLUMNS: Final = 16
# A container has its own row only if it failed as a whole.
_IMAGES: Final = (
    f"i.found=? AND i.status IS NOT NULL AND (i.kind NOT IN {CONTAINER_KINDS} OR i.parent IS NOT NULL OR "
    "i.status IN ('error', 'skipped'))"
)


@dataclass(frozen=True, slots=True, eq=False)
class LabeledImage:
    """One labeled image for outputs; `row` is its key in the journal, which is not part of any output."""

    row: int
    name: str
    frame: int
    kind: str
    path: str
    member: int | None
    size: int
    status: Literal["ok", "no_face", "error", "skipped"]
    reason: str | None
    error: str | None
    sha256: str | None
    width: int | None
    height: int | None
    time_s: float | None
    is_child: bool
    faces: tuple[LabeledFace, ...]

    @property
    def frame_or_none(self) -> int | None:
        """Frame number of a video; None for a still image."""
        return None if self.frame == STILL else self.frame


class NoJournal(LabelingError):
    """A folder that was not written by `mien label`."""


class View:
    """A finished or interrupted run, for reading."""

    def __init__(self, out: Path, *, knows_duplicates: bool = True, filtered: bool = True) -> None:
        """Open the journal of an output folder. Raises: sqlite3.OperationalError, if there is none.

        Args:
            out: the output folder.
            knows_duplicates: whether the journal contains all inputs, so that duplicates are known.
            filtered: whether to leave out faces below the run's --min-face and --min-confidence.
        """
        self.knows_duplicates = knows_duplicates
        self.out = out
        self._journal = Journal(out, read_only=True)
        self._db = self._journal._db
        self._session = self._journal.session
        self.facts = self._journal.facts()
        self.detector = self.facts.get("detector", "")
        self.model = self.facts.get("model", "")
        self.precision = self.facts.get("precision", "")
        self.expressions = tuple(self.facts["labels"].split()) if "labels" in self.facts else LABELS
        self.inputs: tuple[str, ...] = tuple(json.loads(self._journal.get("inputs") or "[]"))
        self._min_face_px, self._min_confidence = json.loads((filtered and self._journal.get("filter")) or "[0, 0]")

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    def images(self) -> Iterator[LabeledImage]:
        """Labeled images of the last session, by name and frame. Raises: DamagedJournal."""
        cursor = self._db.execute(
            f"SELECT {_ITEM}, {_FACE} FROM items i LEFT JOIN faces f ON f.item=i.id WHERE {_IMAGES} "  # noqa: S608
            "ORDER BY i.name, i.frame, f.face",
            (self._session,),
        )
        current: tuple[Any, ...] | None = None
        faces: list[LabeledFace] = []
        for row in cursor:
            if current is not None and row[0] != current[0]:
                yield self._image(current, faces)
                faces = []
            current = row
            if row[_ITEM_COLUMNS] is not None:
                faces.append(self._face(row))
        if current is not None:
            yield self._image(current, faces)

    def image(self, name: str, frame: int) -> LabeledImage | None:
        """One image by name and frame; None if it does not exist. Raises: DamagedJournal."""
        rows = self._db.execute(
            f"SELECT {_ITEM}, {_FACE} FROM items i LEFT JOIN faces f ON f.item=i.id "  # noqa: S608
            "WHERE i.name=? AND i.frame=? AND i.found=? AND i.status IS NOT NULL ORDER BY f.face",
            (name, frame, self._session),
        ).fetchall()
        if not rows:
            return None
        return self._image(rows[0], [self._face(row) for row in rows if row[_ITEM_COLUMNS] is not None])

    def thumb(self, row: int, face: int) -> bytes | None:
        """JPEG thumbnail of a face, or None if there is none. Raises: DamagedJournal."""
        sql = "SELECT jpeg, checksum FROM thumbs WHERE item=? AND face=?"
        found = self._db.execute(sql, (row, face)).fetchone()
        if found is None:
            return None
        jpeg = bytes(found[0])
        if checksum(jpeg) != found[1]:
            raise DamagedJournal(self.out, f"thumbnail {row}, {face}: wrong checksum")
        return jpeg

    def least_confident(self, label: str) -> Iterator[tuple[int, int, str, int, str, float, str | None]]:
        """Row, face, name, frame, label, confidence and hash of faces, least confident first; "" is any label."""
        where = "AND f.label=?" if label in self.expressions else ""
        yield from self._db.execute(
            "SELECT i.id, f.face, i.name, i.frame, f.label, f.confidence, i.sha256 FROM faces f JOIN items i "  # noqa: S608
            f"ON i.id=f.item WHERE i.found=? AND i.status='ok' {where} ORDER BY f.confidence, i.name, i.frame, f.face",
            (self._session, label) if where else (self._session,),
        )

    def counts(self) -> dict[str, int]:
        """Images per status. Raises: DamagedJournal."""
        if self._min_face_px or self._min_confidence:
            return dict(Counter(image.status for image in self.images()))
        sql = f"SELECT i.status, COUNT(*) FROM items i WHERE {_IMAGES} GROUP BY 1"  # noqa: S608
        return {str(status): int(count) for status, count in self._db.execute(sql, (self._session,))}

    def labels(self) -> dict[str, int]:
        """Faces per label. Raises: DamagedJournal."""
        if self._min_face_px or self._min_confidence:
            return dict(Counter(face.label for image in self.images() for face in image.faces))
        rows = self._db.execute(
            "SELECT f.label, COUNT(*) FROM faces f JOIN items i ON i.id=f.item "
            "WHERE i.found=? AND i.status='ok' GROUP BY 1",
            (self._session,),
        )
        return {str(label): int(count) for label, count in rows}

    def remaining(self) -> int:
        """Number of unlabeled inputs and members of the last session; an unread archive or video counts as one."""
        sql = "SELECT COUNT(*) FROM items WHERE found=? AND status IS NULL"
        return int(self._db.execute(sql, (self._session,)).fetchone()[0])

    def first_with_hash(self, sha256: str) -> str | None:
        """First name, in sorted order, of the files of the last session with this hash."""
        if not self.knows_duplicates:
            return None
        sql = "SELECT name FROM items WHERE sha256=? AND found=? AND kind != 'video' ORDER BY name LIMIT 1"
        row = self._db.execute(sql, (sha256, self._session)).fetchone()
        return None if row is None else str(row[0])

    def _image(self, row: tuple[Any, ...], faces: list[LabeledFace]) -> LabeledImage:
        *values, parent, stored = row[:_ITEM_COLUMNS]
        kept = tuple(
            face
            for face in faces
            if face.short_side_px >= self._min_face_px and face.confidence >= self._min_confidence
        )
        fields = (*values, parent is not None, kept)
        image = LabeledImage(*fields)
        result = (image.status, image.reason, image.error, image.sha256, image.width, image.height)
        if stored is not None and stored != checksum(*result, len(faces)):
            raise DamagedJournal(self.out, f"{image.name}: wrong checksum")
        status = "no_face" if faces and not kept else image.status
        return replace(image, path=os.fsdecode(image.path), status=status)

    def _face(self, row: tuple[Any, ...]) -> LabeledFace:
        *values, stored = row[_ITEM_COLUMNS:]
        number, box, landmarks, score, probabilities, label, confidence, uncertain, roll, sharpness = values
        if checksum(*values) != stored:
            raise DamagedJournal(self.out, f"face {number} of {row[1]}: wrong checksum")
        points: Array = np.frombuffer(landmarks, "<f4").reshape(5, 2)
        return LabeledFace(
            box_px=Box(*np.frombuffer(box, "<f8").tolist()),
            landmarks_px=points,
            score=score,
            probabilities=np.frombuffer(probabilities, "<f4"),
            label=label,
            confidence=confidence,
            uncertain=bool(uncertain),
            roll_degrees=roll,
            sharpness=sharpness,
            number=number,
        )


def open_view(out: Path, *, filtered: bool = True) -> View:
    """Open a view. Raises: NoJournal, if `out` contains no labeled run; DamagedJournal."""
    try:
        return View(out, filtered=filtered)
    except sqlite3.OperationalError as error:
        raise NoJournal(f"{out} is not an output folder of `mien label`: it has no journal.") from error
    except sqlite3.DatabaseError as error:
        raise DamagedJournal(out, error) from error


def earlier_facts(out: Path) -> dict[str, str]:
    """Facts of the run in `out`; empty if there is none. Raises: DamagedJournal."""
    try:
        view = open_view(out)
    except NoJournal:
        return {}
    view.close()
    return view.facts


def files_written_in(out: Path) -> set[str]:
    """Paths of the files that runs wrote into a folder; empty if it is not an output folder."""
    if not journal_path(out).exists():
        return set()
    try:
        with closing(Journal(out, read_only=True)) as journal:
            return {str(out / name) for name in journal.files()}
    except sqlite3.Error:
        return set()
