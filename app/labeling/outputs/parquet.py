"""`labels.parquet` and `files.parquet`: typed tables for large runs; requires the extra `parquet`."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Final

from mien.app.labeling.columns import FILE_COLUMNS, Column, Row, face_columns, face_rows, file_rows
from mien.app.labeling.journal import Journal
from mien.app.labeling.outputs import open_output

HELP: Final = "labels.parquet and files.parquet (extra `parquet`)"
TARGETS: Final = ("labels.parquet", "files.parquet")
REVIEWED: Final = True
NEEDS: Final = "pyarrow"
_ROWS_PER_GROUP: Final = 16_000
_ROWS_AT_ONCE: Final = 2_000


def render(journal: Journal) -> None:
    """Write both tables, in row groups of 16,000."""
    of_faces = face_columns(journal)
    for target, columns, rows in zip(TARGETS, (of_faces, FILE_COLUMNS), (face_rows, file_rows), strict=True):
        with open_output(journal, target, "wb") as file:
            write_table(file, columns, rows(journal))


def schema(columns: Sequence[Column]) -> Any:
    """The Arrow schema of a table, with units and meanings as metadata."""
    import pyarrow as pa

    types = {"text": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
    return pa.schema(
        [
            pa.field(column.name, types[column.type], metadata={"unit": column.unit, "meaning": column.meaning})
            for column in columns
        ]
    )


def write_table(file: Any, columns: Sequence[Column], rows: Iterable[Row]) -> None:
    """Stream rows into a Parquet file in groups of 16,000.

    They are converted in small parts, because Python objects need twenty times the memory.
    """
    import pyarrow as pa
    from pyarrow import parquet

    kind, iterator = schema(columns), iter(rows)
    with parquet.ParquetWriter(file, kind, compression="zstd") as writer:
        while parts := [
            pa.Table.from_pylist(batch, schema=kind)
            for _ in range(_ROWS_PER_GROUP // _ROWS_AT_ONCE)
            if (batch := list(itertools.islice(iterator, _ROWS_AT_ONCE)))
        ]:
            writer.write_table(pa.concat_tables(parts).combine_chunks())
