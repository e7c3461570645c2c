"""Tables of the journal: their SQL, and faces as rows."""

import os
import struct
from pathlib import PurePath
from typing import Any, Final
from urllib.parse import quote

import numpy as np

from mien.app.inference.records import Box, Face, Landmarks
from mien.app.labeling.records import STILL

VERSION: Final = 4  # of the tables
# An image that is not labeled, or lacks a copy or crop of those to write, the bit mask `:images`.
REMAINING: Final = "(status IS NULL OR status IN ('ok', 'no_face') AND products & :images != :images)"
# Whether an input `i` is labeled and has these images: of a video, all of its frames.
DONE: Final = (
    f"IIF(i.kind='video', i.status IS NOT NULL AND NOT EXISTS "  # noqa: S608  # constants
    f"(SELECT 1 FROM items WHERE parent=i.id AND found != 0 AND {REMAINING}), NOT {REMAINING})"
)
BOX: Final = struct.Struct("<4d")
COLUMNS: Final = (
    "i.id, i.name, i.kind, i.path, i.size, i.parent, i.frame, i.time_s, i.scene, "
    "i.status, i.reason, i.error, i.sha256, i.width, i.height, i.notes, "
    "f.face, f.box, f.landmarks, f.score, f.probabilities, f.label, f.confidence, f.uncertain, f.roll, f.sharpness, "
    "f.reasons, f.agreement"
)
FACE_COLUMN: Final = 16  # first column of a face
# A video has its own row only if it failed as a whole.
IMAGES: Final = (
    "i.found=:session AND i.status IS NOT NULL AND (i.kind!='video' OR i.parent IS NOT NULL OR "
    "i.status IN ('error', 'skipped'))"
)
# found: session of the last scan that found the input, 0 for rows that are only kept to remove their images;
# opened: signature of a video when it was last opened; products: images that may exist on the disk.
SCHEMA: Final = f"""
PRAGMA user_version={VERSION};
CREATE TABLE IF NOT EXISTS meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS items(
  id INTEGER PRIMARY KEY, name TEXT NOT NULL, frame INTEGER NOT NULL, parent INTEGER, kind TEXT NOT NULL,
  path BLOB NOT NULL, size INTEGER NOT NULL, signature TEXT NOT NULL, found INTEGER NOT NULL,
  status TEXT, reason TEXT, error TEXT, sha256 TEXT, width INTEGER, height INTEGER, time_s REAL,
  scene INTEGER NOT NULL DEFAULT 0, products INTEGER NOT NULL DEFAULT 0, opened TEXT,
  notes TEXT NOT NULL DEFAULT '', UNIQUE(name, frame));
CREATE INDEX IF NOT EXISTS by_parent ON items(parent) WHERE parent IS NOT NULL;
CREATE TABLE IF NOT EXISTS faces(
  item INTEGER NOT NULL, face INTEGER NOT NULL, box BLOB NOT NULL, landmarks BLOB NOT NULL, score REAL NOT NULL,
  probabilities BLOB NOT NULL, label TEXT NOT NULL, confidence REAL NOT NULL, uncertain INTEGER NOT NULL,
  roll REAL NOT NULL, sharpness REAL NOT NULL, reasons TEXT NOT NULL, agreement REAL,
  PRIMARY KEY(item, face)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS thumbs(
  item INTEGER NOT NULL, face INTEGER NOT NULL, jpeg BLOB NOT NULL, PRIMARY KEY(item, face));
"""
_UNCHANGED: Final = "items.signature=excluded.signature AND items.path=excluded.path AND items.kind=excluded.kind"
UPSERT_INPUT: Final = f"""
INSERT INTO items(name, frame, kind, path, size, signature, found, status, reason, error)
VALUES(?, {STILL}, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT(name, frame) DO UPDATE SET kind=excluded.kind, path=excluded.path, size=excluded.size,
  found=excluded.found, signature=excluded.signature, parent=NULL,
  sha256=IIF(excluded.status IS NULL AND {_UNCHANGED}, items.sha256, NULL),
  status=COALESCE(excluded.status, CASE WHEN {_UNCHANGED} THEN items.status END),
  reason=IIF(excluded.status IS NULL, items.reason, excluded.reason),
  error=IIF(excluded.status IS NULL, items.error, excluded.error),
  width=IIF(excluded.status IS NULL, items.width, NULL), height=IIF(excluded.status IS NULL, items.height, NULL),
  notes=IIF(excluded.status IS NULL, items.notes, '')
WHERE items.found != excluded.found OR items.path = excluded.path
"""
UPSERT_CHILD: Final = """
INSERT INTO items(name, frame, parent, kind, path, size, signature, found, time_s, scene, products)
VALUES(?, ?, ?, ?, ?, ?, '', ?, ?, ?, ?)
ON CONFLICT(name, frame) DO UPDATE SET parent=excluded.parent, kind=excluded.kind, path=excluded.path,
  size=excluded.size, found=excluded.found, time_s=excluded.time_s, scene=excluded.scene,
  status=NULL, sha256=NULL, products=excluded.products
RETURNING id
"""


def pack_face(row: int | None, face: Face) -> tuple[Any, ...]:
    """A row of `faces` for a face of the image in a row of `items`."""
    return (
        row,
        face.index,
        BOX.pack(*face.box),
        face.landmarks_px.astype("<f4").tobytes(),
        face.detection_score,
        np.array(list(face.probabilities.values()), "<f4").tobytes(),
        face.label,
        float(face.confidence),
        int(face.uncertain),
        float(face.roll_degrees),
        float(face.sharpness),
        " ".join(face.reasons),
        face.agreement,
    )


def unpack_face(row: tuple[Any, ...], labels: tuple[str, ...]) -> Face:
    """The face of the last columns of `COLUMNS`, by a model with these labels."""
    number, box, landmarks, score, probabilities, label, confidence, uncertain, roll, sharpness, reasons, agreement = (
        row
    )
    return Face(
        box=Box(*BOX.unpack(box)),
        landmarks=Landmarks.of(np.frombuffer(landmarks, "<f4").reshape(5, 2)),
        detection_score=score,
        probabilities=dict(zip(labels, np.frombuffer(probabilities, "<f4").tolist(), strict=True)),
        label=label,
        confidence=confidence,
        uncertain=bool(uncertain),
        roll_degrees=roll,
        reasons=tuple(reasons.split()),
        index=number,
        sharpness=sharpness,
        agreement=agreement,
    )


def sqlite_uri(path: PurePath) -> str:
    """A full path as a URI for SQLite: `file:///home/a`, `file:///C:/a`, or, on a share, `file:////nas/share/a`.

    `Path.as_uri` has the server of a share as the authority, `file://nas/share/a`, which SQLite refuses.
    """
    posix = path.as_posix()
    return f"file://{'' if posix.startswith('/') else '/'}{quote(os.fsencode(posix))}"
