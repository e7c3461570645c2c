"""What is left of pictures that are gone? Annotated copies and crops without an input are removed at the end of a run.

`annotated/` and `crops/` mirror the inputs of the last run; nothing else in the output folder is touched.
"""

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from app.labelling.products import ANNOTATED, ANNOTATED_DIR, CROPS, CROPS_DIR, annotated_name, crop_name
from app.labelling.view import View


def prune_products(view: View, out: Path) -> int:
    """Remove what no input stands for any more; returns how many files were removed."""
    folders = [folder for folder in (ANNOTATED_DIR, CROPS_DIR) if (out / folder).is_dir()]
    if not folders:
        return 0
    expected = sqlite3.connect("")  # a temporary database: in memory while small, on disk when not
    try:
        expected.execute("CREATE TABLE names(name TEXT PRIMARY KEY) WITHOUT ROWID")
        expected.executemany("INSERT OR IGNORE INTO names VALUES(?)", ((name,) for name in _expected(view)))
        return sum(_prune(out / folder, folder, expected) for folder in folders)
    finally:
        expected.close()


def _expected(view: View) -> Iterator[str]:
    rows = view.journal.query(
        "SELECT name, frame, products, (SELECT COUNT(*) FROM faces WHERE item=items.id) FROM items "
        "WHERE found=? AND status IN ('ok', 'no_face') AND products != 0",
        (view.journal.session,),
    )
    for name, frame, products, faces in rows:
        if products & ANNOTATED:
            yield f"{ANNOTATED_DIR}/{annotated_name(name, frame)}"
        if products & CROPS:
            yield from (f"{CROPS_DIR}/{crop_name(name, frame, face)}" for face in range(faces))


def _prune(folder: Path, prefix: str, expected: sqlite3.Connection) -> int:
    removed = 0
    for path, _, names in os.walk(folder, topdown=False):
        below = Path(path).relative_to(folder).as_posix()
        for name in names:
            known = f"{prefix}/{name}" if below == "." else f"{prefix}/{below}/{name}"
            if expected.execute("SELECT 1 FROM names WHERE name=?", (known,)).fetchone() is None:
                (Path(path) / name).unlink()
                removed += 1
        if below != "." and not os.listdir(path):
            Path(path).rmdir()
    return removed
