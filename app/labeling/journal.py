"""Journal of an output folder: its inputs and their results, in a SQLite file that survives a kill.

An input is one row: name, size, time, and its result as JSON, which is missing until it is labeled. The labeled frames
of a video are rows, too. Only the process of the run writes; outputs and the review stream the results by name and
frame, so that memory does not depend on their number.
"""

import bisect
import contextlib
import dataclasses
import itertools
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from mien.app.inference.records import Face
from mien.app.labeling.copies import THUMBS, image_paths, remove_frames, remove_images
from mien.app.labeling.files import (
    JOURNAL,
    STATE_DIR,
    DamagedJournal,
    ForeignFile,
    LabelingError,
    OutputRefused,
    foreign,
    sqlite_uri,
)
from mien.app.labeling.inputs import LIVE_PHOTOS, LIVE_VIDEO, STILL, Failure, Item, Status, is_video
from mien.app.labeling.options import LabelOptions
from mien.app.labeling.store import is_url
from mien.app.wording import counted
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
_UNSTORED: Final[dict[str, Any]] = {"crop_rgb": None, "thumb": b"", "crop": None, "explanation": None}


class NoJournal(LabelingError):
    """A folder that was not written by `mien label`."""


class InputsGone(LabelingError):
    """Inputs of the earlier run whose results would be removed."""


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
    status: Status
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

    @classmethod
    def failed(cls, item: Item, failure: Failure, sha256: str | None = None) -> "Result":
        """The result of an input that cannot be labeled."""
        reason, message, status = failure.reason, failure.message, failure.status
        return cls(item.name, item.path, status, reason=reason, error=message, sha256=sha256)

    @property
    def is_image(self) -> bool:
        """Return whether it is listed in outputs: a photo, a frame, or a video that failed."""
        return self.frame is not None or self.status in ("error", "skipped") or not is_video(self.name)

    def to_json(self) -> str:
        """Everything but its name, path, frame and pictures; numbers are not rounded."""
        values = {name: getattr(self, name) for name in _STORED}
        values["faces"] = [dataclasses.asdict(dataclasses.replace(face, **_UNSTORED)) for face in self.faces]
        for face in values["faces"]:
            for name in _UNSTORED:
                del face[name]
        return json.dumps({name: value for name, value in values.items() if value}, ensure_ascii=False)

    @classmethod
    def from_json(cls, name: str, frame: int, path: bytes, text: str) -> "Result":
        """The result in a row of the journal."""
        values = json.loads(text)
        values |= {"faces": _FACES.validate_python(values.get("faces", ())), "notes": tuple(values.get("notes", ()))}
        if frame != STILL:
            values.setdefault("time_s", 0.0)
        return cls(name, path, frame=None if frame == STILL else frame, **values)


_KEY: Final = ("name", "path", "frame", "timings_ms")
_STORED: Final = [item.name for item in dataclasses.fields(Result) if item.name not in _KEY]


class Journal:
    """The journal of a run; `open_journal` opens one for reading."""

    def __init__(self, out: Path, *, readonly: bool = False) -> None:
        """Open it, and create it unless `readonly`. Raises: sqlite3.Error, OutputRefused."""
        self.out, self.path = out, out / STATE_DIR / JOURNAL
        mode = "ro" if readonly else "rwc"
        if readonly and not os.access(self.path.parent, os.W_OK) and not os.path.exists(f"{self.path}-wal"):
            mode = "ro&immutable=1"  # otherwise, SQLite creates files beside the journal to read it
        address = f"{sqlite_uri(self.path.absolute())}?mode={mode}"
        # The review reads in several threads. Since Python 3.12, two threads that execute the same cached statement at
        # once can get each other's rows.
        self._db = sqlite3.connect(
            address, uri=True, isolation_level=None, timeout=30.0, check_same_thread=False, cached_statements=0
        )
        try:
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version != _VERSION and self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
                raise OutputRefused(f"{out} was labeled by another version of Mien. Choose another --out.")
            if not readonly:
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=NORMAL")  # a power failure loses at most the last images
                self._db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")  # readers find all tables, or none
            self.refresh()
        except (sqlite3.Error, LabelingError):  # such as a full disk; an unclosed connection keeps the folder busy
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; the last one merges the write-ahead log into the file."""
        self._db.close()

    # Settings

    def refresh(self) -> None:
        """Read the settings of the last run, if one has begun since the journal was opened."""
        self.settings: dict[str, Any] = {
            key: json.loads(value) for key, value in self._db.execute("SELECT key, value FROM settings")
        }
        # everything that the results depend on; empty before the first run
        self.facts: dict[str, str] = self.settings.get("facts", {})
        self.detector, self.model = self.facts.get("detector", ""), self.facts.get("model", "")
        self.precision = self.facts.get("precision", "")
        self.expressions = tuple(self.facts.get("labels", " ".join(LABELS)).split())  # in the order of the model
        recorded = self.settings.get("options", {})
        self.options = LabelOptions(**{name: recorded[name] for name in LabelOptions().recorded if name in recorded})

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
        scanned: Callable[[int], None] = lambda _: None,
        *,
        keep: Callable[[bytes], bool] = lambda _: False,
        replace: bool = False,
    ) -> int:
        """Store the inputs of a run, and forget the results of those that are changed or gone, with their pictures.

        Errors are forgotten, too, unless the last run is not finished. One transaction: if it fails or is killed, the
        journal remains as it was.

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
        with self._transaction():
            while batch := list(itertools.islice(iterator, _BATCH)):
                self._add_found(batch)
                count += len(batch)
                scanned(count)
            self._mark_live_photos()
            gone = [row for row in self._gone() if not keep(row[1])]
            if not replace:
                self._check_gone(gone)
            for name, _, mask in gone:
                self._remove_pictures(name, mask)
                self._forget(name)
            self._update(copies, retry=retry)
        return len(gone)

    def _add_found(self, batch: list[Item]) -> None:
        sql = "INSERT OR IGNORE INTO found VALUES(?, ?, ?, ?, ?, ?)"
        failures = (item.failure and Result.failed(item, item.failure).to_json() for item in batch)
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
                result = Result.failed(Item(name, b""), failure).to_json()
                self._db.execute("UPDATE found SET failure=? WHERE name=?", (result, name))

    def _gone(self) -> list[tuple[str, bytes, int]]:
        """Name, path and pictures of the inputs that were not found; those in a folder that cannot be read are kept."""
        gone: list[tuple[str, bytes, int]] = self._db.execute(
            "SELECT name, path, copies FROM items WHERE frame=? AND name NOT IN (SELECT name FROM found)", (STILL,)
        ).fetchall()
        unreadable = [f"{name}/" for (name,) in self._db.execute("SELECT name FROM found WHERE is_folder")]
        return [row for row in gone if not row[0].startswith(tuple(unreadable))]

    def _check_gone(self, gone: list[tuple[str, bytes, int]]) -> None:
        """Reject inputs without those of the last run, or with a folder that became empty. Raises: InputsGone."""
        if not gone:
            return
        if len(gone) == self._one("SELECT COUNT(*) FROM items WHERE frame=?", STILL):
            raise InputsGone(
                f"{self.out} has the results of {counted(len(gone), 'file')}, none of which was found: "
                f"{gone[0][0]}{', ...' if len(gone) > 1 else ''}. If a disk is not mounted, mount it. Add --add to "
                "keep these results, --replace to remove them, or choose another --out."
            )
        folders = sorted({os.path.dirname(path) for (path,) in self._db.execute("SELECT path FROM found")})
        for folder in sorted({os.path.dirname(path) for _, path, _ in gone if not is_url(path)}):
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
        for name, path, size, mtime, failure, *before, on_disk, status, reason, faces in rows:
            on_disk = on_disk or 0  # noqa: PLW2901
            is_same = before == [path, size, mtime]
            if failure is not None:
                if on_disk:
                    self._remove_pictures(name, on_disk)
                if not is_same or status is not None:
                    self._forget(name)
                changed.append((name, STILL, path, size, mtime, 0, failure))
                continue
            wanted = on_disk | copies
            is_done = is_same and status is not None and not (retry and status == "error") and reason != "live_photo"
            has_pictures = is_done and on_disk & copies == copies and self._exist(name, faces, copies)
            if is_done and (status in ("error", "skipped") or has_pictures):
                continue
            for picture in image_paths(name, 0 if is_video(name) else None, 1, wanted & ~on_disk):
                shown = self.out / (os.path.dirname(picture) if is_video(name) else picture)
                if os.path.lexists(shown):
                    raise ForeignFile(foreign(shown))
            if is_video(name) and not is_same and before[0] is not None:  # its frames may be others
                self._remove_pictures(name, on_disk)
                self._forget(name)
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

    def _remove_pictures(self, name: str, copies: int) -> None:
        if copies & ~THUMBS:
            (remove_frames if is_video(name) else remove_images)(self.out, name)

    def _forget(self, name: str) -> None:
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
        """Store results in one transaction; of failed inputs, earlier pictures are removed."""
        with self._transaction():
            for result in results:
                key = result.name, STILL if result.frame is None else result.frame
                self._db.execute("DELETE FROM thumbs WHERE name=? AND frame=?", key)
                if result.frame is not None:
                    row = (*key, result.path, 0, "", 0, result.to_json())
                    self._db.execute("INSERT OR REPLACE INTO items VALUES(?, ?, ?, ?, ?, ?, ?)", row)
                else:
                    self._db.execute("UPDATE items SET result=? WHERE name=? AND frame=?", (result.to_json(), *key))
                thumbs = [(*key, face.index, face.thumb) for face in result.faces if face.thumb]
                self._db.executemany("INSERT INTO thumbs VALUES(?, ?, ?, ?)", thumbs)
                if result.status in ("error", "skipped") and not is_video(result.name):
                    copies = self._one("SELECT copies FROM items WHERE name=? AND frame=?", *key)
                    self._remove_pictures(result.name, copies)
                    self._db.execute("UPDATE items SET copies=0 WHERE name=? AND frame=?", key)

    # Results

    def results(self, name: str | None = None) -> Iterator[Result]:
        """Results of photos and of frames, by name and frame; of a video itself only if it failed.

        name: of this file only.
        """
        where = "result IS NOT NULL" if name is None else "result IS NOT NULL AND name=:name"
        sql = f"SELECT name, frame, path, result FROM items WHERE {where} ORDER BY name, frame"  # noqa: S608
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
        """Numbers of images and faces, which all outputs and messages have."""
        counts: dict[str, Any] = {
            name: Counter[str]()
            for name in ("images", "skipped", "errors", "unsupported", "faces", "reasons", "notes", "confidences")
        }
        counts |= {"videos": len(self.videos()), "frames": 0, "uncertain": 0}
        for result in self.results():
            counts["images"][result.status] += 1
            counts["frames"] += result.frame is not None
            counts["notes"].update(result.notes)
            if result.status in ("error", "skipped"):
                counts["skipped" if result.status == "skipped" else "errors"][result.reason or ""] += 1
            if result.reason == "unsupported":
                counts["unsupported"][result.error or ""] += 1
            for face in result.faces:
                counts["faces"][face.label] += 1
                counts["uncertain"] += face.uncertain
                counts["reasons"].update(face.reasons)
                counts["confidences"][str(min(9, int(10 * face.confidence)))] += 1
        return counts

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        with self._db:  # commits, or rolls back
            yield

    def _one(self, sql: str, *values: Any) -> Any:
        row = self._db.execute(sql, values).fetchone()
        return None if row is None else row[0]


def open_journal(out: Path) -> Journal:
    """Open the journal of a run for reading.

    Raises: NoJournal, if `out` contains no labeled run; OutputRefused; DamagedJournal.
    """
    try:
        return Journal(out, readonly=True)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR and (out / STATE_DIR / JOURNAL).exists():
            raise OutputRefused(f"journal in {out / STATE_DIR}: {error}. Check that you may read it.") from error
        raise NoJournal(f"{out} has no journal of `mien label`.") from error
    except sqlite3.DatabaseError as error:
        raise DamagedJournal(out, error) from error
