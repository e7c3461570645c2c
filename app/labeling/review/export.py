"""Export of reviewed faces as a class-folder data set for training.

mien review out --export faces && mien data check folders faces
"""

import csv
import io
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from mien.app.labeling.files import ForeignFile
from mien.app.labeling.journal import View, open_view
from mien.app.labeling.products import crop_path, encode_png, flat_crop_name
from mien.app.labeling.review.class_folders import Crop, write_class_folders
from mien.app.labeling.review.corrections import NOT_A_FACE, applies, read_corrections
from mien.app.labeling.review.sources import source_pixels
from mien.data import contract
from mien.data.atomic import write_atomic
from mien.data.contract import Array

MANIFEST: Final = "manifest.csv"
_COLUMNS: Final = ("image", "label", "predicted", "reviewed", "file", "frame", "face")


def write_export(out: Path, target: Path, *, everything: bool) -> str:
    """Write reviewed faces as class folders (all faces with `everything`, unreviewed ones by the model's label).

    Existing crops in `crops/` are used; others are cut from the sources by the same function. Returns: a message for
    the user. Raises: LabelingError.
    """
    _check_target(target)
    rows: list[dict[str, Any]] = []
    with closing(open_view(out, filtered=False)) as view:
        target.parent.mkdir(parents=True, exist_ok=True)
        crops = _exported(view, out, everything=everything, rows=rows)
        count = write_class_folders(target.parent, target, crops, link=False)
    table = io.StringIO()
    writer = csv.DictWriter(table, _COLUMNS)
    writer.writeheader()
    writer.writerows(rows)
    write_atomic(target / MANIFEST, table.getvalue())
    reviewed = sum(row["reviewed"] == "true" for row in rows)
    return f"{count} faces in {target}, {reviewed} of them reviewed. Check: mien data check folders {target}"


def _check_target(target: Path) -> None:
    """Check that `target` contains only an earlier export, according to its manifest. Raises: ForeignFile."""
    written = {MANIFEST} | _listed(target / MANIFEST)
    for folder, folders, names in os.walk(target):
        for name in (*names, *(one for one in folders if os.path.islink(os.path.join(folder, one)))):
            path = Path(folder, name)
            if path.relative_to(target).as_posix() not in written:
                raise ForeignFile(f"{path} was not written by an export: export into a new or empty folder.")


def _listed(manifest: Path) -> set[str]:
    try:
        with manifest.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            if tuple(rows.fieldnames or ()) != _COLUMNS:
                raise ForeignFile(f"{manifest} was not written by an export: export into a new or empty folder.")
            return {row["image"] for row in rows}
    except FileNotFoundError:
        return set()


def _exported(view: View, out: Path, *, everything: bool, rows: list[dict[str, Any]]) -> Iterator[Crop]:
    decided = read_corrections(out)
    for image in view.images():
        pixels: Array | None = None
        for face in image.faces:
            made = decided.get((image.name, image.frame, face.number))
            reviewed = made is not None and applies(made, image)
            label = made.label if made is not None and reviewed else face.label
            if label == NOT_A_FACE or not (reviewed or everything):
                continue
            source: Path | bytes = out / crop_path(image.name, image.frame, face.number)
            if isinstance(source, Path) and not source.exists():
                pixels = source_pixels(image) if pixels is None else pixels
                source = encode_png(contract.align(pixels, face.landmarks_px))
            crop = Crop(label, flat_crop_name(image.name, image.frame, face.number), source)
            rows.append(
                {
                    "image": crop.path,
                    "label": label,
                    "predicted": face.label,
                    "reviewed": str(reviewed).lower(),
                    "file": image.name,
                    "frame": image.frame_or_none,
                    "face": face.number,
                }
            )
            yield crop
