"""Journal of an output folder: inputs of the scan and their results, in a SQLite file that survives a kill.

Only the main thread of a run writes it. Before a batch of images is labeled, its rows are marked; therefore the journal
knows every image file that it has written or begun to write. Outputs and the review read it: results by name and frame,
each with its faces, streamed, so that memory does not depend on the number of images.
"""

import contextlib
import itertools
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from mien.app.inference.records import Face
from mien.app.labeling.files import STATE_DIR, DamagedJournal, ForeignFile, LabelingError, OutputRefused, foreign
from mien.app.labeling.images import image_paths, remove_images
from mien.app.labeling.options import LabelOptions
from mien.app.labeling.reading import LIVE_PHOTOS, LIVE_VIDEO
from mien.app.labeling.records import STILL, Failure, Input, Result
from mien.app.labeling.schema import (
    COLUMNS,
    DONE,
    FACE_COLUMN,
    IMAGES,
    REMAINING,
    SCHEMA,
    UPSERT_CHILD,
    UPSERT_INPUT,
    VERSION,
    pack_face,
    sqlite_uri,
    unpack_face,
)
from mien.data.contract import LABELS

JOURNAL_NAME: Final = "journal.sqlite3"
_PAGE: Final = 512
_BATCH: Final = 2_000


class NoJournal(LabelingError):
    """A folder that was not written by `mien label`."""


class Journal:
    """The journal of a run; `open_journal` opens one for reading."""

    def __init__(self, out: Path, *, readonly: bool = False) -> None:
        """Open it, and create it unless `readonly`. Raises: sqlite3.Error.

        Args:
            out: the output folder.
            readonly: whether it must exist, and is not changed.
        """
        self.out, self.path = out, out / STATE_DIR / JOURNAL_NAME
        mode = "ro" if readonly else "rwc"
        if readonly and not os.access(self.path.parent, os.W_OK) and not os.path.exists(f"{self.path}-wal"):
            mode = "ro&immutable=1"  # otherwise, SQLite creates files beside the journal to read it
        address = f"{sqlite_uri(self.path.absolute())}?mode={mode}"
        # The review page and the workers read in several threads. Since Python 3.12, two threads that execute the same
        # cached statement at once can get each other's rows.
        self._db = sqlite3.connect(
            address, uri=True, isolation_level=None, timeout=30.0, check_same_thread=False, cached_statements=0
        )
        try:
            if not readonly:
                self._create()
            self.refresh()
        except (sqlite3.Error, LabelingError):  # such as a full disk; an unclosed connection keeps the folder busy
            self.close()
            raise

    def check_version(self) -> None:
        """Check that the tables are those of this version. Raises: OutputRefused."""
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version != VERSION and self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise OutputRefused(f"{self.out} was labeled by an earlier version of Mien. Choose another --out.")

    def _create(self) -> None:
        """Create missing tables. Raises: OutputRefused."""
        self.check_version()
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")  # a power failure loses at most the last images
        self._db.executescript(f"BEGIN IMMEDIATE; {SCHEMA} COMMIT;")  # readers find all of its tables, or none

    def refresh(self) -> None:
        """Show the last session, if a run has begun one since the journal was opened."""
        self.session = int(self.get("session") or 0)
        # everything that the results depend on; empty before the first run
        self.facts: dict[str, str] = json.loads(self.get("facts") or "{}")
        self.detector, self.model = self.facts.get("detector", ""), self.facts.get("model", "")
        self.precision = self.facts.get("precision", "")
        self.expressions = tuple(self.facts.get("labels", " ".join(LABELS)).split())  # in the order of the model
        recorded = json.loads(self.get("options") or "{}")
        self.options = LabelOptions(**{name: recorded[name] for name in LabelOptions().recorded if name in recorded})

    def close(self) -> None:
        """Close the connection; the last one merges the write-ahead log into the file."""
        self._db.close()

    def get(self, key: str) -> str | None:
        """A value about the run, or None."""
        row = self._db.execute("SELECT value FROM meta WHERE key=?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def images(self, *, after: tuple[str, int] | None = None) -> Iterator[Result]:
        """Results of the last session, by name and frame, from the first one after a name and a frame."""
        if after is None:
            return self._results(IMAGES)
        return self._results(f"{IMAGES} AND (i.name, i.frame) > (:name, :frame)", name=after[0], frame=after[1])

    def frames(self, name: str) -> Iterator[Result]:
        """Results of the frames of a video, in order, with all faces, so that people keep their numbers."""
        where = "i.name=:name AND i.frame>=0 AND i.found=:session AND i.status IS NOT NULL"
        return self._results(where, name=name)

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
        return self._results(f"{IMAGES} AND i.reason IS NOT NULL")

    def _results(self, where: str, *, order: str = "i.name, i.frame, f.face", **values: Any) -> Iterator[Result]:
        cursor = self._db.execute(
            f"SELECT {COLUMNS} FROM items i LEFT JOIN faces f ON f.item=i.id "  # noqa: S608  # constants
            f"WHERE {where} ORDER BY {order}",
            {"session": self.session} | values,
        )
        for _, group in groupby(cursor, key=itemgetter(0)):
            rows = list(group)
            row, name, kind, path, size, parent, frame, time_s, scene, *result = rows[0][:FACE_COLUMN]
            faces = tuple(
                unpack_face(row[FACE_COLUMN:], self.expressions) for row in rows if row[FACE_COLUMN] is not None
            )
            image = Input(name, kind, path, size, row=row, parent=parent, frame=frame)
            image = replace(image, time_s=time_s, scene=scene)
            status, reason, error, sha256, width, height, notes = result
            yield Result(image, status, reason, error, sha256, width, height, faces, tuple(notes.split()))

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
        label = label if label in self.expressions else ""
        order = "f.confidence, i.name, i.frame, f.face LIMIT :limit"
        images = self._results(where, order=order, label=label, reason=reason, limit=limit)
        return ((image, face) for image in images for face in image.faces)

    def _count_images(self, value: str, where: str = "1") -> Counter[str]:
        """Images per value of an SQL expression."""
        sql = f"SELECT {value}, COUNT(*) FROM items i WHERE {IMAGES} AND {where} GROUP BY 1"  # noqa: S608
        return Counter(dict(self._db.execute(sql, {"session": self.session})))

    def counts(self) -> Counter[str]:
        """Images per status."""
        return self._count_images("i.status")

    def notes(self) -> Counter[str]:
        """Images per note; an image can have several."""
        return _by_word(self._count_images("i.notes", "i.notes != ''"))

    def unsupported(self) -> Counter[str]:
        """Files of formats that are not read, by the message that says what to do."""
        return self._count_images("i.error", "i.reason='unsupported'")

    def skipped(self) -> Counter[str]:
        """Skipped files per reason."""
        return self._count_images("i.reason", "i.status='skipped'")

    def _count(self, value: str) -> Counter[Any]:
        """Faces per value of an SQL expression."""
        sql = (
            f"SELECT {value}, COUNT(*) FROM faces f JOIN items i ON i.id=f.item "  # noqa: S608
            f"WHERE i.found=? AND i.status='ok' GROUP BY 1"
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
        return _by_word(self._count("f.reasons"))

    def _has(self, where: str, *values: Any) -> bool:
        """Return whether an input meets a condition."""
        return self._db.execute(f"SELECT 1 FROM items WHERE {where} LIMIT 1", values).fetchone() is not None  # noqa: S608

    def is_labeled(self, item: Input, images: int) -> bool:
        """Return whether an input of a new scan is unchanged, and neither labeled again nor for these images."""
        sql = (
            f"SELECT 1 FROM items i WHERE name=:name AND frame=:frame AND path=:path AND signature=:signature "  # noqa: S608
            f"AND {DONE} AND status != 'error'"
        )
        values = {"name": item.name, "frame": item.frame, "path": item.path, "signature": item.signature}
        return self._db.execute(sql, values | {"images": images}).fetchone() is not None

    def remaining(self, images: int = 0) -> int:
        """Number of unlabeled inputs and frames of the last session; an unread video counts as one.

        images: a bit mask; those without a copy or crop that is to be written count, too.
        """
        sql = (
            f"SELECT COUNT(*) FROM items WHERE found=:session AND {REMAINING} AND "  # noqa: S608
            "(status IS NULL OR kind != 'video' OR parent IS NOT NULL)"
        )
        return int(self._db.execute(sql, {"session": self.session, "images": images}).fetchone()[0])

    def has_images(self, images: int) -> bool:
        """Return whether copies or crops, a bit mask, were written for any input."""
        return self._has("products & ?", images)

    # Writing

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        if self._db.in_transaction:  # of the caller
            yield
            return
        self._db.execute("BEGIN IMMEDIATE")
        with self._db:  # commits, or rolls back
            yield

    def put(self, key: str, value: str) -> None:
        """Store a value about the run, such as its settings."""
        self._db.execute("INSERT OR REPLACE INTO meta VALUES(?, ?)", (key, value))

    def put_run(self, facts: dict[str, str], options: LabelOptions) -> None:
        """Store everything that the results and outputs depend on."""
        self.put("facts", json.dumps(facts))
        self.put("options", json.dumps(options.recorded))
        self.refresh()

    # The scan

    def scan(self, inputs: Iterable[Input], scanned: Callable[[int], None]) -> None:
        """Store the inputs of a scan as a new session; `scanned` is called with their number so far.

        Uses one transaction: if the scan fails or is killed, the inputs of the last session remain. Files with an error
        are labeled again, unless the last run is not finished. Raises: LabelingError.
        """
        is_finished, before, self.session = not self.remaining(), self.session, self.session + 1
        count, iterator = 0, iter(inputs)
        try:
            with self._transaction():
                while batch := list(itertools.islice(iterator, _BATCH)):
                    self._add(batch)
                    count += len(batch)
                    scanned(count)
                self._reconcile(before, retry=is_finished)
                self.put("session", str(self.session))
        except BaseException:
            self.session = before
            raise

    def _add(self, batch: list[Input]) -> None:
        rows = [
            (
                item.name, item.kind, item.path, item.size, item.signature, self.session,
                *((item.failure.status, item.failure.reason, item.failure.message) if item.failure else (None,) * 3),
            )
            for item in batch
        ]  # fmt: skip
        if self._db.executemany(UPSERT_INPUT, rows).rowcount == len(batch):
            return
        for item in batch:
            (other,) = self._db.execute("SELECT path FROM items WHERE name=? AND frame=-1", (item.name,)).fetchone()
            if other != item.path:  # such as addresses that differ in their query only
                paths = f"{other!r} and {item.path!r}"
                raise LabelingError(f"two inputs have the name {item.name}: {paths}. Use two output folders.")

    def _reconcile(self, before: int, *, retry: bool) -> None:
        """Forget the results of changed inputs; with `retry`, also errors, which may be temporary."""
        now = self.session
        self._forget_frames("SELECT id FROM items WHERE status IS NULL AND signature != COALESCE(opened, signature)")
        self._db.execute(
            "UPDATE items SET found=? WHERE found != 0 AND "
            "parent IN (SELECT id FROM items WHERE found=? AND kind='video')",
            (now, now),
        )
        # Inputs in a folder that currently cannot be read keep their rows.
        unreadable = self._db.execute("SELECT name FROM items WHERE kind='folder' AND found=?", (now,)).fetchall()
        self._db.executemany(
            "UPDATE items SET found=? WHERE found=? AND name > ? AND name < ?",
            [(now, before, f"{name}/", f"{name}0") for (name,) in unreadable],
        )
        # The photo of a Live Photo may be gone.
        retried = "(status='error' OR reason='live_photo')" if retry else "reason='live_photo'"
        self._relabel(f"{retried} AND kind NOT IN ('none', 'folder') AND found=?", [(now,)])
        for table in ("faces", "thumbs"):
            self._db.execute(
                f"DELETE FROM {table} WHERE item NOT IN (SELECT id FROM items WHERE status IN ('ok', 'no_face'))"  # noqa: S608
            )

    def _forget_frames(self, videos: str) -> None:
        """Forget the frames of videos, given by a query; their rows are kept to remove written images."""
        sql = f"UPDATE items SET sha256=NULL, reason=NULL, status=NULL, found=0 WHERE parent IN ({videos})"  # noqa: S608
        self._db.execute(sql)

    def has_input(self, name: str) -> bool:
        """Return whether the last session has an input with this name."""
        return self._has("name=? AND found=?", name, self.session)

    def had_inputs(self, prefix: str) -> bool:
        """Return whether the last session had inputs with this prefix."""
        last = int(self.get("session") or 0)
        return self._has("found=? AND substr(name, 1, ?)=?", last, len(prefix), prefix)

    def live_photo(self, name: str) -> str | None:
        """Name of the photo with the same name as a video of a phone, among the inputs of the last session."""
        stem, suffix = os.path.splitext(name)
        if suffix.lower() != LIVE_VIDEO:
            return None
        photos = [stem + photo for photo in LIVE_PHOTOS]
        return next((photo for photo in photos if self.has_input(photo)), None)

    def _relabel(self, where: str, values: list[tuple[int | str]]) -> int:
        with self._transaction():
            sql = f"UPDATE items SET status=NULL, reason=NULL, sha256=NULL WHERE {where}"  # noqa: S608  # constants
            return self._db.executemany(sql, values).rowcount

    def relabel_deleted(self, images: int) -> None:
        """Label images again of which a written copy or crop was deleted."""
        rows = self._db.execute(
            "SELECT id, name, frame, (SELECT COUNT(*) FROM faces WHERE item=id), products & ? FROM items WHERE "
            "found=? AND products & ? AND status IN ('ok', 'no_face')",
            (images, self.session, images),
        )
        deleted = [row for row, *image in rows if not all(map(os.path.lexists, self._paths(*image)))]
        self._relabel("id=?", [(row,) for row in deleted])

    def _paths(self, name: str, frame: int, faces: int, images: int) -> Iterator[Path]:
        return (self.out / path for path in image_paths(name, frame, faces, images))

    # Work to do

    def todo(self, images: int) -> Iterator[tuple[Input, bool]]:
        """Every input of this session, sorted by name, and whether it is done; `images` are those to write."""
        sql = (
            f"SELECT id, name, kind, path, size, products, {DONE} "  # noqa: S608
            "FROM items i WHERE found=:session AND frame=:frame AND parent IS NULL AND name > :last ORDER BY name "
            f"LIMIT {_PAGE}"
        )
        values: dict[str, Any] = {"session": self.session, "images": images, "frame": STILL, "last": ""}
        while rows := self._db.execute(sql, values).fetchall():
            for row, name, kind, path, size, on_disk, done in rows:
                yield Input(name, kind, path, size, row=row, images=images, on_disk=on_disk), bool(done)
            values["last"] = rows[-1][1]

    def is_done(self, child: Input) -> bool:
        """Return whether a frame of a video is labeled and written."""
        sql = f"SELECT 1 FROM items WHERE name=:name AND frame=:frame AND NOT {REMAINING}"  # noqa: S608
        values = {"name": child.name, "frame": child.frame, "images": child.images}
        return self._db.execute(sql, values).fetchone() is not None

    def progress(self) -> tuple[int, int]:
        """Number of known images of this session, and of labeled ones."""
        total, done = self._db.execute(
            "SELECT COUNT(*), COUNT(status) FROM items WHERE found=? AND kind NOT IN ('none', 'folder') AND "
            "(kind != 'video' OR parent IS NOT NULL)",
            (self.session,),
        ).fetchone()
        return total, done

    # Results

    def open_container(self, container: Input) -> None:
        """Store the signature of a video before its frames are labeled."""
        self._db.execute("UPDATE items SET opened=signature WHERE id=?", (container.row,))

    def begin(self, batch: Sequence[Input]) -> list[Input]:
        """Mark images as being labeled and written, those on the disk again; returns them with their rows.

        Raises: ForeignFile, if a file that no run has written is in the way.
        """
        begun = []
        with self._transaction():
            for item in batch:
                on_disk, row = item.on_disk, item.row
                if item.parent is not None:
                    sql = "SELECT products FROM items WHERE name=? AND frame=?"
                    (on_disk,) = self._db.execute(sql, (item.name, item.frame)).fetchone() or (0,)
                images = item.images | on_disk
                for path in self._paths(item.name, item.frame, 1, images & ~on_disk):
                    if os.path.lexists(path):
                        raise ForeignFile(foreign(path))
                if item.parent is None:
                    sql = "UPDATE items SET status=NULL, sha256=NULL, products=? WHERE id=?"
                    self._db.execute(sql, (images, row))
                else:
                    values = (
                        item.name, item.frame, item.parent, item.kind, item.path, item.size,
                        self.session, item.time_s, item.scene, images,
                    )  # fmt: skip
                    (row,) = self._db.execute(UPSERT_CHILD, values).fetchall()[0]
                begun.append(replace(item, row=row, images=images, on_disk=on_disk))
        return begun

    def save(self, results: Iterable[Result]) -> None:
        """Store the results of a batch and their faces in one transaction."""
        results = list(results)
        rows = [
            (
                result.status, result.reason, result.error, result.sha256, result.width, result.height,
                " ".join(result.notes), result.input.row,
            )
            for result in results
        ]  # fmt: skip
        faces = [(result.input.row, face) for result in results for face in result.faces]
        thumbs = [(row, face.index, face.thumb) for row, face in faces if face.thumb]
        with self._transaction():
            sql = "UPDATE items SET status=?, reason=?, error=?, sha256=?, width=?, height=?, notes=? WHERE id=?"
            self._db.executemany(sql, rows)
            for table in ("faces", "thumbs"):
                self._db.executemany(f"DELETE FROM {table} WHERE item=?", [row[-1:] for row in rows])  # noqa: S608
            values = [pack_face(row, face) for row, face in faces]
            self._db.executemany("INSERT INTO faces VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?)", values)
            self._db.executemany("INSERT INTO thumbs VALUES(?,?,?)", thumbs)

    def close_container(self, container: Input, failure: Failure | None, sha256: str) -> None:
        """Record that a video was read to its end or up to a failure."""
        result = (failure.status, failure.reason, failure.message) if failure else ("ok", None, None)
        with self._transaction():
            sql = "UPDATE items SET status=?, reason=?, error=?, sha256=? WHERE id=?"
            self._db.execute(sql, (*result, sha256 or None, container.row))
            sql = "UPDATE items SET found=? WHERE parent=? AND status IS NOT NULL"
            self._db.execute(sql, (self.session, container.row))

    def remove_stale(self) -> None:
        """Remove the written images of inputs that are gone or failed, and their rows."""
        stale = "products != 0 AND (found != ? OR status IN ('error', 'skipped'))"
        for name, frame in self._db.execute(f"SELECT name, frame FROM items WHERE {stale}", (self.session,)):  # noqa: S608
            remove_images(self.out, name, frame)
        with self._transaction():
            self._db.execute(f"UPDATE items SET products=0 WHERE {stale}", (self.session,))  # noqa: S608
            gone = "found != :session AND status IS NULL"
            unlabeled = f"SELECT parent FROM items WHERE {gone} AND found != 0"  # noqa: S608
            for sql in (
                # a video that is gone, and has frames without a result, is read anew if it comes back
                f"UPDATE items SET status=NULL WHERE found != :session AND id IN ({unlabeled})",  # noqa: S608
                f"DELETE FROM items WHERE parent IN (SELECT id FROM items WHERE {gone})",  # noqa: S608
                f"DELETE FROM items WHERE {gone}",  # noqa: S608
            ):
                self._db.execute(sql, {"session": self.session})


def _by_word(counts: Counter[str]) -> Counter[str]:
    """Counts per word of texts."""
    words = Counter[str]()
    for text, count in counts.items():
        words.update(dict.fromkeys(text.split(), count))
    return words


def open_journal(out: Path) -> Journal:
    """Open the journal of a run for reading.

    Raises: NoJournal, if `out` contains no labeled run; OutputRefused; DamagedJournal.
    """
    try:
        journal = Journal(out, readonly=True)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR and (out / STATE_DIR / JOURNAL_NAME).exists():
            raise OutputRefused(f"journal in {out / STATE_DIR}: {error}. Check that you may read it.") from error
        raise NoJournal(f"{out} has no journal of `mien label`.") from error
    except sqlite3.DatabaseError as error:
        raise DamagedJournal(out, error) from error
    try:
        journal.check_version()
    except LabelingError:
        journal.close()
        raise
    return journal
