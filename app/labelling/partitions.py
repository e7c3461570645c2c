"""How do many machines write one table, each input's rows exactly once? In partitions that appear whole or not at all.

A partition is a few hundred inputs that are neighbours by name. Its rows are `labels/part-KEY.parquet` and
`files/part-KEY.parquet`, both in the shared output folder; KEY is a digest of its inputs, so that whoever labels it,
and however often, writes the same two names.

Commit protocol:

1. The driver holds the folder's lock and writes the number of its run into `.mien/ray-run`. It keeps the partitions
   whose inputs are as they were, removes what else is there, and writes a plan for each partition that is missing.
2. A worker writes both tables under names of its own into `.mien/part`, and synchronises them to the disk. It looks
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
import itertools
import json
import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from app.labelling.columns import FACE_COLUMNS, FILE_COLUMNS, Column, Row, face_rows, file_rows
from app.labelling.files import STATE_DIR, LabellingError, disk_errors, parts_dir
from app.labelling.outputs.parquet import write_table
from app.labelling.records import Failure, Source
from app.labelling.view import View

LABELS_DIR: Final = "labels"
FILES_DIR: Final = "files"
_PLANS: Final = "plans"
_RUN: Final = "ray-run"
_METADATA: Final = b"mien"
_BATCH: Final = 2_000


@dataclass(frozen=True, slots=True)
class Written:
    """What the footer of a committed partition says: its inputs, its run, what became of its pictures.

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


class AnotherRun(LabellingError):
    """The output folder now belongs to a later run; this worker's partition is its business."""


def table_path(out: Path, table: str, key: str) -> Path:
    """Where a partition's rows of `labels` or `files` lie."""
    return out / table / f"part-{key}.parquet"


def begin_run(out: Path) -> str:
    """Take the folder over from any earlier run; the number of the new one."""
    run = uuid4().hex
    target = out / STATE_DIR / _RUN
    part = target.with_suffix(f".{run}")
    part.write_text(run, encoding="ascii")
    part.replace(target)
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
    text = json.dumps([_fields(source) for source in sources])
    key = hashlib.sha256((text + json.dumps(facts, sort_keys=True)).encode()).hexdigest()[:20]
    path = _plan_path(out, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="ascii")
    return key


def read_plan(out: Path, key: str) -> list[Source]:
    """The inputs of a partition. Raises: OSError."""
    rows = json.loads(_plan_path(out, key).read_text(encoding="ascii"))
    return [_source(row) for row in rows]


def drop_plans(out: Path) -> None:
    """Remove the plans of a run that has ended; the footers say what was done."""
    shutil.rmtree(out / STATE_DIR / _PLANS, ignore_errors=True)


def attempt(out: Path, key: str, most: int) -> None:
    """Count that a worker takes a partition up. Raises: LabellingError, when `most` have not come back from it."""
    path = _plan_path(out, key).with_suffix(".attempts")
    with path.open("ab") as file:
        file.write(b".")
    if path.stat().st_size > most:
        names = [source.name for source in read_plan(out, key)]
        raise LabellingError(
            f"{most} workers died over the same partition, of files from {names[0]} to {names[-1]}. Look for the one "
            "that kills them with the local engine, and leave it out with --ignore; or give workers more memory."
        )


def _fields(source: Source) -> list[Any]:
    failure = source.failure
    spoken = [failure.reason, failure.message, failure.status] if failure else None
    return [source.name, source.kind, os.fsdecode(source.path), source.size, source.signature, spoken]


def _source(row: list[Any]) -> Source:
    name, kind, path, size, signature, spoken = row
    return Source(name, kind, os.fsencode(path), None, size, signature, Failure(*spoken) if spoken else None)


def signature_of(source: Source) -> str:
    """What changes when an input, or what is wrong with it, does."""
    return f"{source.kind} {source.signature} {source.failure.reason if source.failure else ''}"


# Committing


def commit(out: Path, view: View, written: Written, run: str) -> None:
    """Write a partition's rows and make them count; see the module's head.

    Raises: AnotherRun, DiskFull, OutputRefused.
    """
    tables: tuple[tuple[str, Sequence[Column], Callable[[View], Iterator[Row]], dict[bytes, bytes]], ...] = (
        (LABELS_DIR, FACE_COLUMNS, face_rows, {}),
        (FILES_DIR, FILE_COLUMNS, file_rows, {_METADATA: written.encode()}),
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


def _keys(out: Path) -> list[str]:
    """Keys of all partitions of which there is at least one table."""
    paths = itertools.chain.from_iterable((out / table).glob("part-*.parquet") for table in (FILES_DIR, LABELS_DIR))
    return sorted({path.stem.removeprefix("part-") for path in paths})


# What the driver keeps account of


class Ledger:
    """Which inputs there are, and which partitions hold them; a temporary database, on disk where it grows large."""

    def __init__(self, out: Path) -> None:
        """Nothing is known yet."""
        self._out = out
        self._db = sqlite3.connect("", isolation_level=None)
        self._db.execute(
            "CREATE TABLE found(name TEXT PRIMARY KEY, source TEXT NOT NULL, signature TEXT NOT NULL, key TEXT)"
        )
        self.statuses: Counter[str] = Counter()
        self.labels: Counter[str] = Counter()

    def close(self) -> None:
        """Forget everything."""
        self._db.close()

    def add(self, sources: Iterable[Source]) -> Iterator[int]:
        """Store what the scan finds; yields how many there are so far."""
        count = 0
        iterator = iter(sources)
        while batch := list(itertools.islice(iterator, _BATCH)):
            rows = [(source.name, json.dumps(_fields(source)), signature_of(source)) for source in batch]
            self._db.execute("BEGIN")
            self._db.executemany("INSERT OR REPLACE INTO found(name, source, signature) VALUES(?,?,?)", rows)
            self._db.execute("COMMIT")
            count += len(batch)
            yield count

    def settle(self, facts: dict[str, str]) -> int:
        """Keep the partitions that are still true and remove all others; how many of another run were set aside."""
        aside = 0
        for key in _keys(self._out):
            written = read_written(self._out, key)
            if written is not None and written.facts != facts:
                self._set_aside(key)
                aside += 1
            elif written is None or written.again or not self.take(written):
                remove(self._out, key)
        return aside

    def _set_aside(self, key: str) -> None:
        for table in (FILES_DIR, LABELS_DIR):
            target = self._out / STATE_DIR / "previous" / table
            target.mkdir(parents=True, exist_ok=True)
            table_path(self._out, table, key).replace(target / f"part-{key}.parquet")

    def take(self, written: Written) -> bool:
        """Note that a partition holds its inputs; False, and nothing is noted, where one is gone, changed or held."""
        self._db.execute("BEGIN")
        rows = [(written.key, name, signature) for name, signature in written.inputs]
        taken = self._db.executemany(
            "UPDATE found SET key=? WHERE name=? AND signature=? AND key IS NULL", rows
        ).rowcount
        if taken != len(rows):
            self._db.execute("ROLLBACK")
            return False
        self._db.execute("COMMIT")
        self.statuses.update(written.statuses)
        self.labels.update(written.labels)
        return True

    def counts(self) -> tuple[int, int]:
        """Inputs found, and those of them that a partition holds."""
        total, done = self._db.execute("SELECT COUNT(*), COUNT(key) FROM found").fetchone()
        return total, done

    def missing(self, size: int) -> Iterator[list[Source]]:
        """What no partition holds, in the order of names, `size` inputs together."""
        cursor = self._db.execute("SELECT source FROM found WHERE key IS NULL ORDER BY name")
        while rows := cursor.fetchmany(size):
            yield [_source(json.loads(row[0])) for row in rows]
