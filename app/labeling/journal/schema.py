"""Tables of the journal, its transactions, and the checksums of its rows.

A SQLite file in write-ahead mode: a kill loses at most the last few images. Rows with results have a checksum, because
a flipped bit could otherwise change a probability.
"""

import sqlite3
import threading
import zlib
from pathlib import Path
from typing import Final

from mien.app.labeling.files import STATE_DIR
from mien.app.labeling.kinds import CONTAINERS

JOURNAL_NAME: Final = "journal.sqlite3"
CONTAINER_KINDS: Final = f"({', '.join(map(repr, CONTAINERS))})"  # for `kind IN`
SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS items(
  id INTEGER PRIMARY KEY, name TEXT NOT NULL, frame INTEGER NOT NULL, parent INTEGER, kind TEXT NOT NULL,
  path BLOB NOT NULL, member INTEGER, size INTEGER NOT NULL, signature TEXT NOT NULL, found INTEGER NOT NULL,
  status TEXT, reason TEXT, error TEXT, sha256 TEXT, width INTEGER, height INTEGER, time_s REAL, checksum INTEGER,
  products INTEGER NOT NULL DEFAULT 0, opened TEXT, UNIQUE(name, frame));
CREATE INDEX IF NOT EXISTS by_parent ON items(parent) WHERE parent IS NOT NULL;
CREATE INDEX IF NOT EXISTS by_hash ON items(sha256, name) WHERE sha256 IS NOT NULL;
CREATE TABLE IF NOT EXISTS faces(
  item INTEGER NOT NULL, face INTEGER NOT NULL, box BLOB NOT NULL, landmarks BLOB NOT NULL, score REAL NOT NULL,
  probabilities BLOB NOT NULL, label TEXT NOT NULL, confidence REAL NOT NULL, uncertain INTEGER NOT NULL,
  roll REAL NOT NULL, sharpness REAL NOT NULL, checksum INTEGER NOT NULL, PRIMARY KEY(item, face)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS thumbs(
  item INTEGER NOT NULL, face INTEGER NOT NULL, jpeg BLOB NOT NULL, checksum INTEGER NOT NULL, PRIMARY KEY(item, face));
CREATE TABLE IF NOT EXISTS written(path TEXT PRIMARY KEY, owner TEXT NOT NULL) WITHOUT ROWID;
"""


def journal_path(out: Path) -> Path:
    """Path of the journal of an output folder."""
    return out / STATE_DIR / JOURNAL_NAME


def connect(out: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open the journal, creating it unless `read_only`. Raises: sqlite3.Error."""
    address = f"{journal_path(out).absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
    connection = sqlite3.connect(address, uri=True, isolation_level=None, timeout=30.0, check_same_thread=False)
    try:
        if not read_only:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.executescript(SCHEMA)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def checksum(*values: object) -> int:
    """CRC-32 of the values of a row as returned by SQLite."""
    return zlib.crc32(repr(values).encode("utf-8", "backslashreplace"))


class Transaction:
    """BEGIN IMMEDIATE ... COMMIT, or ROLLBACK if the block raises; one thread at a time."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._lock = threading.RLock()
        self._depth = 0

    def __enter__(self) -> None:
        self._lock.acquire()
        try:
            if self._depth == 0:
                self._db.execute("BEGIN IMMEDIATE")
            self._depth += 1
        except BaseException:
            self._lock.release()
            raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._depth -= 1
        try:
            if self._depth:
                return
            if kind is not None:
                self._roll_back()
                return
            try:
                self._db.execute("COMMIT")
            except sqlite3.OperationalError:
                self._roll_back()
                raise
        finally:
            self._lock.release()

    def _roll_back(self) -> None:
        if self._db.in_transaction:  # SQLite rolls back itself after "disk full"
            self._db.execute("ROLLBACK")
