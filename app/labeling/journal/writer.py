"""Journal for writing: inputs of the scan, results, and written files.

One thread commits images, each group in one transaction. Workers record files before they write them.
"""

import itertools
import json
import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from mien.app.inference.pipeline import LabeledFace
from mien.app.labeling.files import ForeignFile, LabelingError, foreign
from mien.app.labeling.journal.schema import CONTAINER_KINDS, Transaction, checksum, connect, journal_path
from mien.app.labeling.kinds import CONTAINERS
from mien.app.labeling.records import STILL, TRANSIENT, Failure, ImageRecord, Item, Source
from mien.data.atomic import atomic_path

_PAGE: Final = 512
_BATCH: Final = 2_000
_UNCHANGED: Final = "items.signature=excluded.signature AND items.path=excluded.path AND items.kind=excluded.kind"
_UPSERT_SOURCE: Final = f"""
INSERT INTO items(name, frame, kind, path, size, signature, found, status, reason, error)
VALUES(:name, -1, :kind, :path, :size, :signature, :found, :status, :reason, :error)
ON CONFLICT(name, frame) DO UPDATE SET kind=excluded.kind, path=excluded.path, size=excluded.size,
  found=excluded.found, signature=excluded.signature, parent=NULL,
  status=CASE WHEN excluded.status IS NOT NULL THEN excluded.status WHEN {_UNCHANGED} THEN items.status END,
  reason=CASE WHEN excluded.status IS NOT NULL THEN excluded.reason ELSE items.reason END,
  error=CASE WHEN excluded.status IS NOT NULL THEN excluded.error ELSE items.error END,
  checksum=CASE WHEN excluded.status IS NULL THEN items.checksum END
WHERE items.found != excluded.found OR items.path = excluded.path
"""  # constants
_UPSERT_CHILD: Final = """
INSERT INTO items(name, frame, parent, kind, path, member, size, signature, found, time_s)
VALUES(:name, :frame, :parent, :kind, :path, :member, :size, '', :found, :time_s)
ON CONFLICT(name, frame) DO UPDATE SET parent=excluded.parent, kind=excluded.kind, path=excluded.path,
  member=excluded.member, size=excluded.size, found=excluded.found, time_s=excluded.time_s
"""
_EARLIER: Final = re.compile(r"journal\.(\d+)\.sqlite3")


@dataclass(frozen=True, slots=True)
class Stored:
    """An item of the journal for the workers, with its row, and whether it is done."""

    row: int
    item: Item
    done: bool


class Journal:
    """Journal of one output folder. `read_only` connections see committed data."""

    def __init__(self, out: Path, *, read_only: bool = False) -> None:
        """Open or create the journal. Raises: sqlite3.Error."""
        self.out = out
        self.path = journal_path(out)
        self._db = connect(out, read_only=read_only)
        self._transaction = Transaction(self._db)
        try:
            self.session = int(self.get("session") or 0)
        except sqlite3.Error:  # such as a full disk; an unclosed connection would keep the folder busy
            self._db.close()
            raise

    def close(self) -> None:
        """Close the connection; the last one merges the write-ahead log into the file."""
        self._db.close()

    def get(self, key: str) -> str | None:
        """A value stored by `put`, or None."""
        row = self._db.execute("SELECT value FROM meta WHERE key=?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def put(self, key: str, value: str) -> None:
        """Store a value about the run, such as its settings."""
        with self._transaction:
            self._db.execute(
                "INSERT INTO meta VALUES(?, ?) ON CONFLICT(key) DO UPDATE SET value=excluded.value", (key, value)
            )

    def facts(self) -> dict[str, str]:
        """Facts that the results depend on: model, detector, threshold, ..."""
        facts: dict[str, str] = json.loads(self.get("facts") or "{}")
        return facts

    def keep_copy(self) -> Path:
        """Copy the journal to a new numbered file; returns its path. Raises: OSError, sqlite3.Error."""
        numbers = [int(match[1]) for path in self.path.parent.iterdir() if (match := _EARLIER.fullmatch(path.name))]
        kept = self.path.with_name(f"journal.{max(numbers, default=0) + 1}.sqlite3")
        with atomic_path(kept) as part:
            self._db.execute("VACUUM INTO ?", (str(part),))
        return kept

    # The scan

    def scan(self, sources: Iterable[Source], *, new_run: bool = False) -> Iterator[int]:
        """Store the inputs of a scan as a new session; yields their number so far.

        Uses one transaction: if the scan fails or is killed, the inputs of the last session remain, and so do the
        results that `new_run` deletes. Raises: LabelingError.
        """
        with self._transaction:
            self.session += 1
            try:
                if new_run:
                    for table in ("faces", "thumbs", "items"):
                        self._db.execute(f"DELETE FROM {table}")  # noqa: S608  # constants
                count = 0
                iterator = iter(sources)
                while batch := list(itertools.islice(iterator, _BATCH)):
                    self._add(batch)
                    count += len(batch)
                    yield count
                self._settle()
                self.put("session", str(self.session))
            except BaseException:
                self.session -= 1
                raise

    def _add(self, batch: list[Source]) -> None:
        rows = [_source_row(source, self.session) for source in batch]
        if self._db.executemany(_UPSERT_SOURCE, rows).rowcount == len(batch):
            return
        for row in rows:
            other = self._db.execute("SELECT path FROM items WHERE name=? AND frame=-1", (row["name"],)).fetchone()
            if other[0] != row["path"]:
                raise LabelingError(
                    f"two inputs have the name {row['name']}: {other[0]!r} and {row['path']!r}. Label them with two "
                    "output folders."
                )

    def _settle(self) -> None:
        """Delete the faces of changed inputs, and retry inputs that failed for a temporary reason."""
        now = {"now": self.session, "before": self.session - 1}
        transient = ", ".join(f"'{reason}'" for reason in TRANSIENT)
        self._db.execute(
            f"UPDATE items SET status=NULL WHERE reason IN ({transient}) AND kind NOT IN ('none', 'folder') "  # noqa: S608
            "AND found=:now",
            now,
        )
        self._db.execute(
            "DELETE FROM items WHERE parent IN (SELECT id FROM items WHERE status IS NULL AND signature != "
            "COALESCE(opened, signature))"
        )
        self._db.execute(
            "UPDATE items SET found=:now WHERE parent IN (SELECT id FROM items WHERE found=:now AND "  # noqa: S608
            f"kind IN {CONTAINER_KINDS} AND status IS NOT NULL)",
            now,
        )
        # Inputs in a folder that currently cannot be read keep their rows.
        self._db.execute(
            "UPDATE items SET found=:now WHERE found=:before AND EXISTS (SELECT 1 FROM items AS above WHERE "
            "above.kind='folder' AND above.found=:now AND items.name > above.name || '/' "
            "AND items.name < above.name || '0')",
            now,
        )
        for table in ("faces", "thumbs"):
            self._db.execute(
                f"DELETE FROM {table} WHERE item NOT IN (SELECT id FROM items WHERE status IN ('ok', 'no_face'))"  # noqa: S608
            )

    def is_own(self, name: str) -> bool:
        """Whether a file, named relative to the output folder, was written by a run."""
        return self._db.execute("SELECT 1 FROM written WHERE path=?", (name,)).fetchone() is not None

    def had_inputs(self, prefix: str) -> bool:
        """Whether the last session had inputs with this prefix."""
        last = int(self.get("session") or 0)
        sql = "SELECT 1 FROM items WHERE found=? AND substr(name, 1, ?)=? LIMIT 1"
        return self._db.execute(sql, (last, len(prefix), prefix)).fetchone() is not None

    # Work to do

    def sources(self, wanted_products: int) -> Iterator[Stored]:
        """Every input of this session, sorted by name; each page is read in one transaction."""
        last = ""
        while True:
            rows = self._db.execute(
                "SELECT id, name, kind, path, member, size, status, products FROM items WHERE found=? AND frame=? AND "
                "parent IS NULL AND name > ? ORDER BY name LIMIT ?",
                (self.session, STILL, last, _PAGE),
            ).fetchall()
            for row, name, kind, path, member, size, status, products in rows:
                item = Item(name, kind, path, member, size, products=products | wanted_products)
                # products of a container are those of its images, see lacks_products
                done = status is not None if kind in CONTAINERS else _is_done(status, products, wanted_products)
                yield Stored(row, item, done)
            if len(rows) < _PAGE:
                return
            last = rows[-1][1]

    def child_products(self, name: str, frame: int, wanted_products: int) -> int | None:
        """Products that are missing for an image of a container; None if it is done."""
        row = self._db.execute("SELECT status, products FROM items WHERE name=? AND frame=?", (name, frame)).fetchone()
        if row is None:
            return wanted_products
        return None if _is_done(row[0], row[1], wanted_products) else row[1] | wanted_products

    def lacks_products(self, container: int, wanted_products: int) -> bool:
        """Whether a product is missing for an image of a container."""
        sql = "SELECT 1 FROM items WHERE parent=? AND status IN ('ok', 'no_face') AND products & ? != ? LIMIT 1"
        return self._db.execute(sql, (container, wanted_products, wanted_products)).fetchone() is not None

    def counts(self) -> tuple[int, int]:
        """Number of known images of this session, and of labeled ones."""
        total, done = self._db.execute(
            "SELECT COUNT(*), COUNT(status) FROM items WHERE found=? AND kind NOT IN ('none', 'folder') AND "  # noqa: S608
            f"(kind NOT IN {CONTAINER_KINDS} OR parent IS NOT NULL)",
            (self.session,),
        ).fetchone()
        return total, done

    def retry(self, reason: str) -> int:
        """Retry images that failed for a reason; returns their number."""
        with self._transaction:
            self._db.execute(
                "UPDATE items SET status=NULL WHERE id IN (SELECT parent FROM items WHERE reason=? AND parent IS NOT "
                "NULL)",
                (reason,),
            )
            return self._db.execute("UPDATE items SET status=NULL WHERE reason=?", (reason,)).rowcount

    def forget_products(self, products: int, rows: Iterable[int] | None = None) -> None:
        """Mark these written images, of all inputs or of some rows, as missing, so that they are written again."""
        with self._transaction:
            if rows is None:
                self._db.execute("UPDATE items SET products=products & ~?", (products,))
            else:
                sql = "UPDATE items SET products=products & ~? WHERE id=?"
                self._db.executemany(sql, ((products, row) for row in rows))

    # Results

    def commit(self, parent: int | None, records: Iterable[ImageRecord]) -> None:
        """Store a group of images and their faces in one transaction."""
        with self._transaction:
            for record in records:
                self._store(parent, record)

    def _store(self, parent: int | None, record: ImageRecord) -> None:
        item = record.item
        if parent is not None:
            values = {"parent": parent, "found": self.session, "time_s": item.time_s, "member": item.member}
            shared = {"name": item.name, "frame": item.frame, "kind": item.kind, "path": item.path, "size": item.size}
            self._db.execute(_UPSERT_CHILD, values | shared)
        failure = record.failure or Failure("", "")
        result = (
            record.status, failure.reason or None, failure.message or None, record.sha256 or None,
            record.width or None, record.height or None,
        )  # fmt: skip
        row = self._db.execute(
            "UPDATE items SET status=?, reason=?, error=?, sha256=?, width=?, height=?, products=?, checksum=? "
            "WHERE name=? AND frame=? RETURNING id",
            (*result, record.products, checksum(*result, len(record.faces)), item.name, item.frame),
        ).fetchone()[0]
        self._db.execute("DELETE FROM faces WHERE item=?", (row,))
        self._db.execute("DELETE FROM thumbs WHERE item=?", (row,))
        self._db.executemany(
            "INSERT INTO faces VALUES(?,?,?,?,?,?,?,?,?,?,?,?)",
            [_face_row(row, number, face) for number, face in enumerate(record.faces)],
        )
        thumbs = [
            (row, number, face.thumb, checksum(face.thumb)) for number, face in enumerate(record.faces) if face.thumb
        ]
        self._db.executemany("INSERT INTO thumbs VALUES(?,?,?,?)", thumbs)

    def open_container(self, row: int) -> None:
        """Store the signature of a container before its images are labeled."""
        with self._transaction:
            self._db.execute("UPDATE items SET opened=signature WHERE id=?", (row,))

    def close_container(self, row: int, failure: Failure | None, sha256: str) -> None:
        """Record that a container was read to its end or up to a failure."""
        status, reason, error = (
            ("ok", None, None) if failure is None else (failure.status, failure.reason, failure.message)
        )
        result = (status, reason, error, sha256 or None, None, None)
        with self._transaction:
            self._db.execute(
                "UPDATE items SET status=?, reason=?, error=?, sha256=?, width=?, height=?, checksum=? WHERE id=?",
                (*result, checksum(*result, 0), row),
            )
            self._db.execute("UPDATE items SET found=? WHERE parent=? AND status IS NOT NULL", (self.session, row))

    def recheck(self, digest: Callable[[str], str]) -> int:
        """Mark files whose hash has changed as unlabeled; returns their number."""
        rows = self._db.execute(
            "SELECT id, path, sha256 FROM items WHERE found=? AND parent IS NULL AND sha256 IS NOT NULL AND "
            "status IS NOT NULL",
            (self.session,),
        ).fetchall()
        changed = []
        for row, path, stored in rows:
            try:
                if digest(os.fsdecode(path)) == stored:
                    continue
            except OSError:
                pass  # the workers will record the reason
            changed.append((row,))
        with self._transaction:
            self._db.executemany("DELETE FROM items WHERE parent=?", changed)
            self._db.executemany("UPDATE items SET status=NULL WHERE id=?", changed)
        return len(changed)

    # Written files

    def claim(self, owner: str, names: Iterable[str]) -> None:
        """Record files, relative to the output folder, before they are written.

        Raises: ForeignFile, if a file exists that was not written by a run.
        """
        with self._transaction:
            for name in names:
                if not self.is_own(name) and os.path.lexists(self.out / name):
                    raise ForeignFile(foreign(self.out / name))
                self._db.execute("INSERT OR IGNORE INTO written VALUES(?, ?)", (name, owner))

    def files(self) -> Iterator[str]:
        """All recorded files."""
        for row in self._db.execute("SELECT path FROM written"):
            yield row[0]

    def stale(self, owner: str, names: Iterable[str]) -> list[str]:
        """Recorded files of an owner except `names`."""
        self._db.execute("CREATE TEMP TABLE IF NOT EXISTS current(path TEXT PRIMARY KEY) WITHOUT ROWID")
        with self._transaction:
            self._db.execute("DELETE FROM current")
            self._db.executemany("INSERT OR IGNORE INTO current VALUES(?)", ((name,) for name in names))
            rows = self._db.execute(
                "SELECT path FROM written WHERE owner=? AND path NOT IN (SELECT path FROM current)", (owner,)
            ).fetchall()
        return [row[0] for row in rows]

    def forget_absent_products(self) -> None:
        """Mark images of removed inputs as missing, so that they are written again if the inputs return."""
        with self._transaction:
            self._db.execute("UPDATE items SET products=0 WHERE found != ? AND products != 0", (self.session,))

    def disown(self, names: Iterable[str]) -> None:
        """Forget files that were removed."""
        with self._transaction:
            self._db.executemany("DELETE FROM written WHERE path=?", [(name,) for name in names])


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
        "size": source.size,
        "signature": source.signature,
        "found": session,
        "status": failure.status if failure else None,
        "reason": failure.reason if failure else None,
        "error": failure.message if failure else None,
    }


def _face_row(item: int, number: int, face: LabeledFace) -> tuple[object, ...]:
    values = (
        number,
        np.asarray(face.box_px, "<f8").tobytes(),
        np.asarray(face.landmarks_px, "<f4").tobytes(),
        float(face.score),
        np.asarray(face.probabilities, "<f4").tobytes(),
        face.label,
        float(face.confidence),
        int(face.uncertain),
        float(face.roll_degrees),
        float(face.sharpness),
    )
    return (item, *values, checksum(*values))
