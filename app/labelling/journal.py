"""What has been done so far? A SQLite file beside the output, in write-ahead mode: a kill loses the last few pictures.

One thread writes. A group of pictures is one transaction, so it is there whole or not at all.
"""

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from app.labelling.files import STATE_DIR
from app.labelling.records import STILL, TRANSIENT, FaceRecord, Failure, Item, PictureRecord, Source

JOURNAL_NAME: Final = "journal.sqlite3"
_VERSION: Final = "1"
_PAGE: Final = 512
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS items(
  id INTEGER PRIMARY KEY, name TEXT NOT NULL, frame INTEGER NOT NULL, parent INTEGER, kind TEXT NOT NULL,
  path BLOB NOT NULL, member INTEGER, size INTEGER NOT NULL, signature TEXT NOT NULL, found INTEGER NOT NULL,
  status TEXT, reason TEXT, error TEXT, sha256 TEXT, width INTEGER, height INTEGER, time_s REAL,
  products INTEGER NOT NULL DEFAULT 0, UNIQUE(name, frame));
CREATE INDEX IF NOT EXISTS by_parent ON items(parent) WHERE parent IS NOT NULL;
CREATE TABLE IF NOT EXISTS faces(
  item INTEGER NOT NULL, face INTEGER NOT NULL, box BLOB NOT NULL, landmarks BLOB NOT NULL, score REAL NOT NULL,
  probabilities BLOB NOT NULL, label TEXT NOT NULL, confidence REAL NOT NULL, uncertain INTEGER NOT NULL,
  roll REAL NOT NULL, sharpness REAL NOT NULL, PRIMARY KEY(item, face)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS thumbs(
  item INTEGER NOT NULL, face INTEGER NOT NULL, jpeg BLOB NOT NULL, PRIMARY KEY(item, face));
"""
_UPSERT_SOURCE: Final = """
INSERT INTO items(name, frame, kind, path, member, size, signature, found, status, reason, error)
VALUES(:name, -1, :kind, :path, :member, :size, :signature, :found, :status, :reason, :error)
ON CONFLICT(name, frame) DO UPDATE SET kind=excluded.kind, path=excluded.path, member=excluded.member,
  size=excluded.size, found=excluded.found, signature=excluded.signature, parent=NULL,
  status=CASE WHEN excluded.status IS NOT NULL THEN excluded.status
    WHEN items.signature=excluded.signature AND items.path=excluded.path AND items.kind=excluded.kind THEN items.status
    END,
  reason=CASE WHEN excluded.status IS NOT NULL THEN excluded.reason ELSE items.reason END,
  error=CASE WHEN excluded.status IS NOT NULL THEN excluded.error ELSE items.error END
"""
_UPSERT_CHILD: Final = """
INSERT INTO items(name, frame, parent, kind, path, member, size, signature, found, time_s)
VALUES(:name, :frame, :parent, :kind, :path, :member, :size, '', :found, :time_s)
ON CONFLICT(name, frame) DO UPDATE SET parent=excluded.parent, kind=excluded.kind, path=excluded.path,
  member=excluded.member, size=excluded.size, found=excluded.found, time_s=excluded.time_s
"""


@dataclass(frozen=True, slots=True)
class Stored:
    """One row of the journal on the way to the workers: the item, its row, and whether it is done."""

    row: int
    item: Item
    done: bool


class Journal:
    """The journal of one output folder; `read_only` connections see what the writer has committed."""

    def __init__(self, out: Path, *, read_only: bool = False) -> None:
        """Open or create the journal. Raises: sqlite3.Error."""
        self.path = out / STATE_DIR / JOURNAL_NAME
        mode = "ro" if read_only else "rwc"
        address = f"{self.path.absolute().as_uri()}?mode={mode}"
        self._db = sqlite3.connect(address, uri=True, isolation_level=None, timeout=30.0, check_same_thread=False)
        if not read_only:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(_SCHEMA)
            self._db.execute("INSERT OR IGNORE INTO meta VALUES('version', ?)", (_VERSION,))
        self.session = int(self.get("session") or 0)

    def close(self) -> None:
        """Close the connection; the last one folds the write-ahead log into the file."""
        self._db.close()

    def get(self, key: str) -> str | None:
        """A value that `put` has stored, or None."""
        row = self._db.execute("SELECT value FROM meta WHERE key=?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def put(self, key: str, value: str) -> None:
        """Store a value for the whole output: the run's settings and identity."""
        self._db.execute(
            "INSERT INTO meta VALUES(?, ?) ON CONFLICT(key) DO UPDATE SET value=excluded.value", (key, value)
        )

    def facts(self) -> dict[str, str]:
        """What the run was made with: model, detector, threshold, ..."""
        facts: dict[str, str] = json.loads(self.get("facts") or "{}")
        return facts

    # The scan

    def begin_session(self) -> None:
        """Number this run of the program; inputs that the scan does not meet keep an older number."""
        self.session += 1
        self.put("session", str(self.session))

    def add_sources(self, sources: Iterable[Source]) -> Iterator[int]:
        """Store what the scan finds, 2,000 at a time; yields how many there are so far."""
        count = 0
        batch: list[Source] = []
        for source in sources:
            batch.append(source)
            if len(batch) == 2000:
                count += self._add(batch)
                batch = []
                yield count
        count += self._add(batch)
        yield count

    def _add(self, batch: list[Source]) -> int:
        with self._transaction():
            self._db.executemany(_UPSERT_SOURCE, [_source_row(source, self.session) for source in batch])
        return len(batch)

    def settle(self) -> None:
        """After the scan: forget the faces of what changed, and try again what failed for a reason that may pass."""
        transient = ", ".join(f"'{reason}'" for reason in TRANSIENT)
        with self._transaction():
            self._db.execute(
                f"UPDATE items SET status=NULL WHERE reason IN ({transient}) AND kind != 'none' AND found=?",  # noqa: S608
                (self.session,),
            )
            self._db.execute(
                "DELETE FROM items WHERE parent IN (SELECT id FROM items WHERE status IS NULL AND signature != "
                "COALESCE((SELECT value FROM meta WHERE key='opened:' || items.id), signature))"
            )
            self._db.execute(
                "UPDATE items SET found=:now WHERE parent IN (SELECT id FROM items WHERE found=:now AND "
                "kind IN ('zip', 'tar', 'video') AND status IS NOT NULL)",
                {"now": self.session},
            )
            for table in ("faces", "thumbs"):
                self._db.execute(
                    f"DELETE FROM {table} WHERE item NOT IN (SELECT id FROM items WHERE status IS NOT NULL)"  # noqa: S608
                )

    # What is to be done

    def sources(self, wanted_products: int) -> Iterator[Stored]:
        """Every input of this session in the order of names; pages of a reading transaction each."""
        last = ""
        while True:
            rows = self._db.execute(
                "SELECT id, name, kind, path, member, size, status, products FROM items WHERE found=? AND frame=? AND "
                "parent IS NULL AND name > ? ORDER BY name LIMIT ?",
                (self.session, STILL, last, _PAGE),
            ).fetchall()
            for row, name, kind, path, member, size, status, products in rows:
                item = Item(name, kind, path, member, size, products=products | wanted_products)
                yield Stored(row, item, _is_done(status, products, wanted_products))
            if len(rows) < _PAGE:
                return
            last = rows[-1][1]

    def child_products(self, name: str, frame: int, wanted_products: int) -> int | None:
        """Products that a picture of a container still has to be labelled for; None where it is done."""
        row = self._db.execute("SELECT status, products FROM items WHERE name=? AND frame=?", (name, frame)).fetchone()
        if row is None:
            return wanted_products
        return None if _is_done(row[0], row[1], wanted_products) else row[1] | wanted_products

    def counts(self) -> tuple[int, int]:
        """Pictures of this session that are known, and those of them that are done."""
        total, done = self._db.execute(
            "SELECT COUNT(*), COUNT(status) FROM items WHERE found=? AND kind != 'none' AND "
            "(kind NOT IN ('zip', 'tar', 'video') OR parent IS NOT NULL)",
            (self.session,),
        ).fetchone()
        return total, done

    # What has been done

    def commit(self, parent: int | None, records: Iterable[PictureRecord]) -> None:
        """Store a group of pictures and their faces, whole or not at all."""
        with self._transaction():
            for record in records:
                self._store(parent, record)

    def _store(self, parent: int | None, record: PictureRecord) -> None:
        item = record.item
        if parent is not None:
            values = {"parent": parent, "found": self.session, "time_s": item.time_s, "member": item.member}
            shared = {"name": item.name, "frame": item.frame, "kind": item.kind, "path": item.path, "size": item.size}
            self._db.execute(_UPSERT_CHILD, values | shared)
        failure = record.failure or Failure("", "")
        row = self._db.execute(
            "UPDATE items SET status=?, reason=?, error=?, sha256=?, width=?, height=?, products=? "
            "WHERE name=? AND frame=? RETURNING id",
            (
                record.status, failure.reason or None, failure.message or None, record.sha256 or None,
                record.width or None, record.height or None, record.products, item.name, item.frame,
            ),
        ).fetchone()[0]  # fmt: skip
        self._db.execute("DELETE FROM faces WHERE item=?", (row,))
        self._db.execute("DELETE FROM thumbs WHERE item=?", (row,))
        self._db.executemany(
            "INSERT INTO faces VALUES(?,?,?,?,?,?,?,?,?,?,?)",
            [_face_row(row, number, face) for number, face in enumerate(record.faces)],
        )
        thumbs = [(row, number, face.thumb) for number, face in enumerate(record.faces) if face.thumb]
        self._db.executemany("INSERT INTO thumbs VALUES(?,?,?)", thumbs)

    def open_container(self, row: int) -> None:
        """Remember with which signature a container's pictures are being labelled."""
        self._db.execute(
            "INSERT INTO meta SELECT 'opened:' || id, signature FROM items WHERE id=:row "
            "ON CONFLICT(key) DO UPDATE SET value=excluded.value",
            {"row": row},
        )

    def close_container(self, row: int, failure: Failure | None) -> None:
        """A container has been read to its end, or as far as it goes."""
        with self._transaction():
            status = "ok" if failure is None else failure.status
            reason, error = (None, None) if failure is None else (failure.reason, failure.message)
            self._db.execute("UPDATE items SET status=?, reason=?, error=? WHERE id=?", (status, reason, error, row))
            self._db.execute("UPDATE items SET found=? WHERE parent=? AND status IS NOT NULL", (self.session, row))

    def forget_results(self, row: int) -> None:
        """A file was found changed although its size and time are not."""
        self._db.execute("UPDATE items SET status=NULL WHERE id=?", (row,))

    def hashes(self) -> Iterator[tuple[int, str, str]]:
        """Row, path and stored hash of every plain file that is done."""
        rows = self._db.execute(
            "SELECT id, path, sha256 FROM items WHERE found=? AND kind='file' AND parent IS NULL AND "
            "sha256 IS NOT NULL AND status IS NOT NULL",
            (self.session,),
        ).fetchall()
        for row, path, sha256 in rows:
            yield row, os.fsdecode(path), sha256

    def query(self, sql: str, parameters: Iterable[object] = ()) -> sqlite3.Cursor:
        """Read with a statement of the caller's."""
        return self._db.execute(sql, tuple(parameters))

    def _transaction(self) -> "_Transaction":
        return _Transaction(self._db)


class _Transaction:
    """BEGIN IMMEDIATE ... COMMIT, or ROLLBACK when the block raises."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            try:
                self._db.execute("COMMIT")
            except sqlite3.OperationalError:
                self._roll_back()
                raise
        else:
            self._roll_back()

    def _roll_back(self) -> None:
        if self._db.in_transaction:  # SQLite has rolled back by itself after "disk full"
            self._db.execute("ROLLBACK")


def _is_done(status: str | None, products: int, wanted: int) -> bool:
    if status is None:
        return False
    return status in ("error", "skipped") or products & wanted == wanted


def _source_row(source: Source, session: int) -> dict[str, object]:
    failure = source.failure
    return {
        "name": source.name,
        "kind": source.kind,
        "path": source.path,
        "member": source.member,
        "size": source.size,
        "signature": source.signature,
        "found": session,
        "status": failure.status if failure else None,
        "reason": failure.reason if failure else None,
        "error": failure.message if failure else None,
    }


def _face_row(item: int, number: int, face: FaceRecord) -> tuple[object, ...]:
    return (
        item,
        number,
        np.asarray(face.box_px, "<f8").tobytes(),
        np.asarray(face.landmarks_px, "<f4").tobytes(),
        face.score,
        np.asarray(face.probabilities, "<f4").tobytes(),
        face.label,
        face.confidence,
        int(face.uncertain),
        face.roll_degrees,
        face.sharpness,
    )
