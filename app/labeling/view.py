"""Read-only view of a run for outputs: results by name and frame, each with its faces.

Rows are streamed, so memory does not depend on the number of images.
"""

import json
import os
import sqlite3
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path, PurePath
from typing import Any, Final
from urllib.parse import quote

import numpy as np

from mien.app.inference.records import Box, Face
from mien.app.labeling.files import STATE_DIR, DamagedJournal, LabelingError, OutputRefused
from mien.app.labeling.reading import CONTAINERS
from mien.app.labeling.records import Input, Result, Status
from mien.data.contract import LABELS, LANDMARKS, by_label

JOURNAL_NAME: Final = "journal.sqlite3"
CONTAINER_KINDS: Final = f"({', '.join(map(repr, CONTAINERS))})"  # for `kind IN`
# An image that is not labeled, or lacks a copy or crop of those to write, the bit mask `:images`.
UNDONE: Final = "(status IS NULL OR status IN ('ok', 'no_face') AND products & :images != :images)"
_BOX: Final = struct.Struct("<4d")
_POINTS: Final = struct.Struct("<2f")
_COLUMNS: Final = (
    "i.id, i.name, i.kind, i.path, i.size, i.parent, i.member, i.frame, i.time_s, "
    "i.status, i.reason, i.error, i.sha256, i.width, i.height, "
    "f.face, f.box, f.landmarks, f.score, f.probabilities, f.label, f.confidence, f.uncertain, f.roll, f.sharpness, "
    "f.reasons"
)
_FACE: Final = 15  # first column of a face
# A container has its own row only if it failed as a whole.
_IMAGES: Final = (
    f"i.found=:session AND i.status IS NOT NULL AND (i.kind NOT IN {CONTAINER_KINDS} OR i.parent IS NOT NULL OR "
    "i.status IN ('error', 'skipped'))"
)


class NoJournal(LabelingError):
    """A folder that was not written by `mien label`."""


class View:
    """A finished or interrupted run, for reading."""

    def __init__(self, out: Path, *, filtered: bool = True, writable: bool = False) -> None:
        """Open the journal of an output folder. Raises: sqlite3.OperationalError, if there is none.

        Args:
            out: the output folder.
            filtered: whether to leave out faces below the run's --min-face and --min-confidence.
            writable: whether the journal may be created and changed.
        """
        self.out, self._filtered = out, filtered
        self.path = out / STATE_DIR / JOURNAL_NAME
        mode = "rwc" if writable else "ro"
        if not writable and not os.access(self.path.parent, os.W_OK) and not os.path.exists(f"{self.path}-wal"):
            mode = "ro&immutable=1"  # otherwise, SQLite creates files beside the journal to read it
        address = f"{sqlite_uri(self.path.absolute())}?mode={mode}"
        # The review page and the workers read in several threads. Since Python 3.12, two threads that execute the same
        # cached statement at once can get each other's rows.
        self._db = sqlite3.connect(
            address, uri=True, isolation_level=None, timeout=30.0, check_same_thread=False, cached_statements=0
        )
        self._db.create_function("short_side", 1, lambda box: min(_BOX.unpack(box)[2:]), deterministic=True)
        try:
            self._prepare()
            self.refresh()
        except sqlite3.Error:  # such as a full disk; an unclosed connection would keep the folder busy
            self._db.close()
            raise

    def _prepare(self) -> None:
        """Create missing tables, in a journal for writing."""

    def refresh(self) -> None:
        """Show the last session, if a run has begun one since the view was opened."""
        self.session = int(self.get("session") or 0)
        # everything that the results depend on; empty before the first run
        self.facts: dict[str, str] = json.loads(self.get("facts") or "{}")
        self.detector, self.model = self.facts.get("detector", ""), self.facts.get("model", "")
        self.precision = self.facts.get("precision", "")
        self.expressions = tuple(self.facts.get("labels", " ".join(LABELS)).split())  # in the order of the model

    def close(self) -> None:
        """Close the connection; the last one merges the write-ahead log into the file."""
        self._db.close()

    def get(self, key: str) -> str | None:
        """A value about the run, or None."""
        row = self._db.execute("SELECT value FROM meta WHERE key=?", (key,)).fetchone()
        return None if row is None else str(row[0])

    @property
    def spreadsheet_safe(self) -> bool:
        """Whether tables are protected from texts that a spreadsheet would run."""
        return self.get("spreadsheet_safe") == "True"

    @property
    def _limits(self) -> tuple[float, float]:
        min_face_px, min_confidence = json.loads((self._filtered and self.get("filter")) or "[0, 0]")
        return min_face_px, min_confidence

    def shown(self, faces: Iterable[Face]) -> tuple[Face, ...]:
        """The faces with the run's --min-face and --min-confidence."""
        min_face_px, min_confidence = self._limits
        large = (face for face in faces if face.box.short_side_px >= min_face_px)
        return tuple(face for face in large if face.confidence >= min_confidence)

    @property
    def _shown(self) -> str:
        """Condition for faces with the run's --min-face and --min-confidence."""
        min_face_px, min_confidence = self._limits
        if not (min_face_px or min_confidence):
            return "1"
        return f"f.confidence >= {float(min_confidence)} AND short_side(f.box) >= {float(min_face_px)}"

    def images(self, *, after: tuple[str, int] | None = None) -> Iterator[Result]:
        """Results of the last session, by name and frame, from the first one after a name and a frame."""
        if after is None:
            return self._results(_IMAGES)
        return self._results(f"{_IMAGES} AND (i.name, i.frame) > (:name, :frame)", name=after[0], frame=after[1])

    def frames(self, name: str) -> Iterator[Result]:
        """Results of the frames of a video, in order, with all faces, so that people keep their numbers."""
        where = "i.name=:name AND i.frame>=0 AND i.found=:session AND i.status IS NOT NULL"
        return self._results(where, filtered=False, name=name)

    def videos(self) -> list[str]:
        """Names of the videos with labeled frames."""
        sql = (
            "SELECT DISTINCT name FROM items WHERE kind='video' AND frame>=0 AND found=? AND status IS NOT NULL "
            "ORDER BY name"
        )
        return [name for (name,) in self._db.execute(sql, (self.session,))]

    def image_of(self, sha256: str, frame: int) -> Result | None:
        """The first image, by name, with these bytes; None if there is none."""
        where = "i.sha256=:sha256 AND i.frame=:frame AND i.found=:session AND i.status='ok'"
        return next(self._results(where, sha256=sha256, frame=frame), None)

    def image(self, name: str, frame: int) -> Result | None:
        """One image by name and frame; None if it does not exist."""
        where = "i.name=:name AND i.frame=:frame AND i.found=:session AND i.status IS NOT NULL"
        return next(self._results(where, name=name, frame=frame), None)

    def image_in(self, row: int) -> Result | None:
        """One image by its key; None if the last session did not find it."""
        return next(self._results("i.id=:row AND i.found=:session", row=row), None)

    def failures(self) -> Iterator[Result]:
        """Images with an error, and skipped files, by name and frame."""
        return self._results(f"{_IMAGES} AND i.reason IS NOT NULL")

    def _results(
        self, where: str, *, order: str = "i.name, i.frame, f.face", filtered: bool = True, **values: Any
    ) -> Iterator[Result]:
        cursor = self._db.execute(
            f"SELECT {_COLUMNS} FROM items i LEFT JOIN faces f ON f.item=i.id AND "  # noqa: S608  # constants
            f"{self._shown if filtered else 1} WHERE {where} ORDER BY {order}",
            {"session": self.session} | values,
        )
        for _, group in groupby(cursor, key=itemgetter(0)):
            rows = list(group)
            row, name, kind, path, size, parent, member, frame, time_s, *result = rows[0][:_FACE]
            faces = tuple(_face(row[_FACE:]) for row in rows if row[_FACE] is not None)
            image = Input(name, kind, path, size, row=row, parent=parent, member=member, frame=frame, time_s=time_s)
            status, reason, error, sha256, width, height = result
            shown: Status = "no_face" if status == "ok" and not faces else status
            yield Result(image, shown, reason, error, sha256, width, height, faces)

    def thumb(self, row: int, face: int) -> bytes | None:
        """JPEG thumbnail of a face, or None if there is none."""
        thumbs = self._db.execute("SELECT jpeg FROM thumbs WHERE item=? AND face=?", (row, face)).fetchone()
        return None if thumbs is None else bytes(thumbs[0])

    def least_confident(self, label: str = "", reason: str = "", *, limit: int = -1) -> Iterator[tuple[Result, Face]]:
        """Faces with a label of the model and a reason for doubt ("" for any), least confident first.

        The image of a face may lack its other faces.
        """
        where = (
            "i.found=:session AND i.status='ok' AND f.face IS NOT NULL AND :label IN ('', f.label) "
            "AND (:reason='' OR instr(' ' || f.reasons || ' ', ' ' || :reason || ' '))"
        )
        known = label if label in self.expressions else ""
        order = "f.confidence, i.name, i.frame, f.face LIMIT :limit"
        images = self._results(where, order=order, label=known, reason=reason, limit=limit)
        return ((image, face) for image in images for face in image.faces)

    def counts(self) -> Counter[str]:
        """Images per status."""
        sql = (
            "SELECT IIF(i.status='ok' AND NOT EXISTS(SELECT 1 FROM faces f WHERE f.item=i.id AND "  # noqa: S608
            f"{self._shown}), 'no_face', i.status), COUNT(*) FROM items i WHERE {_IMAGES} GROUP BY 1"
        )
        return Counter(dict(self._db.execute(sql, {"session": self.session})))

    def _count(self, value: str) -> Counter[Any]:
        """Faces per value of an SQL expression."""
        sql = (
            f"SELECT {value}, COUNT(*) FROM faces f JOIN items i ON i.id=f.item "  # noqa: S608
            f"WHERE i.found=? AND i.status='ok' AND {self._shown} GROUP BY 1"
        )
        return Counter(dict(self._db.execute(sql, (self.session,))))

    def labels(self) -> Counter[str]:
        """Faces per label."""
        return self._count("f.label")

    def uncertain(self) -> int:
        """Number of uncertain faces."""
        return self._count("f.uncertain")[1]

    def confidences(self) -> Counter[int]:
        """Faces per tenth of confidence, 0 to 9."""
        return self._count("MIN(9, CAST(10 * f.confidence AS INTEGER))")

    def reasons(self) -> Counter[str]:
        """Faces per reason for doubt; a face can have several."""
        counts = Counter[str]()
        for reasons, count in self._count("f.reasons").items():
            counts.update(dict.fromkeys(reasons.split(), count))
        return counts

    def is_labeled(self, item: Input) -> bool:
        """Whether an input of a new scan is labeled and unchanged."""
        sql = "SELECT 1 FROM items WHERE name=? AND frame=? AND path=? AND signature=? AND status IS NOT NULL"
        return self._db.execute(sql, (item.name, item.frame, item.path, item.signature)).fetchone() is not None

    def remaining(self, images: int = 0) -> int:
        """Number of unlabeled inputs and members of the last session; an unread archive or video counts as one.

        images: a bit mask; those without a copy or crop that is to be written count, too.
        """
        sql = (
            f"SELECT COUNT(*) FROM items WHERE found=:session AND {UNDONE} AND "  # noqa: S608
            f"(status IS NULL OR kind NOT IN {CONTAINER_KINDS} OR parent IS NOT NULL)"
        )
        return int(self._db.execute(sql, {"session": self.session, "images": images}).fetchone()[0])

    def has_images(self, images: int) -> bool:
        """Whether copies or crops, a bit mask, were written for any input."""
        return self._db.execute("SELECT 1 FROM items WHERE products & ? LIMIT 1", (images,)).fetchone() is not None

    def first_with_hash(self, sha256: str) -> str | None:
        """First name, in sorted order, of the files of the last session with this hash."""
        sql = (
            "SELECT name FROM items WHERE sha256=? AND found=? AND frame=-1 AND kind NOT IN ('video', 'pages') "
            "ORDER BY name LIMIT 1"
        )
        row = self._db.execute(sql, (sha256, self.session)).fetchone()
        return None if row is None else str(row[0])


def sqlite_uri(path: PurePath) -> str:
    """A full path as a URI for SQLite: `file:///home/a`, `file:///C:/a`, or, on a share, `file:////nas/share/a`.

    `Path.as_uri` has the server of a share as the authority, `file://nas/share/a`, which SQLite refuses.
    """
    posix = path.as_posix()
    return f"file://{'' if posix.startswith('/') else '/'}{quote(os.fsencode(posix))}"


def _face(row: tuple[Any, ...]) -> Face:
    number, box, landmarks, score, probabilities, label, confidence, uncertain, roll, sharpness, reasons = row
    return Face(
        box=Box(*_BOX.unpack(box)),
        landmarks=dict(zip(LANDMARKS, _POINTS.iter_unpack(landmarks), strict=True)),
        detection_score=score,
        probabilities=by_label(np.frombuffer(probabilities, "<f4")),
        label=label,
        confidence=confidence,
        uncertain=bool(uncertain),
        roll_degrees=roll,
        reasons=tuple(reasons.split()),
        index=number,
        sharpness=sharpness,
    )


def open_view(out: Path, *, filtered: bool = True) -> View:
    """Open a view. Raises: NoJournal, if `out` contains no labeled run; OutputRefused; DamagedJournal."""
    try:
        return View(out, filtered=filtered)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR and (out / STATE_DIR / JOURNAL_NAME).exists():
            raise OutputRefused(f"journal in {out / STATE_DIR}: {error}. Check that you may read it.") from error
        raise NoJournal(f"{out} has no journal of `mien label`.") from error
    except sqlite3.DatabaseError as error:
        raise DamagedJournal(out, error) from error
