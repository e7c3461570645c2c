"""Partitions: how many machines write one table, each input's rows exactly once.

A partition is a few hundred inputs that are neighbors by name. Its rows are `labels/part-KEY.parquet` and
`files/part-KEY.parquet`, both in the shared output folder; KEY is a digest of its inputs, so that whoever labels it,
and however often, writes the same two names.

Commit protocol:

1. The driver holds the folder's lock and writes the number of its run into `.mien/ray-run`. It keeps the partitions
   whose inputs are as they were, removes what else is there, and writes a plan for each partition that is missing.
2. A worker writes both tables under names of its own into `.mien/part`, and synchronizes them to the disk. It looks
   whether the run is still the one it was started for, then renames `labels`, then `files`. The second renaming is the
   commit: the footer of `files/part-KEY.parquet` lists the partition's inputs with size and time.
3. A worker that is killed leaves nothing, or a table of labels that no table of files belongs to. Its partition is
   given to another, which replaces that table, or finds the partition committed and leaves it.
4. The same command reads the footers again: inputs in a committed partition are done. A table of labels without its
   table of files is removed. To undo a partition, `files` is removed first.
5. At the end the driver counts: every input is in exactly one committed partition, or the run says that it is not.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from app.labeling.columns import FACE_COLUMNS, FILE_COLUMNS, Column, Row, face_rows, file_rows
from app.labeling.files import STATE_DIR, ForeignFile, LabelingError, disk_errors, foreign, parts_dir
from app.labeling.journal import View
from app.labeling.outputs.parquet import write_table
from app.labeling.records import Failure, Source
from data.atomic import write_atomic

LABELS_DIR: Final = "labels"
FILES_DIR: Final = "files"
_PLANS: Final = "plans"
_RUN: Final = "ray-run"
_METADATA: Final = b"mien"
_OWNER: Final = b"mien-partition"
_BATCH: Final = 2_000


@dataclass(frozen=True, slots=True)
class Written:
    """What the footer of a committed partition says: its inputs, its run, what became of its images.

    inputs: name and signature; again: some input failed for a reason that may have passed; seconds: of one worker.
    """

    key: str
    inputs: tuple[tuple[str, str], ...]
    facts: dict[str, str]
    statuses: dict[str, int] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    errors: tuple[tuple[str, str, str], ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    again: bool = False

    def encode(self) -> bytes:
        """As JSON, for the footer."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__}).encode()

    @classmethod
    def decode(cls, raw: bytes) -> "Written":
        """From a footer. Raises: ValueError, KeyError, TypeError, for what this program has not written."""
        values: dict[str, Any] = json.loads(raw)
        values["inputs"] = tuple((str(name), str(signature)) for name, signature in values["inputs"])
        values["errors"] = tuple(tuple(error) for error in values["errors"])
        return cls(**values)


class AnotherRun(LabelingError):
    """The output folder now belongs to a later run; this worker's partition is its business."""


def table_path(out: Path, table: str, key: str) -> Path:
    """Where a partition's rows of `labels` or `files` lie."""
    return out / table / f"part-{key}.parquet"


def begin_run(out: Path) -> str:
    """Take the folder over from any earlier run; the number of the new one."""
    run = uuid4().hex
    write_atomic(out / STATE_DIR / _RUN, run)
    return run


def is_current(out: Path, run: str) -> bool:
    """Whether `out` still belongs to this run. False also where the folder cannot be seen from here."""
    try:
        return (out / STATE_DIR / _RUN).read_text(encoding="ascii") == run
    except OSError:
        return False


# Plans


def _plan_path(out: Path, key: str) -> Path:
    return out / STATE_DIR / _PLANS / f"{key}.json"


def write_plan(out: Path, sources: list[Source], facts: dict[str, str]) -> str:
    """Write down which inputs make a partition; returns its key."""
    text = json.dumps([source_fields(source) for source in sources])
    key = hashlib.sha256((text + json.dumps(facts, sort_keys=True)).encode()).hexdigest()[:20]
    path = _plan_path(out, key)
    write_atomic(path, text, durable=False)
    return key


def read_plan(out: Path, key: str) -> list[Source]:
    """The inputs of a partition. Raises: OSError."""
    rows = json.loads(_plan_path(out, key).read_text(encoding="ascii"))
    return [source_from(row) for row in rows]


def drop_plans(out: Path) -> None:
    """Remove the plans of a run that has ended; the footers say what was done."""
    shutil.rmtree(out / STATE_DIR / _PLANS, ignore_errors=True)


def attempt(out: Path, key: str, most: int) -> None:
    """Count that a worker takes a partition up. Raises: LabelingError, when `most` have not come back from it."""
    path = _plan_path(out, key).with_suffix(".attempts")
    with path.open("ab") as file:
        file.write(b".")
    if path.stat().st_size > most:
        names = [source.name for source in read_plan(out, key)]
        raise LabelingError(
            f"{most} workers died over the same partition, of files from {names[0]} to {names[-1]}. Look for the one "
            "that kills them with the local engine, and leave it out with --ignore; or give workers more memory."
        )


def source_fields(source: Source) -> list[Any]:
    """A source as JSON values."""
    failure = source.failure
    spoken = [failure.reason, failure.message, failure.status] if failure else None
    return [source.name, source.kind, os.fsdecode(source.path), source.size, source.signature, spoken]


def source_from(row: list[Any]) -> Source:
    """A source from `source_fields`."""
    name, kind, path, size, signature, spoken = row
    return Source(name, kind, os.fsencode(path), size, signature, Failure(*spoken) if spoken else None)


def signature_of(source: Source) -> str:
    """What changes when an input, or what is wrong with it, does."""
    return f"{source.kind} {source.signature} {source.failure.reason if source.failure else ''}"


# Committing


def commit(out: Path, view: View, written: Written, run: str) -> None:
    """Write a partition's rows and make them count; see the module's head.

    Raises: AnotherRun, DiskFull, OutputRefused.
    """
    tables: tuple[tuple[str, Sequence[Column], Callable[[View], Iterator[Row]], dict[bytes, bytes]], ...] = (
        (LABELS_DIR, FACE_COLUMNS, face_rows, {_OWNER: written.key.encode()}),
        (FILES_DIR, FILE_COLUMNS, file_rows, {_METADATA: written.encode(), _OWNER: written.key.encode()}),
    )
    parts: dict[str, Path] = {}
    try:
        with disk_errors(out):
            for table, columns, rows, metadata in tables:
                parts[table] = parts_dir(out) / f"{uuid4().hex}.parquet"
                with parts[table].open("wb") as file:
                    write_table(file, columns, rows(view), metadata)
                    file.flush()
                    os.fsync(file.fileno())
            if not is_current(out, run):
                raise AnotherRun(f"{out} was taken over by a later run")
            for table, part in parts.items():
                part.replace(table_path(out, table, written.key))
    finally:
        for part in parts.values():
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


def read_written(out: Path, key: str) -> Written | None:
    """The footer of a committed partition; None where there is none that this program has written whole."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        metadata = parquet.read_metadata(table_path(out, FILES_DIR, key)).metadata or {}
        found = Written.decode(metadata[_METADATA])
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError):
        return None
    return found if found.key == key and table_path(out, LABELS_DIR, key).exists() else None


def remove(out: Path, key: str) -> None:
    """Undo a partition: first what makes it count."""
    for table in (FILES_DIR, LABELS_DIR):
        table_path(out, table, key).unlink(missing_ok=True)


def set_aside(out: Path, key: str, folder: Path) -> None:
    """Move a partition of an earlier run into a folder."""
    for table in (FILES_DIR, LABELS_DIR):
        (folder / table).mkdir(parents=True, exist_ok=True)
        table_path(out, table, key).replace(table_path(folder, table, key))


def keys_of(out: Path) -> list[str]:
    """Keys of all partitions of which there is at least one table. Raises: ForeignFile, for a table not written here.

    Readers take every table of a folder for a part of the whole, so one of somebody else cannot stay beside them.
    """
    keys = set()
    for table in (FILES_DIR, LABELS_DIR):
        for path in sorted((out / table).glob("*")):
            key = path.stem.removeprefix("part-")
            if path.name != f"part-{key}.parquet" or not _is_own(path, key):
                raise ForeignFile(foreign(path))
            keys.add(key)
    return sorted(keys)


def _is_own(path: Path, key: str) -> bool:
    """Whether a table was written here: its footer says so or, where that is damaged, the footer of its twin does."""
    found = _owner_of(path)
    if found is None:
        other = LABELS_DIR if path.parent.name == FILES_DIR else FILES_DIR
        found = _owner_of(table_path(path.parent.parent, other, key))
    return found == key


def _owner_of(path: Path) -> str | None:
    """The key in a table's footer, "" where it has none; None where there is no footer to read."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return str((parquet.read_metadata(path).metadata or {}).get(_OWNER, b"").decode(errors="replace"))
    except (OSError, pa.ArrowException):
        return None
