"""Journal of an output folder: inputs of the scan and their results, in a SQLite file that survives a kill.

Only the main thread of a run writes it. Before a batch of images is labeled, its rows are marked; therefore the journal
knows every image file that it has written or begun to write.
"""

import contextlib
import itertools
import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from mien.app.labeling.files import ForeignFile, SameName, foreign
from mien.app.labeling.images import image_paths, remove_images
from mien.app.labeling.reading import file_sha256
from mien.app.labeling.records import STILL, TRANSIENT, Failure, Input, Result
from mien.app.labeling.view import CONTAINER_KINDS, UNDONE, View
from mien.data.atomic import atomic_path

_PAGE: Final = 512
_BATCH: Final = 2_000
# found: session of the last scan that found the input, 0 for rows that are only kept to remove their images;
# opened: signature of an archive or a video when it was last opened; products: images that may exist on the disk.
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS items(
  id INTEGER PRIMARY KEY, name TEXT NOT NULL, frame INTEGER NOT NULL, parent INTEGER, kind TEXT NOT NULL,
  path BLOB NOT NULL, member INTEGER, size INTEGER NOT NULL, signature TEXT NOT NULL, found INTEGER NOT NULL,
  status TEXT, reason TEXT, error TEXT, sha256 TEXT, width INTEGER, height INTEGER, time_s REAL,
  products INTEGER NOT NULL DEFAULT 0, opened TEXT, UNIQUE(name, frame));
CREATE INDEX IF NOT EXISTS by_parent ON items(parent) WHERE parent IS NOT NULL;
CREATE INDEX IF NOT EXISTS by_hash_found ON items(sha256, found, name) WHERE sha256 IS NOT NULL;
CREATE TABLE IF NOT EXISTS faces(
  item INTEGER NOT NULL, face INTEGER NOT NULL, box BLOB NOT NULL, landmarks BLOB NOT NULL, score REAL NOT NULL,
  probabilities BLOB NOT NULL, label TEXT NOT NULL, confidence REAL NOT NULL, uncertain INTEGER NOT NULL,
  roll REAL NOT NULL, sharpness REAL NOT NULL, reasons TEXT NOT NULL, PRIMARY KEY(item, face)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS thumbs(
  item INTEGER NOT NULL, face INTEGER NOT NULL, jpeg BLOB NOT NULL, PRIMARY KEY(item, face));
"""
# Whether a TIFF has pages is known after it was opened.
_KIND: Final = "CASE WHEN items.kind='pages' AND excluded.kind='file' THEN 'pages' ELSE excluded.kind END"
_UNCHANGED: Final = f"items.signature=excluded.signature AND items.path=excluded.path AND items.kind={_KIND}"
_UPSERT_INPUT: Final = f"""
INSERT INTO items(name, frame, kind, path, size, signature, found, status, reason, error)
VALUES(?, {STILL}, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT(name, frame) DO UPDATE SET kind={_KIND}, path=excluded.path, size=excluded.size,
  found=excluded.found, signature=excluded.signature, parent=NULL,
  sha256=IIF(excluded.status IS NULL AND ({_UNCHANGED} OR items.status IN ('ok', 'no_face')), items.sha256, NULL),
  status=COALESCE(excluded.status, CASE WHEN {_UNCHANGED} THEN items.status END),
  reason=IIF(excluded.status IS NULL, items.reason, excluded.reason),
  error=IIF(excluded.status IS NULL, items.error, excluded.error),
  width=IIF(excluded.status IS NULL, items.width, NULL), height=IIF(excluded.status IS NULL, items.height, NULL)
WHERE items.found != excluded.found OR items.path = excluded.path
"""
_UPSERT_CHILD: Final = """
INSERT INTO items(name, frame, parent, kind, path, member, size, signature, found, time_s, products)
VALUES(?, ?, ?, ?, ?, ?, ?, '', ?, ?, ?)
ON CONFLICT(name, frame) DO UPDATE SET parent=excluded.parent, kind=excluded.kind, path=excluded.path,
  member=excluded.member, size=excluded.size, found=excluded.found, time_s=excluded.time_s, status=NULL, sha256=NULL,
  products=items.products | excluded.products
RETURNING id
"""


class Journal(View):
    """The journal, for writing."""

    def __init__(self, out: Path) -> None:
        """Open or create it. Raises: sqlite3.Error."""
        super().__init__(out, writable=True)
        self._has_moved = False

    def _prepare(self) -> None:
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")  # a power failure loses at most the last images
        self._db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")  # readers find all of its tables, or none

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

    def put_facts(self, facts: dict[str, str]) -> None:
        """Store everything that the results depend on."""
        self.put("facts", json.dumps(facts))
        self.refresh()

    def keep_copy(self) -> Path:
        """Copy the journal to a new numbered file; returns its path. Raises: OSError, sqlite3.Error."""
        names = (self.path.with_name(f"journal.{number}.sqlite3") for number in itertools.count(1))
        kept = next(path for path in names if not path.exists())
        with atomic_path(kept) as part:
            self._db.execute("VACUUM INTO ?", (str(part),))
        return kept

    # The scan

    def scan(self, inputs: Iterable[Input], scanned: Callable[[int], None], *, new_run: bool = False) -> None:
        """Store the inputs of a scan as a new session; `scanned` is called with their number so far.

        Uses one transaction: if the scan fails or is killed, the inputs of the last session remain, and so do the
        results that `new_run` forgets. Raises: LabelingError.
        """
        before, self.session = self.session, self.session + 1
        count, iterator = 0, iter(inputs)
        try:
            with self._transaction():
                if new_run:
                    self._db.execute("UPDATE items SET status=NULL, reason=NULL, sha256=NULL, found=0, opened=NULL")
                while batch := list(itertools.islice(iterator, _BATCH)):
                    self._add(batch)
                    count += len(batch)
                    scanned(count)
                self._settle(before)
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
        if self._db.executemany(_UPSERT_INPUT, rows).rowcount == len(batch):
            return
        for item in batch:
            (other,) = self._db.execute("SELECT path FROM items WHERE name=? AND frame=-1", (item.name,)).fetchone()
            if other != item.path:
                raise SameName(item.name, other, item.path)

    def _settle(self, before: int) -> None:
        """Forget the results of changed inputs, and retry inputs that failed for a temporary reason."""
        now = self.session
        self._relabel(f"reason IN {TRANSIENT} AND kind NOT IN ('none', 'folder') AND found=?", [(now,)])
        # Members of a moved archive are read from its new place.
        self._db.execute(
            "UPDATE items SET path=p.path FROM items p WHERE items.parent=p.id AND p.found=? AND p.status IS NULL",
            (now,),
        )
        self._forget_members("SELECT id FROM items WHERE status IS NULL AND signature != COALESCE(opened, signature)")
        self._db.execute(
            "UPDATE items SET found=? WHERE found != 0 AND parent IN (SELECT id FROM items WHERE found=? AND "  # noqa: S608
            f"kind IN {CONTAINER_KINDS})",
            (now, now),
        )
        # Inputs in a folder that currently cannot be read keep their rows.
        unreadable = self._db.execute("SELECT name FROM items WHERE kind='folder' AND found=?", (now,)).fetchall()
        self._db.executemany(
            "UPDATE items SET found=? WHERE found=? AND name > ? AND name < ?",
            [(now, before, f"{name}/", f"{name}0") for (name,) in unreadable],
        )
        self._db.execute("DROP TABLE IF EXISTS temp.moved")
        self._db.execute("CREATE TEMP TABLE moved(sha256 TEXT, frame INTEGER, item INTEGER, size INTEGER)")
        self._db.execute(
            "INSERT INTO moved SELECT sha256, frame, id, size FROM items i WHERE sha256 IS NOT NULL AND "  # noqa: S608
            "CASE WHEN found IN (0, ?) THEN status IS NULL ELSE status IN ('ok', 'no_face') END AND "
            f"(kind NOT IN {CONTAINER_KINDS} OR parent IS NOT NULL) AND "
            "(found=0 OR NOT EXISTS (SELECT 1 FROM items p WHERE p.id=i.parent AND p.found=?))",
            (now, now),
        )
        self._db.execute("CREATE INDEX temp.moved_by_hash ON moved(sha256, frame, item)")
        self._db.execute("CREATE INDEX temp.moved_by_size ON moved(size, frame)")
        self._has_moved = self._db.execute("SELECT 1 FROM temp.moved LIMIT 1").fetchone() is not None
        for table in ("faces", "thumbs"):
            self._db.execute(
                f"DELETE FROM {table} WHERE item NOT IN (SELECT id FROM items WHERE status IN ('ok', 'no_face')) AND "  # noqa: S608
                "item NOT IN (SELECT item FROM temp.moved)"
            )

    def _forget_members(self, containers: str, values: tuple[int, ...] = ()) -> None:
        """Forget the images of archives and videos, given by a query; their rows are kept to remove written images."""
        self._db.execute(
            "UPDATE items SET sha256=IIF(status IN ('ok', 'no_face'), sha256, NULL), status=NULL, reason=NULL, found=0 "  # noqa: S608
            f"WHERE parent IN ({containers})",
            values,
        )

    def may_have_moved(self, item: Input) -> bool:
        """Whether an earlier input of the same size has a result that an unlabeled input may have."""
        sql = "SELECT 1 FROM temp.moved WHERE size=? AND frame=? LIMIT 1"
        return self._has_moved and self._db.execute(sql, (item.size, item.frame)).fetchone() is not None

    def earlier(self, item: Input, sha256: str) -> Result | None:
        """The result of a moved or renamed input with these bytes, whose written images, if needed, exist."""
        if not self._has_moved:
            return None
        sql = (
            "SELECT * FROM (SELECT m.item, i.found, i.products FROM temp.moved m JOIN items i ON i.id=m.item "
            "WHERE m.sha256=? AND m.frame=? AND {0} LIMIT 8)"
        )
        query = f"{sql.format('m.item=?')} UNION ALL {sql.format('m.item!=?')}"  # the row itself first
        values = (sha256, item.frame, item.row) * 2
        for row, session, on_disk in self._db.execute(query, values).fetchall():
            replaced = session in (0, self.session) and row != item.row  # results of another input of this run
            result = next(self._results("i.id=:row", filtered=False, row=row))
            exist = all(map(os.path.exists, self._paths(result.input.name, item.frame, len(result.faces), item.images)))
            if not replaced and on_disk & item.images == item.images and exist:
                faces = tuple(replace(face, thumb=self.thumb(row, face.index) or b"") for face in result.faces)
                return replace(result, status="ok" if faces else "no_face", faces=faces)
        return None

    def had_inputs(self, prefix: str) -> bool:
        """Whether the last session had inputs with this prefix."""
        last = int(self.get("session") or 0)
        sql = "SELECT 1 FROM items WHERE found=? AND substr(name, 1, ?)=? LIMIT 1"
        return self._db.execute(sql, (last, len(prefix), prefix)).fetchone() is not None

    def recheck(self) -> int:
        """Label files again whose hash has changed; returns their number."""
        rows = self._db.execute(
            "SELECT id, path, sha256 FROM items WHERE found=? AND parent IS NULL AND sha256 IS NOT NULL AND "
            "status IS NOT NULL",
            (self.session,),
        ).fetchall()
        changed = []
        for row, path, stored in rows:
            with contextlib.suppress(OSError):  # the workers will record the reason
                if file_sha256(path) == stored:
                    continue
            changed.append(row)
        with self._transaction():
            for row in changed:
                self._forget_members("?", (row,))
            self._relabel("id=?", [(row,) for row in changed])
        return len(changed)

    def retry(self, reason: str) -> int:
        """Label images again that failed for a reason; returns their number."""
        return self._relabel("reason=?", [(reason,)])

    def redraw(self, image: int) -> None:
        """Label images again for which an image of this kind was written; moved inputs, too."""
        self._relabel("products & ? AND kind != 'none'", [(image,)])
        self._db.execute("DELETE FROM temp.moved WHERE item IN (SELECT id FROM items WHERE products & ?)", (image,))

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
            "SELECT id, name, kind, path, size, products, "  # noqa: S608
            f"IIF(kind IN {CONTAINER_KINDS}, status IS NOT NULL AND NOT EXISTS "
            f"(SELECT 1 FROM items WHERE parent=i.id AND found != 0 AND {UNDONE}), NOT {UNDONE}) "
            "FROM items i WHERE found=:session AND frame=:frame AND parent IS NULL AND name > :last ORDER BY name "
            f"LIMIT {_PAGE}"
        )
        values: dict[str, Any] = {"session": self.session, "images": images, "frame": STILL, "last": ""}
        while rows := self._db.execute(sql, values).fetchall():
            for row, name, kind, path, size, on_disk, done in rows:
                yield Input(name, kind, path, size, row=row, images=images, on_disk=on_disk), bool(done)
            values["last"] = rows[-1][1]

    def is_done(self, child: Input) -> bool:
        """Whether an image of a container is labeled and written."""
        sql = f"SELECT 1 FROM items WHERE name=:name AND frame=:frame AND NOT {UNDONE}"  # noqa: S608
        values = {"name": child.name, "frame": child.frame, "images": child.images}
        return self._db.execute(sql, values).fetchone() is not None

    def progress(self) -> tuple[int, int]:
        """Number of known images of this session, and of labeled ones."""
        total, done = self._db.execute(
            "SELECT COUNT(*), COUNT(status) FROM items WHERE found=? AND kind NOT IN ('none', 'folder') AND "  # noqa: S608
            f"(kind NOT IN {CONTAINER_KINDS} OR parent IS NOT NULL)",
            (self.session,),
        ).fetchone()
        return total, done

    # Results

    def has_pages(self, item: Input) -> Input:
        """Record that a TIFF has several pages; they are labeled as its frames."""
        self._db.execute("UPDATE items SET kind='pages' WHERE id=?", (item.row,))
        return replace(item, kind="pages")

    def open_container(self, container: Input) -> None:
        """Store the signature of a container before its images are labeled."""
        self._db.execute("UPDATE items SET opened=signature WHERE id=?", (container.row,))

    def begin(self, batch: Sequence[Input]) -> list[Input]:
        """Mark images as being labeled and written; returns them with their rows.

        Raises: ForeignFile, if a file that no run has written is in the way.
        """
        begun = []
        with self._transaction():
            for item in batch:
                on_disk, row = item.on_disk, item.row
                if item.parent is not None:
                    sql = "SELECT products FROM items WHERE name=? AND frame=?"
                    (on_disk,) = self._db.execute(sql, (item.name, item.frame)).fetchone() or (0,)
                for path in self._paths(item.name, item.frame, 1, item.images & ~on_disk):
                    if os.path.lexists(path):
                        raise ForeignFile(foreign(path))
                if item.parent is None:
                    sql = "UPDATE items SET status=NULL, sha256=NULL, products=products | ? WHERE id=?"
                    self._db.execute(sql, (item.images, row))
                else:
                    values = (
                        item.name, item.frame, item.parent, item.kind, item.path, item.member, item.size,
                        self.session, item.time_s, item.images,
                    )  # fmt: skip
                    (row,) = self._db.execute(_UPSERT_CHILD, values).fetchall()[0]
                begun.append(replace(item, row=row, on_disk=on_disk))
        return begun

    def save(self, results: Iterable[Result]) -> None:
        """Store the results of a batch and their faces in one transaction."""
        results = list(results)
        rows = [
            (result.status, result.reason, result.error, result.sha256, result.width, result.height, result.input.row)
            for result in results
        ]
        faces = [(result.input.row, face) for result in results for face in result.faces]
        thumbs = [(row, face.index, face.thumb) for row, face in faces if face.thumb]
        with self._transaction():
            sql = "UPDATE items SET status=?, reason=?, error=?, sha256=?, width=?, height=? WHERE id=?"
            self._db.executemany(sql, rows)
            for table in ("faces", "thumbs"):
                self._db.executemany(f"DELETE FROM {table} WHERE item=?", [row[-1:] for row in rows])  # noqa: S608
            values = [
                (
                    row,
                    face.index,
                    struct.pack("<4d", *face.box),
                    face.landmarks_px.astype("<f4").tobytes(),
                    face.detection_score,
                    np.array(list(face.probabilities.values()), "<f4").tobytes(),
                    face.label,
                    float(face.confidence),
                    int(face.uncertain),
                    float(face.roll_degrees),
                    float(face.sharpness),
                    " ".join(face.reasons),
                )
                for row, face in faces
            ]
            self._db.executemany("INSERT INTO faces VALUES(?,?,?,?,?,?,?,?,?,?,?,?)", values)
            self._db.executemany("INSERT INTO thumbs VALUES(?,?,?)", thumbs)

    def close_container(self, container: Input, failure: Failure | None, sha256: str) -> None:
        """Record that a container was read to its end or up to a failure."""
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
                # an archive or a video that is gone, and has images without a result, is read anew if it comes back
                f"UPDATE items SET status=NULL WHERE found != :session AND id IN ({unlabeled})",  # noqa: S608
                f"DELETE FROM items WHERE parent IN (SELECT id FROM items WHERE {gone})",  # noqa: S608
                f"DELETE FROM items WHERE {gone}",  # noqa: S608
            ):
                self._db.execute(sql, {"session": self.session})
