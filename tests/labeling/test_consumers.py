"""Tables with unusual file names, as other programs read them.

Each test is skipped if its program is not installed.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mien.app.settings import Settings
from tests.support.albums import label_folder, rows_of, write_photos

NAMES = (
    "plain.jpg", "carriage\rreturn.jpg", "new\nline.jpg", "both\r\n.jpg", 'quo"te, comma;.jpg', "=1+1.jpg",
    " space .jpg", "tab\t.jpg", "two.dots.jpg", "ünï 名前.jpg", "percent%20&?#.jpg", "<b>&amp;.jpg",
)  # fmt: skip


@pytest.fixture(scope="module")
def written(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("consumers")
    label_folder(write_photos(base / "photos", *NAMES), base / "out", settings, "csv", "jsonl", "parquet")
    return base / "out"


def duckdb_names(duckdb: Any, path: Path) -> list[str]:
    return [row[0] for row in duckdb.sql(f"SELECT file FROM '{path}'").fetchall()]  # noqa: S608  # our own


@pytest.mark.parametrize(
    ("library", "table", "read"),
    [
        ("csv", "labels.csv", lambda _csv, path: [row["file"] for row in rows_of(path.parent)]),
        *(("duckdb", f"labels.{suffix}", duckdb_names) for suffix in ("csv", "jsonl", "parquet")),
        ("polars", "labels.csv", lambda polars, path: polars.read_csv(path)["file"].to_list()),
        ("pandas", "labels.csv", lambda pandas, path: list(pandas.read_csv(path)["file"])),
    ],
)
def test_the_tables_are_read(written: Path, library: str, table: str, read: Callable[[Any, Path], list[str]]) -> None:
    program = pytest.importorskip(library, reason=f"{library} is not installed: its reader is not tested")
    assert sorted(read(program, written / table)) == sorted(NAMES)
