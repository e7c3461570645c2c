"""Journal of an output folder: its inputs and their results, in a SQLite file that survives a kill.

An input is one row: name, size, time, and its result as JSON, which is missing until it is labeled. The labeled frames
of a video are rows, too. Only the process of the run writes; outputs and the review stream the results by name and
frame, so that memory does not depend on their number.

Decisions of the review are in `corrections.jsonl`; predictions are never changed. A decision belongs to a face of a
photo, whatever its name and number: it applies to the same bytes, and to the face whose box overlaps the box of the
decision by at least `MIN_IOU`. The last line for a face is used.
"""

import contextlib
import dataclasses
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from mien.app.errors import LabelingError
from mien.app.inference.detector import iou
from mien.app.inference.records import Box, Face
from mien.app.labeling.copies import REPORT, damaged, foreign, image_paths, remove_images
from mien.app.labeling.inputs import (
    CORRECTIONS,
    JOURNAL,
    STATE_DIR,
    STILL,
    Failure,
    Item,
    Status,
    connect,
    counted,
    is_url,
    is_video,
)
from mien.data.contract import LABELS

_VERSION: Final = 6  # It is `PRAGMA user_version`, and changes with the tables.
_PAGE: Final = 512
# The frame of a photo or of a video itself is -1.
_SCHEMA: Final = f"""
PRAGMA user_version={_VERSION};
CREATE TABLE IF NOT EXISTS settings(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS items(
  name TEXT NOT NULL, frame INTEGER NOT NULL, path BLOB NOT NULL, size INTEGER NOT NULL, mtime TEXT NOT NULL,
  result TEXT, PRIMARY KEY(name, frame)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS thumbs(
  name TEXT NOT NULL, frame INTEGER NOT NULL, face INTEGER NOT NULL, jpeg BLOB NOT NULL,
  PRIMARY KEY(name, frame, face)) WITHOUT ROWID;
"""
_STATES: Final = """
SELECT name, path, size, mtime, json_extract(result, '$.status'), json_extract(result, '$.reason') FROM items
WHERE frame=?
"""
_IMAGES: Final = """
SELECT frame, json_array_length(result, '$.faces'),
  (SELECT COUNT(*) FROM thumbs WHERE thumbs.name=items.name AND thumbs.frame=items.frame)
FROM items WHERE name=?
"""
_FACES: Final = TypeAdapter(tuple[Face, ...])
_UNSTORED: Final = ("crop_rgb", "thumb", "crop", "explanation")

MIN_IOU: Final = 0.5  # A decision applies to a face whose box overlaps its box at least so much.
NOT_A_FACE: Final = "not_a_face"
UNDONE: Final = "undone"


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """Result of a photo, of a frame of a video, or of a video as a whole.

    Attributes:
        name, path: of the file.
        frame: number of a frame in its video; None for all others.
        time_s: time of the frame; until_s: time until which it stands for the video: the next labeled frame, a cut, or
            the end; scene: number of cuts before it.
        width, height: of the upright image, pixels.
        notes: codes of `NOTES`.
        timings_ms: per stage; not stored.
    """

    name: str
    path: bytes
    status: Status = "ok"
    frame: int | None = None
    time_s: float | None = None
    until_s: float | None = None
    scene: int = 0
    reason: str | None = None
    error: str | None = None
    sha256: str | None = None
    width: int | None = None
    height: int | None = None
    notes: tuple[str, ...] = ()
    faces: tuple[Face, ...] = ()
    timings_ms: dict[str, float] = field(default_factory=dict)

    def failed(self, failure: Failure) -> "Result":
        """The result of an image that cannot be labeled."""
        return dataclasses.replace(self, status=failure.status, reason=failure.reason, error=failure.message)

    @property
    def is_image(self) -> bool:
        """Return whether it is listed in outputs: a photo, a frame, or a video that failed."""
        return self.frame is not None or self.reason is not None or not is_video(self.name)

    @property
    def place(self) -> tuple[str, int]:
        """Its row in the journal: the name of its file, and the number of its frame."""
        return self.name, STILL if self.frame is None else self.frame

    @property
    def key(self) -> tuple[str, int]:
        """Identity of the image, whatever its name: the bytes of its file, and the number of its frame."""
        return self.sha256 or "", self.place[1]

    def face(self, number: int) -> Face:
        """One of its faces. Raises: LabelingError, if it does not exist."""
        if not 0 <= number < len(self.faces):
            raise LabelingError(f"{self.name} has {counted(len(self.faces), 'face')}; number {number} does not exist")
        return self.faces[number]

    def to_json(self) -> str:
        """Everything but its name, path, frame and pictures; numbers are not rounded."""
        values = {name: value for name in _STORED if (value := getattr(self, name))}
        return json.dumps(values, ensure_ascii=False, default=_fields)

    @classmethod
    def from_json(cls, name: str, frame: int, path: bytes, text: str) -> "Result":
        """The result in a row of the journal."""
        values = json.loads(text)
        values |= {"faces": _FACES.validate_python(values.get("faces", ())), "notes": tuple(values.get("notes", ()))}
        if frame != STILL:
            values.setdefault("time_s", 0.0)
        return cls(name, path, frame=None if frame == STILL else frame, **values)


_STORED: Final = [
    item.name for item in dataclasses.fields(Result) if item.name not in ("name", "path", "frame", "timings_ms")
]


def _fields(record: Any) -> dict[str, Any]:
    """Fields of a face, of its box, or of its landmarks."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__ if name not in _UNSTORED}


@dataclass(frozen=True, slots=True)
class Correction:
    """One decision of the review.

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

    def iou(self, box: Box) -> float:
        """Overlap of its box with that of a face."""
        return iou(Box(*self.box), box)


class Corrections:
    """The current decisions of an output folder; `refresh` reads those that any process has added since."""

    def __init__(self, out: Path) -> None:
        """Read the file. Raises: LabelingError, naming an invalid line."""
        self.path, self._read = out / CORRECTIONS, (0, 0)
        self._by_image: dict[tuple[str, int], list[Correction]] = {}
        self.refresh()

    def __iter__(self) -> Iterator[Correction]:
        return (correction for corrections in list(self._by_image.values()) for correction in corrections)

    def refresh(self) -> None:
        """Read the file if it has changed. Raises: LabelingError, naming an invalid line.

        The last line may lack its line feed, if an editor removed it. If it is not a JSON object, the process was
        killed while it wrote the line, and the decision was never confirmed.
        """
        status = self.path.stat() if self.path.exists() else None
        version = (status.st_size, status.st_mtime_ns) if status else (0, 0)
        if version == self._read:
            return
        by_image: dict[tuple[str, int], list[Correction]] = {}
        *lines, last = self.path.read_bytes().split(b"\n") if status else [b""]
        for number, line in enumerate([*lines, last] if is_whole(last) else lines, start=1):
            if not line.strip():
                continue
            try:
                correction = Correction(**json.loads(line))
            except (ValueError, TypeError) as error:
                where = f"{self.path} line {number}"
                raise LabelingError(f"{where} cannot be used ({error}): repair or remove it.") from error
            # A decision replaces the earlier one about the same face.
            others = by_image.setdefault((correction.file_sha256, correction.frame), [])
            others[:] = [other for other in others if other.iou(Box(*correction.box)) < MIN_IOU]
            others += [] if correction.label == UNDONE else [correction]
        self._by_image, self._read = by_image, version

    def of(self, image: Result) -> dict[int, Correction]:
        """Decisions about the faces of an image, by number; each is used once, the largest overlap first."""
        corrections = self._by_image.get(image.key, [])
        pairs = [(correction.iou(face.box), correction, face) for correction in corrections for face in image.faces]
        decided: dict[int, Correction] = {}
        for overlap, correction, face in sorted(pairs, key=lambda pair: -pair[0]):
            if overlap >= MIN_IOU and face.index not in decided and correction not in decided.values():
                decided[face.index] = correction
        return decided


def is_whole(line: bytes) -> bool:
    """Return whether a line of the corrections is complete."""
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


class Journal:
    """The journal of a run; `open_journal` opens one for reading."""

    def __init__(self, out: Path, *, write: bool = True) -> None:
        """Open it, and create it to `write`. Raises: sqlite3.Error, LabelingError."""
        self.out = out
        self._db = connect(out / STATE_DIR / JOURNAL, write=write)
        try:
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version != _VERSION and self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
                raise LabelingError(f"{out} was labeled by another version of Mien. Choose another --out.")
            if write:
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=NORMAL")  # A power failure loses at most the last images.
                self._db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")  # Readers find all tables, or none.
            self.refresh()
            self.corrections = Corrections(out)
        except (sqlite3.Error, LabelingError):  # An unclosed connection keeps the folder busy.
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; the last one merges the write-ahead log into the file."""
        self._db.close()

    # Settings

    def refresh(self) -> None:
        """Read the settings of the last run, if one has begun since the journal was opened."""
        self._counts: dict[str, Any] | None = None
        self.settings: dict[str, Any] = {
            key: json.loads(value) for key, value in self._db.execute("SELECT key, value FROM settings")
        }
        # Everything that the results depend on; it is empty before the first run.
        self.facts: dict[str, str] = self.settings.get("facts", {})
        self.pictures = frozenset[str](self.settings.get("pictures", ()))
        self.detector, self.model = self.facts.get("detector", ""), self.facts.get("model", "")
        self.precision = self.facts.get("precision", "")
        self.expressions = tuple(self.facts.get("labels", " ".join(LABELS)).split())

    def put(self, **settings: Any) -> None:
        """Store values about the run."""
        rows = [(key, json.dumps(value)) for key, value in settings.items()]
        self._db.executemany("INSERT OR REPLACE INTO settings VALUES(?, ?)", rows)
        self.refresh()

    # Inputs

    def sync(self, found: Mapping[str, Item], *, replace: bool = False) -> int:
        """Make the journal list what was found: add new inputs, reset changed ones, and forget those that are gone.

        An input is done if its size and time are the same and every requested picture exists. Errors of the last run
        are tried again, too, unless it is not finished.

        Args:
            replace: whether all inputs may be gone.
        Returns: number of inputs that are gone. Raises: LabelingError, OSError.
        """
        total, done = self.progress()
        # Inputs in a folder that cannot be read are kept.
        unreadable = tuple(f"{item.name}/" for item in found.values() if item.is_folder)
        known, gone = set[str](), dict[str, bytes]()
        changed, replaced = list[Item](), list[str]()
        for name, path, size, mtime, status, reason in self._db.execute(_STATES, (STILL,)):
            known.add(name)
            item = found.get(name)
            if item is None:
                if not name.startswith(unreadable):
                    gone[name] = path
                continue
            is_same = (path, size, mtime) == (item.path, item.size, item.mtime) and item.failure is None
            is_retried = status is None or reason == "live_photo" or (status == "error" and done == total)
            if is_same and not is_retried and (status in ("error", "skipped") or self._has_pictures(name)):
                continue
            changed.append(item)
            if item.failure is not None or (item.is_video and not is_same):  # The frames of the video may be others.
                replaced.append(name)
        if gone and not replace:
            self._check_gone(found, gone, len(known))
        new = [item for item in found.values() if item.name not in known]
        for item in new:
            self._check_free(item)
        reset = [*changed, *new]
        failures = (item.failure and Result(item.name, item.path).failed(item.failure).to_json() for item in reset)
        rows = (
            (item.name, STILL, item.path, item.size, item.mtime, failure)
            for item, failure in zip(reset, failures, strict=True)
        )
        with self._transaction():
            for name in (*gone, *replaced):
                remove_images(self.out, name, self.pictures)
                for table in ("items", "thumbs"):
                    self._db.execute(f"DELETE FROM {table} WHERE name=?", (name,))  # noqa: S608
            self._db.executemany("INSERT OR REPLACE INTO items VALUES(?, ?, ?, ?, ?, ?)", rows)
        return len(gone)

    def _has_pictures(self, name: str) -> bool:
        """Return whether every requested picture of an input exists."""
        for frame, count, thumbs in self._db.execute(_IMAGES, (name,)) if self.pictures else ():
            faces, is_whole_video = count or 0, frame == STILL and is_video(name)
            paths = image_paths(name, None if frame == STILL else frame, faces, self.pictures)
            if not is_whole_video and (
                (REPORT in self.pictures and thumbs < faces)
                or not all(os.path.lexists(self.out / path) for path in paths)
            ):
                return False
        return True

    def _check_free(self, item: Item) -> None:
        """Check that no other program has written a file in the place of a picture. Raises: LabelingError."""
        for picture in image_paths(item.name, 0 if item.is_video else None, 1, self.pictures):
            path = self.out / (os.path.dirname(picture) if item.is_video else picture)
            if item.failure is None and os.path.lexists(path):
                raise foreign(path)

    def _check_gone(self, found: Mapping[str, Item], gone: Mapping[str, bytes], known: int) -> None:
        """Reject inputs without those of the last run, or with a folder that became empty. Raises: LabelingError."""
        if len(gone) == known:
            raise LabelingError(
                f"{self.out} has the results of {counted(len(gone), 'file')}, none of which was found: "
                f"{next(iter(gone))}{', ...' if len(gone) > 1 else ''}. If a disk is not mounted, mount it. Add "
                "--replace to remove these results, or choose another --out."
            )
        filled = {os.path.dirname(item.path) for item in found.values()}
        for folder in tuple(filled):
            while (folder := os.path.dirname(folder)) not in filled:
                filled.add(folder)
        for folder in sorted({os.path.dirname(path) for path in gone.values() if not is_url(path)} - filled):
            if os.path.isdir(folder):
                raise LabelingError(
                    f"No files found in {os.fsdecode(folder)}, which had files in the last run. If it is on an "
                    "external disk, check that it is mounted. If it is empty on purpose, add --replace to remove its "
                    "results."
                )

    def progress(self) -> tuple[int, int]:
        """Numbers of photos and videos, and of those that are done."""
        sql = "SELECT COUNT(*), COUNT(result) FROM items WHERE frame=?"
        total, done = self._db.execute(sql, (STILL,)).fetchone()
        return total, done

    def todo(self) -> Iterator[Item]:
        """Inputs without a result, by name."""
        sql = (
            "SELECT name, path, size, mtime FROM items WHERE frame=? AND result IS NULL AND name > ? "
            "ORDER BY name LIMIT ?"
        )
        last = ""
        while rows := self._db.execute(sql, (STILL, last, _PAGE)).fetchall():
            yield from (Item(*row) for row in rows)
            last = rows[-1][0]

    def save(self, results: Sequence[Result]) -> None:
        """Store results in one transaction; of failed photos, earlier pictures are removed."""
        self._counts = None
        rows = [(*result.place, result.path, result.to_json()) for result in results]
        thumbs = [(*result.place, face.index, face.thumb) for result in results for face in result.faces if face.thumb]
        with self._transaction():
            self._db.executemany("DELETE FROM thumbs WHERE name=? AND frame=?", [row[:2] for row in rows])
            self._db.executemany(
                "INSERT INTO items VALUES(?, ?, ?, 0, '', ?) "
                "ON CONFLICT(name, frame) DO UPDATE SET result=excluded.result",
                rows,
            )
            self._db.executemany("INSERT INTO thumbs VALUES(?, ?, ?, ?)", thumbs)
            for result in results:
                if result.reason is not None and not is_video(result.name):
                    remove_images(self.out, result.name, self.pictures)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit what the block writes, or nothing if it fails or is killed."""
        self._db.execute("BEGIN IMMEDIATE")
        with self._db:
            yield

    # Results

    def _results(self, where: str = "", *values: str | int) -> Iterator[Result]:
        sql = f"SELECT name, frame, path, result FROM items WHERE result IS NOT NULL {where} ORDER BY name, frame"  # noqa: S608
        return (Result.from_json(*row) for row in self._db.execute(sql, values))

    def results(self) -> Iterator[Result]:
        """Results of photos and of frames, by name and frame; of a video itself only if it failed."""
        return (result for result in self._results() if result.is_image)

    def frames(self, name: str) -> Iterator[Result]:
        """Results of the frames of a video."""
        return self._results("AND name=? AND frame>=0", name)

    def result(self, name: str, frame: int | None) -> Result | None:
        """The result of a photo or a frame; None if there is none."""
        return next(self._results("AND name=? AND frame=?", *Result(name, b"", frame=frame).place), None)

    def videos(self) -> list[str]:
        """Names of the videos with labeled frames."""
        return [name for (name,) in self._db.execute("SELECT DISTINCT name FROM items WHERE frame>=0 ORDER BY name")]

    def thumb(self, image: Result, face: int) -> bytes:
        """JPEG thumbnail of a face; empty if there is none."""
        sql = "SELECT jpeg FROM thumbs WHERE name=? AND frame=? AND face=?"
        row = self._db.execute(sql, (*image.place, face)).fetchone()
        return row[0] if row else b""

    def least_confident(self, label: str = "", reason: str = "") -> Iterator[tuple[Result, Face]]:
        """Faces with a label of the model and a reason for doubt ("" for any), least confident first."""
        sql = (
            "SELECT i.name, i.frame, f.key FROM items i, json_each(i.result, '$.faces') f "
            "WHERE i.result IS NOT NULL AND :label IN ('', json_extract(f.value, '$.label')) "
            "AND (:reason='' OR EXISTS(SELECT 1 FROM json_each(f.value, '$.reasons') WHERE value=:reason)) "
            "ORDER BY json_extract(f.value, '$.confidence'), i.name, i.frame, f.key"
        )
        label = label if label in self.expressions else ""
        for name, frame, face in self._db.execute(sql, {"label": label, "reason": reason}):
            if result := self.result(name, None if frame == STILL else frame):
                yield result, result.faces[face]

    def count(self) -> dict[str, Any]:
        """Numbers of images, faces and decisions, which all outputs and messages have.

        faces: by the model; decided: by the review where it has a decision, else by the model.
        """
        if self._counts is not None:
            return self._counts
        tables = ("images", "skipped", "errors", "unsupported", "faces", "decided", "reasons", "notes", "confidences")
        counts: dict[str, Any] = {name: Counter[str]() for name in tables}
        counts |= dict.fromkeys(("photos", "frames", "uncertain", "reviewed", "corrected"), 0)
        counts["videos"] = len(self.videos())
        for result in self.results():
            counts["images"][result.status] += 1
            counts["frames"] += result.frame is not None
            counts["photos"] += result.status != "skipped" and not is_video(result.name)
            counts["notes"].update(result.notes)
            if result.reason is not None:
                counts["skipped" if result.status == "skipped" else "errors"][result.reason] += 1
            if result.reason == "unsupported":
                counts["unsupported"][result.error or ""] += 1
            decided = self.corrections.of(result)
            counts["reviewed"] += len(decided)
            for face in result.faces:
                label = decided[face.index].label if face.index in decided else face.label
                counts["faces"][face.label] += 1
                counts["decided"][label] += 1
                counts["corrected"] += label != face.label
                counts["uncertain"] += face.uncertain
                counts["reasons"].update(face.reasons)
                counts["confidences"][str(min(9, int(10 * face.confidence)))] += 1
        self._counts = counts
        return counts


def open_journal(out: Path) -> Journal:
    """Open the journal of a run for reading. Raises: LabelingError, also if `out` contains no labeled run."""
    try:
        return Journal(out, write=False)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR and (out / STATE_DIR / JOURNAL).exists():
            raise LabelingError(f"journal in {out / STATE_DIR}: {error}. Check that you may read it.") from error
        raise LabelingError(f"{out} has no journal of `mien label`.") from error
    except sqlite3.DatabaseError as error:
        raise damaged(out, error) from error
