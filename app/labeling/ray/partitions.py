"""Partitions: a table written by many machines, with the rows of each input exactly once.

A partition consists of a few hundred inputs, sorted by name. Its rows are in `labels/part-KEY.parquet` and
`files/part-KEY.parquet` in the shared output folder. KEY is a hash of its inputs, so every worker that labels it writes
the same two files.

Commit protocol:

1. The driver locks the folder and writes the number of its run to `.mien/ray-run`. It keeps partitions with unchanged
   inputs, removes all others, and writes a plan for each missing partition.
2. A worker writes both tables under temporary names in `.mien/part`, and syncs them to disk. It checks that the run is
   still current, then renames `labels`, then `files`. The second rename is the commit: the footer of
   `files/part-KEY.parquet` lists the inputs of the partition with size and time.
3. A killed worker leaves nothing, or a table of labels without a table of files. Another worker gets the partition and
   replaces that table, or finds the partition committed and skips it.
4. A rerun reads the footers: inputs in a committed partition are done. A table of labels without its table of files is
   removed. To undo a partition, `files` is removed first.
5. At the end, the driver checks that every input is in exactly one committed partition.
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

from mien.app.labeling.columns import FACE_COLUMNS, FILE_COLUMNS, Column, Row, face_rows, file_rows
from mien.app.labeling.files import STATE_DIR, ForeignFile, LabelingError, disk_errors, foreign, parts_dir
from mien.app.labeling.journal import View
from mien.app.labeling.outputs.parquet import write_table
from mien.app.labeling.records import Failure, Source
from mien.data.atomic import write_atomic

LABELS_DIR: Final = "labels"
FILES_DIR: Final = "files"
_PLANS: Final = "plans"
_RUN: Final = "ray-run"
_METADATA: Final = b"mien"
_OWNER: Final = b"mien-partition"
_BATCH: Final = 2_000


@dataclass(frozen=True, slots=True)
class Written:
    """Footer of a committed partition: its inputs, its run, and its results.

    inputs: name and signature; again: whether an input failed for a temporary reason; seconds: worker time.
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
        """Serialize for the footer."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__}).encode()

    @classmethod
    def decode(cls, raw: bytes) -> "Written":
        """Parse a footer. Raises: ValueError, KeyError, TypeError, if it was not written by this program."""
        values: dict[str, Any] = json.loads(raw)
        values["inputs"] = tuple((str(name), str(signature)) for name, signature in values["inputs"])
        values["errors"] = tuple(tuple(error) for error in values["errors"])
        return cls(**values)


class AnotherRun(LabelingError):
    """A later run has taken over the output folder, including the partition of this worker."""


def table_path(out: Path, table: str, key: str) -> Path:
    """Path of a partition's table of `labels` or `files`."""
    return out / table / f"part-{key}.parquet"


def begin_run(out: Path) -> str:
    """Take over the folder from an earlier run; returns the number of the new run."""
    run = uuid4().hex
    write_atomic(out / STATE_DIR / _RUN, run)
    return run


def is_current(out: Path, run: str) -> bool:
    """Whether `out` still belongs to this run; False if the folder cannot be read."""
    try:
        return (out / STATE_DIR / _RUN).read_text(encoding="ascii") == run
    except OSError:
        return False


# Plans


def _plan_path(out: Path, key: str) -> Path:
    return out / STATE_DIR / _PLANS / f"{key}.json"


def write_plan(out: Path, sources: list[Source], facts: dict[str, str]) -> str:
    """Write the inputs of a partition; returns its key."""
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
    """Remove the plans of a finished run."""
    shutil.rmtree(out / STATE_DIR / _PLANS, ignore_errors=True)


def attempt(out: Path, key: str, most: int) -> None:
    """Count an attempt at a partition. Raises: LabelingError, after `most` failed attempts."""
    path = _plan_path(out, key).with_suffix(".attempts")
    with path.open("ab") as file:
        file.write(b".")
    if path.stat().st_size > most:
        names = [source.name for source in read_plan(out, key)]
        raise LabelingError(
            f"{most} workers crashed on the same partition, with files from {names[0]} to {names[-1]}. Find the file "
            "with the local engine and exclude it with --ignore, or give workers more memory."
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
    """Signature that changes with an input or its failure."""
    return f"{source.kind} {source.signature} {source.failure.reason if source.failure else ''}"


# Committing


def commit(out: Path, view: View, written: Written, run: str) -> None:
    """Write and commit a partition; see the module docstring.

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
    """Footer of a committed partition; None if there is no valid one."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        metadata = parquet.read_metadata(table_path(out, FILES_DIR, key)).metadata or {}
        found = Written.decode(metadata[_METADATA])
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError):
        return None
    return found if found.key == key and table_path(out, LABELS_DIR, key).exists() else None


def remove(out: Path, key: str) -> None:
    """Undo a partition; `files` is removed first."""
    for table in (FILES_DIR, LABELS_DIR):
        table_path(out, table, key).unlink(missing_ok=True)


def set_aside(out: Path, key: str, folder: Path) -> None:
    """Move a partition of an earlier run into a folder."""
    for table in (FILES_DIR, LABELS_DIR):
        (folder / table).mkdir(parents=True, exist_ok=True)
        table_path(out, table, key).replace(table_path(folder, table, key))


def keys_of(out: Path) -> list[str]:
    """Keys of all partitions with at least one table. Raises: ForeignFile, for a table of another program.

    Parquet readers combine all tables of a folder, so foreign tables are not allowed.
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
    """Whether a table was written by this program, according to its footer or, if damaged, that of its counterpart."""
    found = _owner_of(path)
    if found is None:
        other = LABELS_DIR if path.parent.name == FILES_DIR else FILES_DIR
        found = _owner_of(table_path(path.parent.parent, other, key))
    return found == key


def _owner_of(path: Path) -> str | None:
    """Key in the footer of a table, "" if it has none; None if the footer cannot be read."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return str((parquet.read_metadata(path).metadata or {}).get(_OWNER, b"").decode(errors="replace"))
    except (OSError, pa.ArrowException):
        return None
