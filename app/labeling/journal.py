"""Journal of an output folder: its inputs and their results, in a SQLite file that survives a kill.

An input is one row: name, size, time, and its result as JSON, which is missing until it is labeled. The labeled frames
of a video are rows, too. Only the process of the run writes; outputs and the review stream the results by name and
frame, so that memory does not depend on their number.

Decisions of the review are in `corrections.jsonl`; predictions are never changed. A decision belongs to a face of a
photo, whatever its name and number: it applies to the same bytes, and to the face whose box overlaps the box of the
decision by at least `MIN_IOU`. The last line for a face is used.
"""

import bisect
import dataclasses
import itertools
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Final

from pydantic import TypeAdapter

from mien.app.errors import InputsGone, LabelingError, NoJournal, OutputRefused
from mien.app.inference.detector import iou
from mien.app.inference.records import Box, Face
from mien.app.labeling.copies import THUMBS, damaged, foreign, image_paths, remove_frames, remove_images
from mien.app.labeling.inputs import (
    CORRECTIONS,
    JOURNAL,
    LIVE_PHOTOS,
    LIVE_VIDEO,
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
from mien.app.labeling.options import LabelOptions
from mien.data.contract import LABELS

_VERSION: Final = 5  # of the tables
_BATCH: Final = 2_000
_PAGE: Final = 512
# frame: -1 for a photo or a video itself; result: missing until it is labeled; copies: bit mask of the pictures that
# may exist in the output folder.
_SCHEMA: Final = f"""
PRAGMA user_version={_VERSION};
CREATE TABLE IF NOT EXISTS settings(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS items(
  name TEXT NOT NULL, frame INTEGER NOT NULL, path BLOB NOT NULL, size INTEGER NOT NULL, mtime TEXT NOT NULL,
  copies INTEGER NOT NULL, result TEXT, PRIMARY KEY(name, frame)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS thumbs(
  name TEXT NOT NULL, frame INTEGER NOT NULL, face INTEGER NOT NULL, jpeg BLOB NOT NULL,
  PRIMARY KEY(name, frame, face)) WITHOUT ROWID;
"""
_FOUND: Final = """
CREATE TEMP TABLE found(name TEXT PRIMARY KEY, path BLOB, size INTEGER, mtime TEXT, failure TEXT, is_folder INTEGER)
"""
_FACES: Final = TypeAdapter(tuple[Face, ...])
_UNSTORED: Final = ("crop_rgb", "thumb", "crop", "explanation")

MIN_IOU: Final = 0.5  # a decision applies to a face whose box overlaps its box at least so much
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
    def key(self) -> tuple[str, int]:
        """Identity of the image, whatever its name: the bytes of its file, and the number of its frame."""
        return self.sha256 or "", STILL if self.frame is None else self.frame

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

    def refresh(self) -> None:
        """Read what was added to the file since the last call. Raises: LabelingError, naming an invalid line.

        The last line may lack its line feed, if an editor removed it. If it is not a JSON object, the process was
        killed while it wrote the line, and the decision was never confirmed.
        """
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
                    if not line.endswith(b"\n") and not is_whole(line):
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

    def of(self, image: Result) -> dict[int, Correction]:
        """Decisions about the faces of an image, by number; each is used once, the largest overlap first."""
        corrections = self._by_image.get(image.key, [])
        pairs = [(correction.overlap(face.box), correction, face) for correction in corrections for face in image.faces]
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
        """Open it, and create it to `write`. Raises: sqlite3.Error, OutputRefused."""
        self.out = out
        self._db = connect(out / STATE_DIR / JOURNAL, write=write)
        try:
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version != _VERSION and self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
                raise OutputRefused(f"{out} was labeled by another version of Mien. Choose another --out.")
            if write:
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=NORMAL")  # a power failure loses at most the last images
                self._db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")  # readers find all tables, or none
            self.refresh()
            self.corrections = Corrections(out)
        except (sqlite3.Error, LabelingError):  # such as a full disk; an unclosed connection keeps the folder busy
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; the last one merges the write-ahead log into the file."""
        self._db.close()

    # Settings

    def refresh(self) -> None:
        """Read the settings of the last run, if one has begun since the journal was opened."""
        self._counts: dict[str, Any] | None = None  # of the results so far
        self.settings: dict[str, Any] = {
            key: json.loads(value) for key, value in self._db.execute("SELECT key, value FROM settings")
        }
        # everything that the results depend on; empty before the first run
        self.facts: dict[str, str] = self.settings.get("facts", {})
        self.detector, self.model = self.facts.get("detector", ""), self.facts.get("model", "")
        self.precision = self.facts.get("precision", "")
        self.expressions = tuple(self.facts.get("labels", " ".join(LABELS)).split())  # in the order of the model
        self.options = LabelOptions(**self.settings.get("options", {}))

    def put(self, **settings: Any) -> None:
        """Store values about the run."""
        rows = [(key, json.dumps(value)) for key, value in settings.items()]
        self._db.executemany("INSERT OR REPLACE INTO settings VALUES(?, ?)", rows)
        self.refresh()

    # Inputs

    def sync(
        self,
        items: Iterable[Item],
        copies: int,
        scanned: Callable[[int], object] = lambda _: None,
        *,
        keep: Callable[[bytes], bool] = lambda _: False,
        replace: bool = False,
    ) -> int:
        """Make the journal list `items`: add new ones, reset changed ones, and forget those that are gone.

        Errors of the last run are tried again, too, unless it is not finished. One transaction: if it fails or is
        killed, the journal remains as it was.

        Args:
            copies: bit mask of the pictures that the run writes; an input that lacks one is labeled again.
            scanned: called with the number of inputs so far.
            keep: whether an input that was not found is kept, by its path.
            replace: whether all inputs may be gone.
        Returns: number of inputs that are gone. Raises: LabelingError, ForeignFile, OSError.
        """
        retry = not self._one("SELECT EXISTS(SELECT 1 FROM items WHERE frame=? AND result IS NULL)", STILL)
        count, iterator = 0, iter(items)
        self._db.execute("DROP TABLE IF EXISTS temp.found")
        self._db.execute(_FOUND)
        self._db.execute("BEGIN IMMEDIATE")
        with self._db:  # commits, or rolls back
            while batch := list(itertools.islice(iterator, _BATCH)):
                self._add_found(batch)
                count += len(batch)
                scanned(count)
            self._mark_live_photos()
            sql = "SELECT name, path, copies FROM items WHERE frame=? AND name NOT IN (SELECT name FROM found)"
            # inputs in a folder that cannot be read are kept
            unreadable = tuple(f"{name}/" for (name,) in self._db.execute("SELECT name FROM found WHERE is_folder"))
            absent = self._db.execute(sql, (STILL,)).fetchall()
            gone = [row for row in absent if not row[0].startswith(unreadable) and not keep(row[1])]
            if gone and not replace:
                self._check_gone([path for _, path, _ in gone], gone[0][0])
            for name, _, mask in gone:
                self._forget(name, mask)
            self._update(copies, retry=retry)
        return len(gone)

    def _add_found(self, batch: list[Item]) -> None:
        sql = "INSERT OR IGNORE INTO found VALUES(?, ?, ?, ?, ?, ?)"
        failures = (item.failure and Result(item.name, item.path).failed(item.failure).to_json() for item in batch)
        rows = [
            (item.name, item.path, item.size, item.mtime, failure, item.is_folder)
            for item, failure in zip(batch, failures, strict=True)
        ]
        if self._db.executemany(sql, rows).rowcount == len(batch):
            return
        for item in batch:
            other = self._one("SELECT path FROM found WHERE name=?", item.name)
            if other != item.path:  # such as addresses that differ in their query only
                paths = f"{other!r} and {item.path!r}"
                raise LabelingError(f"two inputs have the name {item.name}: {paths}. Use two output folders.")

    def _mark_live_photos(self) -> None:
        videos = self._db.execute("SELECT name FROM found WHERE name LIKE ? AND failure IS NULL", (f"%{LIVE_VIDEO}",))
        for (name,) in videos.fetchall():
            photos = (name[: -len(LIVE_VIDEO)] + suffix for suffix in LIVE_PHOTOS)
            photo = next((photo for photo in photos if self._one("SELECT 1 FROM found WHERE name=?", photo)), None)
            if photo is not None:
                failure = Failure("live_photo", f"the video of the Live Photo {photo}", "skipped")
                result = Result(name, b"").failed(failure).to_json()
                self._db.execute("UPDATE found SET failure=? WHERE name=?", (result, name))

    def _check_gone(self, gone: list[bytes], name: str) -> None:
        """Reject inputs without those of the last run, or with a folder that became empty. Raises: InputsGone."""
        if len(gone) == self._one("SELECT COUNT(*) FROM items WHERE frame=?", STILL):
            raise InputsGone(
                f"{self.out} has the results of {counted(len(gone), 'file')}, none of which was found: "
                f"{name}{', ...' if len(gone) > 1 else ''}. If a disk is not mounted, mount it. Add --add to "
                "keep these results, --replace to remove them, or choose another --out."
            )
        folders = sorted({os.path.dirname(path) for (path,) in self._db.execute("SELECT path FROM found")})
        for folder in sorted({os.path.dirname(path) for path in gone if not is_url(path)}):
            position = bisect.bisect_left(folders, folder)
            has_inputs = position < len(folders) and (folders[position] + b"/").startswith(folder + b"/")
            if not has_inputs and os.path.isdir(folder):
                raise InputsGone(
                    f"No files found in {os.fsdecode(folder)}, which had files in the last run. If it is on an "
                    "external disk, check that it is mounted. If it is empty on purpose, add --replace to remove its "
                    "results."
                )

    def _update(self, copies: int, *, retry: bool) -> None:
        """Forget the results of changed inputs and of those without a picture. Raises: ForeignFile."""
        rows = self._db.execute(
            "SELECT f.name, f.path, f.size, f.mtime, f.failure, i.path, i.size, i.mtime, i.copies, "
            "json_extract(i.result, '$.status'), json_extract(i.result, '$.reason'), "
            "json_array_length(i.result, '$.faces') "
            "FROM found f LEFT JOIN items i ON i.name=f.name AND i.frame=?",
            (STILL,),
        ).fetchall()
        changed = []
        for name, path, size, mtime, failure, *before, mask, status, reason, faces in rows:
            is_same, on_disk = before == [path, size, mtime], mask or 0
            if failure is not None:
                self._forget(name, on_disk)
                changed.append((name, STILL, path, size, mtime, 0, failure))
                continue
            is_done = is_same and status is not None and not (retry and status == "error") and reason != "live_photo"
            has_pictures = is_done and on_disk & copies == copies and self._exist(name, faces, copies)
            if is_done and (status in ("error", "skipped") or has_pictures):
                continue
            wanted = on_disk | copies
            for picture in image_paths(name, 0 if is_video(name) else None, 1, wanted & ~on_disk):
                shown = self.out / (os.path.dirname(picture) if is_video(name) else picture)
                if os.path.lexists(shown):
                    raise foreign(shown)
            if is_video(name) and not is_same:  # its frames may be others
                self._forget(name, on_disk)
            changed.append((name, STILL, path, size, mtime, wanted, None))
        self._db.executemany("INSERT OR REPLACE INTO items VALUES(?, ?, ?, ?, ?, ?, ?)", changed)

    def _exist(self, name: str, faces: int | None, copies: int) -> bool:
        """Return whether the pictures of an input exist."""
        images = [(None, faces or 0)]
        if is_video(name):
            sql = "SELECT frame, json_array_length(result, '$.faces') FROM items WHERE name=? AND frame>=0"
            images = [(frame, count or 0) for frame, count in self._db.execute(sql, (name,))]
        paths = (path for frame, count in images for path in image_paths(name, frame, count, copies))
        return all(os.path.lexists(self.out / path) for path in paths)

    def _forget(self, name: str, copies: int) -> None:
        """Remove the pictures and the results of an input."""
        if copies & ~THUMBS:
            (remove_frames if is_video(name) else remove_images)(self.out, name)
        for table in ("items", "thumbs"):
            self._db.execute(f"DELETE FROM {table} WHERE name=?", (name,))  # noqa: S608

    def progress(self) -> tuple[int, int]:
        """Numbers of photos and videos, and of those that are done."""
        sql = "SELECT COUNT(*), COUNT(result) FROM items WHERE frame=?"
        total, done = self._db.execute(sql, (STILL,)).fetchone()
        return total, done

    def is_labeled(self, item: Item) -> bool:
        """Return whether an input has a result and is unchanged."""
        sql = "SELECT 1 FROM items WHERE name=? AND frame=? AND path=? AND size=? AND mtime=? AND result IS NOT NULL"
        return self._one(sql, item.name, STILL, item.path, item.size, item.mtime) is not None

    def todo(self) -> Iterator[tuple[Item, int]]:
        """Inputs without a result, by name, and a bit mask of the pictures to write."""
        sql = (
            "SELECT name, path, size, mtime, copies FROM items WHERE frame=? AND result IS NULL AND name > ? "
            "ORDER BY name LIMIT ?"
        )
        last = ""
        while rows := self._db.execute(sql, (STILL, last, _PAGE)).fetchall():
            yield from ((Item(name, path, size, mtime), copies) for name, path, size, mtime, copies in rows)
            last = rows[-1][0]

    def save(self, results: Sequence[Result]) -> None:
        """Store results in one transaction; of failed photos, earlier pictures are removed."""
        self._counts = None
        rows: list[tuple[str, int, bytes, str]] = []
        thumbs: list[tuple[str, int, int, bytes]] = []
        for result in results:
            key = result.name, STILL if result.frame is None else result.frame
            rows.append((*key, result.path, result.to_json()))
            thumbs += [(*key, face.index, face.thumb) for face in result.faces if face.thumb]
        self._db.execute("BEGIN IMMEDIATE")
        with self._db:
            self._db.executemany("DELETE FROM thumbs WHERE name=? AND frame=?", [row[:2] for row in rows])
            self._db.executemany(
                "INSERT INTO items VALUES(?, ?, ?, 0, '', 0, ?) "
                "ON CONFLICT(name, frame) DO UPDATE SET result=excluded.result",
                rows,
            )
            self._db.executemany("INSERT INTO thumbs VALUES(?, ?, ?, ?)", thumbs)
            for name in (result.name for result in results if result.reason is not None):
                if not is_video(name):
                    if self._one("SELECT copies FROM items WHERE name=? AND frame=?", name, STILL) & ~THUMBS:
                        remove_images(self.out, name)
                    self._db.execute("UPDATE items SET copies=0 WHERE name=? AND frame=?", (name, STILL))

    # Results

    def results(self, name: str | None = None, *, failed: bool = False) -> Iterator[Result]:
        """Results of photos and of frames, by name and frame; of a video itself only if it failed.

        name: of this file only; failed: of those that could not be labeled only.
        """
        where = ["result IS NOT NULL"] + ["name=:name"] * (name is not None)
        where += ["json_extract(result, '$.reason') IS NOT NULL"] * failed
        sql = f"SELECT name, frame, path, result FROM items WHERE {' AND '.join(where)} ORDER BY name, frame"  # noqa: S608
        for row in self._db.execute(sql, {"name": name}):
            result = Result.from_json(*row)
            if result.is_image:
                yield result

    def result(self, name: str, frame: int | None) -> Result | None:
        """The result of a photo or a frame; None if there is none."""
        sql = "SELECT name, frame, path, result FROM items WHERE name=? AND frame=? AND result IS NOT NULL"
        row = self._db.execute(sql, (name, STILL if frame is None else frame)).fetchone()
        return None if row is None else Result.from_json(*row)

    def videos(self) -> list[str]:
        """Names of the videos with labeled frames."""
        return [name for (name,) in self._db.execute("SELECT DISTINCT name FROM items WHERE frame>=0 ORDER BY name")]

    def thumb(self, name: str, frame: int | None, face: int) -> bytes | None:
        """JPEG thumbnail of a face, or None if there is none."""
        key = (name, STILL if frame is None else frame, face)
        jpeg: bytes | None = self._one("SELECT jpeg FROM thumbs WHERE name=? AND frame=? AND face=?", *key)
        return jpeg

    def least_confident(self, label: str = "", reason: str = "", *, limit: int = -1) -> Iterator[tuple[Result, Face]]:
        """Faces with a label of the model and a reason for doubt ("" for any), least confident first."""
        sql = (
            "SELECT i.name, i.frame, i.path, i.result, f.key FROM items i, json_each(i.result, '$.faces') f "
            "WHERE i.result IS NOT NULL AND :label IN ('', json_extract(f.value, '$.label')) "
            "AND (:reason='' OR EXISTS(SELECT 1 FROM json_each(f.value, '$.reasons') WHERE value=:reason)) "
            "ORDER BY json_extract(f.value, '$.confidence'), i.name, i.frame, f.key LIMIT :limit"
        )
        label = label if label in self.expressions else ""
        for *row, face in self._db.execute(sql, {"label": label, "reason": reason, "limit": limit}):
            result = Result.from_json(*row)
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

    def _one(self, sql: str, *values: Any) -> Any:
        row = self._db.execute(sql, values).fetchone()
        return None if row is None else row[0]


def open_journal(out: Path) -> Journal:
    """Open the journal of a run for reading.

    Raises: NoJournal, if `out` contains no labeled run; OutputRefused.
    """
    try:
        return Journal(out, write=False)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR and (out / STATE_DIR / JOURNAL).exists():
            raise OutputRefused(f"journal in {out / STATE_DIR}: {error}. Check that you may read it.") from error
        raise NoJournal(f"{out} has no journal of `mien label`.") from error
    except sqlite3.DatabaseError as error:
        raise damaged(out, error) from error
