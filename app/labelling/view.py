"""What does the journal hold, in the order of outputs? Pictures by name and frame, each with its faces.

Read as a stream, so that a million pictures need no more memory than one.
"""

import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from app.labelling.journal import Journal
from app.labelling.records import STILL, FaceRecord
from data.contract import Array

_ITEM: Final = "i.id, i.name, i.frame, i.kind, i.path, i.member, i.size, i.status, i.reason, i.error, i.sha256, "
_COLUMNS: Final = _ITEM + (
    "i.width, i.height, i.time_s, i.parent, f.face, f.box, f.landmarks, f.score, f.probabilities, f.label, "
    "f.confidence, f.uncertain, f.roll, f.sharpness"
)
# Containers have rows of their own only where they, as a whole, went wrong.
_PICTURES: Final = (
    "i.found=:found AND i.status IS NOT NULL AND (i.kind NOT IN ('zip', 'tar', 'video') OR i.parent IS NOT NULL OR "
    "i.status='error')"
)


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """One labelled picture as every output sees it; `row` is its key in the journal, and in no output."""

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
    faces: tuple[FaceRecord, ...]

    @property
    def frame_or_none(self) -> int | None:
        """Frame number of a video; None for a still picture."""
        return None if self.frame == STILL else self.frame


class View:
    """A finished or interrupted run, for reading."""

    def __init__(self, out: Path) -> None:
        """Open the journal of an output folder. Raises: FileNotFoundError, where there is none."""
        self.out = out
        self.journal = Journal(out, read_only=True)
        facts = self.journal.facts()
        self.detector = facts.get("detector", "")
        self.model = facts.get("model", "")

    def close(self) -> None:
        """Close the journal."""
        self.journal.close()

    def pictures(self) -> Iterator[Picture]:
        """Every picture of the last session that is done, by name and frame."""
        cursor = self.journal.query(
            f"SELECT {_COLUMNS} FROM items i LEFT JOIN faces f ON f.item=i.id WHERE "  # noqa: S608
            f"{_PICTURES.replace(':found', '?')} ORDER BY i.name, i.frame, f.face",
            (self.journal.session,),
        )
        current: tuple[Any, ...] | None = None
        faces: list[FaceRecord] = []
        for row in cursor:
            if current is not None and row[0] != current[0]:
                yield _picture(current, faces)
                faces = []
            current = row
            if row[15] is not None:
                faces.append(_face(row[16:]))
        if current is not None:
            yield _picture(current, faces)

    def picture(self, name: str, frame: int) -> Picture | None:
        """One picture by its name and frame; None where it is not there."""
        rows = self.journal.query(
            f"SELECT {_COLUMNS} FROM items i LEFT JOIN faces f ON f.item=i.id "  # noqa: S608
            "WHERE i.name=? AND i.frame=? AND i.found=? AND i.status IS NOT NULL ORDER BY f.face",
            (name, frame, self.journal.session),
        ).fetchall()
        return _picture(rows[0], [_face(row[16:]) for row in rows if row[15] is not None]) if rows else None

    def thumb(self, row: int, face: int) -> bytes | None:
        """The JPEG thumbnail of a face, or None where none was kept."""
        found = self.journal.query("SELECT jpeg FROM thumbs WHERE item=? AND face=?", (row, face)).fetchone()
        return None if found is None else bytes(found[0])

    def counts(self) -> dict[str, int]:
        """Pictures per status."""
        rows = self.journal.query(
            f"SELECT i.status, COUNT(*) FROM items i WHERE {_PICTURES.replace(':found', '?')} GROUP BY 1",  # noqa: S608
            (self.journal.session,),
        )
        return {str(status): int(count) for status, count in rows}

    def labels(self) -> dict[str, int]:
        """Faces per label."""
        rows = self.journal.query(
            "SELECT f.label, COUNT(*) FROM faces f JOIN items i ON i.id=f.item "
            "WHERE i.found=? AND i.status='ok' GROUP BY 1",
            (self.journal.session,),
        )
        return {str(label): int(count) for label, count in rows}

    def is_complete(self) -> bool:
        """Whether nothing that the last session met is left to do."""
        row = self.journal.query(
            "SELECT 1 FROM items WHERE found=? AND status IS NULL LIMIT 1", (self.journal.session,)
        ).fetchone()
        return row is None


def open_view(out: Path) -> View:
    """Open a view. Raises: FileNotFoundError, where `out` holds no labelled run."""
    try:
        return View(out)
    except sqlite3.OperationalError as error:
        raise FileNotFoundError(f"{out} holds no journal of `mien label`") from error


def _picture(row: tuple[Any, ...], faces: list[FaceRecord]) -> Picture:
    (key, name, frame, kind, path, member, size, status, reason, error, sha256, width, height, time_s, parent) = row[
        :15
    ]
    return Picture(
        row=key,
        name=name,
        frame=frame,
        kind=kind,
        path=os.fsdecode(path),
        member=member,
        size=size,
        status=status,
        reason=reason,
        error=error,
        sha256=sha256,
        width=width,
        height=height,
        time_s=time_s,
        is_child=parent is not None,
        faces=tuple(faces),
    )


def _face(row: tuple[Any, ...]) -> FaceRecord:
    box, landmarks, score, probabilities, label, confidence, uncertain, roll, sharpness = row
    x, y, width, height = np.frombuffer(box, "<f8").tolist()
    points: Array = np.frombuffer(landmarks, "<f4").reshape(5, 2)
    return FaceRecord(
        box_px=(x, y, width, height),
        landmarks_px=points,
        score=score,
        probabilities=np.frombuffer(probabilities, "<f4"),
        label=label,
        confidence=confidence,
        uncertain=bool(uncertain),
        roll_degrees=roll,
        sharpness=sharpness,
    )
