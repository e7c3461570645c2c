"""Partitions: a table written by many machines, with the rows of each input exactly once.

A partition consists of a few hundred inputs, sorted by name. Its rows are in `labels/part-KEY.parquet` and
`files/part-KEY.parquet` in the shared output folder. KEY is a hash of its inputs, so every worker that labels it writes
the same two files.

Commit protocol:

1. The driver locks the folder and writes the number of its run to `.mien/ray-run`. It keeps partitions with unchanged
   inputs, undoes all others, and writes a plan for each missing partition. `app.labeling.ray.earlier` keeps the rows of
   undone partitions.
2. A worker writes both tables under temporary names in `.mien/part`, and syncs them to disk. It checks that the run is
   still current, then renames `labels`, then `files`. The second rename is the commit: the footer of
   `files/part-KEY.parquet` lists the inputs of the partition with size and time.
3. A killed worker leaves nothing, or a table of labels without a table of files. Another worker gets the partition and
   replaces that table, or finds the partition committed and skips it.
4. A rerun reads the footers: inputs in a committed partition are done. A table of labels without its table of files is
   removed. To undo a partition, `files` is removed first.
5. At the end, the driver checks that every input is in exactly one committed partition.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import astuple, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final
from uuid import uuid4

from pydantic import AliasChoices, Field, TypeAdapter

from mien.app.labeling.columns import FACE_COLUMNS, FILE_COLUMNS, Row
from mien.app.labeling.files import (
    FILES_DIR,
    LABELS_DIR,
    RAY_RUN,
    STATE_DIR,
    ForeignFile,
    LabelingError,
    disk_errors,
    foreign,
    parts_dir,
)
from mien.app.labeling.outputs.parquet import write_table
from mien.app.labeling.records import Failure, Input
from mien.data.atomic import atomic_file, write_atomic

_PLANS: Final = "plans"
_METADATA: Final = b"mien"
_NAME: Final = re.compile(r"part-([0-9a-f]{20})\.parquet")


@dataclass(frozen=True, slots=True)
class Partition:
    """Footer of a committed partition: its inputs, its run, and its results.

    inputs: name and signature; retry: whether an input failed for a temporary reason; seconds: worker time; reused:
    images with rows of an earlier partition.
    """

    key: str
    inputs: tuple[tuple[str, str], ...]
    facts: dict[str, str]
    statuses: dict[str, int] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    errors: tuple[tuple[str, str, str], ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    retry: Annotated[bool, Field(validation_alias=AliasChoices("retry", "again"))] = False  # of earlier versions
    reasons: dict[str, int] = field(default_factory=dict)
    reused: int = 0


_FOOTER: Final = TypeAdapter(Partition)


class AnotherRun(LabelingError):
    """A later run has taken over the output folder, including the partition of this worker."""


def table_path(out: Path, table: str, key: str) -> Path:
    """Path of a partition's table of `labels` or `files`."""
    return out / table / f"part-{key}.parquet"


def begin_run(out: Path) -> str:
    """Take over the folder from an earlier run; returns the number of the new run."""
    run = uuid4().hex
    write_atomic(out / STATE_DIR / RAY_RUN, run)
    return run


def is_current(out: Path, run: str) -> bool:
    """Whether `out` still belongs to this run; False if the folder cannot be read."""
    try:
        return (out / STATE_DIR / RAY_RUN).read_text(encoding="ascii") == run
    except OSError:
        return False


# Plans


def _plan_path(out: Path, key: str) -> Path:
    return out / STATE_DIR / _PLANS / f"{key}.json"


def write_plan(out: Path, inputs: list[Input], facts: dict[str, str]) -> str:
    """Write the inputs of a partition; returns its key."""
    text = json.dumps([input_fields(item) for item in inputs])
    key = hashlib.sha256((text + json.dumps(facts, sort_keys=True)).encode()).hexdigest()[:20]
    path = _plan_path(out, key)
    write_atomic(path, text, durable=False)
    return key


def read_plan(out: Path, key: str) -> list[Input]:
    """The inputs of a partition. Raises: OSError."""
    rows = json.loads(_plan_path(out, key).read_text(encoding="ascii"))
    return [input_from(row) for row in rows]


def drop_plans(out: Path) -> None:
    """Remove the plans of a finished run."""
    shutil.rmtree(out / STATE_DIR / _PLANS, ignore_errors=True)


def count_attempt(out: Path, key: str, limit: int) -> None:
    """Count an attempt at a partition. Raises: LabelingError, after `limit` failed attempts."""
    path = _plan_path(out, key).with_suffix(".attempts")
    with path.open("ab") as file:
        file.write(b".")
    if path.stat().st_size > limit:
        names = [item.name for item in read_plan(out, key)]
        raise LabelingError(
            f"{limit} workers crashed on the same partition, with files from {names[0]} to {names[-1]}. Find the file "
            "with the local engine and exclude it with --ignore, or give workers more memory."
        )


def input_fields(item: Input) -> list[Any]:
    """An input of a scan as JSON values."""
    reason = astuple(item.failure) if item.failure else None
    return [item.name, item.kind, os.fsdecode(item.path), item.size, item.signature, reason]


def input_from(row: list[Any]) -> Input:
    """An input from `input_fields`."""
    name, kind, path, size, signature, reason = row
    return Input(name, kind, os.fsencode(path), size, signature, Failure(*reason) if reason else None)


def signature_of(item: Input) -> str:
    """Signature that changes with an input or its failure."""
    return f"{item.kind} {item.signature} {item.failure.reason if item.failure else ''}"


# Committing


def commit(out: Path, partition: Partition, run: str, faces: Iterable[Row], files: Iterable[Row]) -> None:
    """Write and commit a partition; see the module docstring. Raises: AnotherRun, DiskFull, OutputRefused."""
    labels_path, files_path = (table_path(out, table, partition.key) for table in (LABELS_DIR, FILES_DIR))
    staged = partial(atomic_file, staging=parts_dir(out), durable=False)
    with disk_errors(out), staged(files_path) as files_table, staged(labels_path) as labels_table:
        write_table(labels_table, FACE_COLUMNS, faces)
        write_table(files_table, FILE_COLUMNS, files, {_METADATA: _FOOTER.dump_json(partition)})
        for file in (labels_table, files_table):
            file.flush()
            os.fsync(file.fileno())
        if not is_current(out, run):
            raise AnotherRun(f"{out} was taken over by a later run")
        # both are renamed at the end of the block, the one that was opened last first


def read_partition(out: Path, key: str) -> Partition | None:
    """Footer of a committed partition; None if there is no valid one."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        metadata = parquet.read_metadata(table_path(out, FILES_DIR, key)).metadata or {}
        partition = _FOOTER.validate_json(metadata[_METADATA])
    except (OSError, pa.ArrowException, ValueError, KeyError):
        return None
    return partition if partition.key == key and table_path(out, LABELS_DIR, key).exists() else None


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
    """Keys of all partitions with at least one table. Raises: ForeignFile, for another file in their folders.

    Parquet readers combine all tables of a folder, so other files are not allowed.
    """
    keys = set()
    for table in (FILES_DIR, LABELS_DIR):
        for path in (out / table).glob("*"):
            match = _NAME.fullmatch(path.name)
            if match is None:
                raise ForeignFile(foreign(path))
            keys.add(match[1])
    return sorted(keys)
