"""Class folders of face crops, `train/<label>/`, with a manifest: a data set for training."""

import csv
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mien.app.errors import ForeignFile
from mien.app.inference.records import Face
from mien.app.labeling.copies import flat_crop_name
from mien.app.labeling.journal import Result
from mien.app.labeling.tables import BYTE_ORDER_MARK, without_formula

SPLIT: Final = "train"
MANIFEST: Final = "manifest.csv"
_CROP: Final = re.compile(rf"({SPLIT}/[^/]+/.+\.face\d+\.png|{re.escape(MANIFEST)})")
MANIFEST_COLUMNS: Final = ("image", "label", "predicted", "reviewed", "file", "frame", "face", "person")


@dataclass(frozen=True, slots=True, eq=False)
class Crop:
    """One face of the data set, with its image; `source` is the path or the encoded bytes of its crop."""

    image: Result
    face: Face
    label: str
    reviewed: bool
    source: Path | bytes

    @property
    def path(self) -> str:
        """Path in the data set."""
        return f"{SPLIT}/{self.label}/{flat_crop_name(self.image.name, self.image.frame, self.face.index)}"


def write_class_folders(target: Path, crops: Iterable[Crop], *, spreadsheet_safe: bool = False) -> tuple[int, int]:
    """Write crops by label, and a manifest, to `target`, which replaces an earlier data set with its whole content.

    The new data set is written beside `target` and renamed; the next call repairs what a kill between the two renames
    leaves. spreadsheet_safe: as in `write_csv`.
    Returns: numbers of faces, and of reviewed ones. Raises: ForeignFile, for a file that the manifest does not list.
    """
    work = target.with_name(f".{target.name}.mien-export")
    _clean(work, target)
    _check(target)
    text = without_formula if spreadsheet_safe else str
    count = reviewed = 0
    try:
        (work / "new").mkdir(parents=True)
        with (work / "new" / MANIFEST).open("w", encoding="utf-8", newline="") as file:
            file.write(BYTE_ORDER_MARK if spreadsheet_safe else "")
            table = csv.writer(file)
            table.writerow(MANIFEST_COLUMNS)
            for crop in crops:
                path = work / "new" / crop.path
                path.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(crop.source, bytes):
                    path.write_bytes(crop.source)
                else:
                    shutil.copyfile(crop.source, path)
                where = (text(crop.image.name), crop.image.frame, crop.face.index, crop.face.person)
                table.writerow((crop.path, crop.label, crop.face.label, str(crop.reviewed).lower(), *where))
                count, reviewed = count + 1, reviewed + crop.reviewed
        if target.exists():
            target.replace(work / "old")
        (work / "new").replace(target)
    finally:
        _clean(work, target)
    return count, reviewed


def _clean(work: Path, target: Path) -> None:
    """Restore the earlier data set if it was moved but not replaced, and remove temporary files."""
    if (work / "old").exists() and not target.exists():
        (work / "old").replace(target)
    shutil.rmtree(work, ignore_errors=True)


def _check(target: Path) -> None:
    """Check that all files of a data set are in its manifest. Raises: ForeignFile."""
    if target.exists() and not target.is_dir():
        raise ForeignFile(f"{target} is a file. Choose a new or empty folder.")
    listed = {MANIFEST}
    if (target / MANIFEST).exists():
        with (target / MANIFEST).open(encoding="utf-8-sig", errors="replace", newline="") as file:
            rows = csv.DictReader(file)
            is_ours = tuple(rows.fieldnames or ()) == MANIFEST_COLUMNS
            listed = {MANIFEST, *(row["image"] for row in rows)} if is_ours else set()
    unlisted = [
        path
        for folder, folders, names in os.walk(target)
        for name in (*names, *(name for name in folders if os.path.islink(os.path.join(folder, name))))
        if (path := Path(folder, name).relative_to(target).as_posix()) not in listed
    ]
    for path in unlisted:
        if not _CROP.fullmatch(path):
            raise ForeignFile(f"{target / path} was not written by an export. Choose a new or empty folder.")
    if unlisted:
        raise ForeignFile(
            f"{target / unlisted[0]} is not listed in {target / MANIFEST}. If it is yours, move it. If the manifest "
            f"was changed or removed, delete {target}: it is written again."
        )
