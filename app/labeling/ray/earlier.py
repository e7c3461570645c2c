"""Rows of undone partitions, for the inputs that did not change and for renamed files with the same bytes.

The driver moves such partitions to a folder and writes an index of their inputs. Workers read both, and label the rest.
"""

import contextlib
import sqlite3
from collections import defaultdict
from collections.abc import Container
from pathlib import Path
from typing import Final

from mien.app.labeling.columns import Row
from mien.app.labeling.files import FILES_DIR, LABELS_DIR, STATE_DIR, parts_dir
from mien.app.labeling.ray.partitions import keys_of, read_partition, signature_of, table_path
from mien.app.labeling.reading import file_sha256
from mien.app.labeling.records import TRANSIENT, Input

EARLIER: Final = "ray-earlier"  # folder in the state folder
_INDEX: Final = "index.sqlite3"


def write_index(out: Path, facts: dict[str, str]) -> None:
    """Write the index of the kept partitions, if there are any."""
    from pyarrow import parquet

    folder = out / STATE_DIR / EARLIER
    if not folder.exists():
        return
    part = (parts_dir(out) / _INDEX).absolute()
    address = f"{part.as_uri()}?nolock=1"  # some shared folders have no locks
    with contextlib.closing(sqlite3.connect(address, uri=True, isolation_level=None)) as index:
        index.execute("PRAGMA journal_mode=OFF")
        index.execute("CREATE TABLE inputs(key TEXT, name TEXT, signature TEXT, size INTEGER, sha256 TEXT)")
        index.execute("BEGIN")
        for key in keys_of(folder):
            partition = read_partition(folder, key)
            if partition is None or partition.facts != facts:
                continue
            kinds = {name: signature.split(" ", 1)[0] for name, signature in partition.inputs}
            failed = {_input_of(name, kinds) for name, reason, _ in partition.errors if reason in TRANSIENT}
            columns = ["file", "status", "bytes", "file_sha256"]
            contents = {
                row["file"]: (row["bytes"], row["file_sha256"])
                for row in parquet.read_table(table_path(folder, FILES_DIR, key), columns=columns).to_pylist()
                if kinds.get(row["file"]) == "file" and row["status"] in ("ok", "no_face")
            }
            rows = [(key, *item, *contents.get(item[0], (None, None))) for item in partition.inputs]
            index.executemany("INSERT INTO inputs VALUES(?,?,?,?,?)", [row for row in rows if row[1] not in failed])
        index.execute("COMMIT")
        index.execute("CREATE INDEX by_name ON inputs(name, signature)")
        index.execute("CREATE INDEX by_content ON inputs(size, sha256)")
    part.replace(folder / _INDEX)


def reuse(out: Path, inputs: list[Input]) -> tuple[list[Input], list[Row], list[Row]]:
    """Inputs that must be labeled, and the rows of the other ones in the tables of faces and of files.

    Raises: OSError, ArrowException, sqlite3.Error, if what is kept was damaged or deleted.
    """
    from pyarrow import parquet

    folder = out / STATE_DIR / EARLIER
    if not (folder / _INDEX).exists():
        return inputs, [], []
    rest: list[Input] = []
    names: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))  # key, earlier name: names
    address = f"{(folder / _INDEX).absolute().as_uri()}?immutable=1"
    with contextlib.closing(sqlite3.connect(address, uri=True)) as index:
        for item in inputs:
            if (place := _place_of(item, index)) is None:
                rest.append(item)
            else:
                key, earlier_name = place
                names[key][earlier_name].append(item.name)
    tables: dict[str, list[Row]] = {LABELS_DIR: [], FILES_DIR: []}
    for key, wanted in names.items():
        for table, rows in tables.items():
            for row in parquet.read_table(table_path(folder, table, key)).to_pylist():
                earlier_name = _input_of(row["file"], wanted)
                for name in wanted.get(earlier_name, ()):
                    rows.append(row | {"file": name + row["file"].removeprefix(earlier_name)})
    return rest, tables[LABELS_DIR], tables[FILES_DIR]


def _place_of(item: Input, index: sqlite3.Connection) -> tuple[str, str] | None:
    """Key and name of the same input, or of a file with the same bytes, in the kept partitions."""
    sql = "SELECT key, name FROM inputs WHERE name=? AND signature=?"
    place: tuple[str, str] | None = index.execute(sql, (item.name, signature_of(item))).fetchone()
    if place is not None or item.kind != "file" or item.failure is not None:
        return place
    if index.execute("SELECT 1 FROM inputs WHERE size=? LIMIT 1", (item.size,)).fetchone():
        with contextlib.suppress(OSError):  # labeling will record the reason
            sql = "SELECT key, name FROM inputs WHERE size=? AND sha256=?"
            place = index.execute(sql, (item.size, file_sha256(item.path))).fetchone()
    return place


def _input_of(file: str, names: Container[str]) -> str:
    """Name of the input of a row: its file, or the archive that contains it."""
    while file not in names and "/" in file:
        file = file.rpartition("/")[0]
    return file
