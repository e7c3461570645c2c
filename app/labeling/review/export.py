"""Export of reviewed faces as class folders, `train/<label>/`, with a manifest: a data set for training.

mien review out --export faces && mien data check folders faces
"""

import csv
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mien.app.errors import LabelingError
from mien.app.labeling.copies import crop_path, encode_png, flat_crop_name
from mien.app.labeling.inputs import Sources, counted, owned_names, quoted
from mien.app.labeling.journal import NOT_A_FACE, Correction, Journal, open_journal
from mien.app.labeling.tables import Row, write_csv
from mien.data import contract

MANIFEST: Final = "manifest.csv"
MANIFEST_COLUMNS: Final = ("image", "label", "predicted", "reviewed", "file", "frame", "face", "person")
_LISTED: Final = 20


@dataclass(slots=True)
class _Written:
    """What an export has written, and what it could not write: decisions without a face, and photos."""

    unmatched: dict[int, Correction]
    unreadable: list[str] = field(default_factory=list)
    faces: int = 0
    reviewed: int = 0


def write_export(out: Path, target: Path, *, everything: bool) -> str:
    """Write reviewed faces as class folders (all faces with `everything`, unreviewed ones by the model's label).

    The new data set is written beside `target` and replaces an earlier one with its whole content; the next export
    repairs what a kill between the two renames leaves.
    Returns: a message for the user, which lists what could not be exported. Raises: LabelingError, also for a file that
    the manifest of the earlier data set does not list.
    """
    folder = target.resolve()  # A link is followed, not replaced.
    if folder.parent == out.resolve() and folder.name in owned_names(out):
        raise LabelingError(f"{target} is an output of `mien label`. Choose another folder.")
    if Path.cwd().is_relative_to(folder):
        raise LabelingError(f"{target} is the current folder or contains it, and would be replaced. Name a new folder.")
    work = folder.with_name(f".{folder.name}.mien-export")
    with closing(open_journal(out)) as journal:
        written = _Written({id(correction): correction for correction in journal.corrections})
        try:
            _clean(work, folder)
            _check(folder)
            (work / "new").mkdir(parents=True)
            rows = _rows(journal, work / "new", written, everything=everything)
            with (work / "new" / MANIFEST).open("w", encoding="utf-8", newline="") as file:
                write_csv(file, MANIFEST_COLUMNS, rows)
            if folder.exists():
                folder.replace(work / "old")
            (work / "new").replace(folder)
        except OSError as error:
            raise LabelingError(f"cannot write {target}: {error.strerror or error}.") from error
        finally:
            _clean(work, folder)
    without_face = [
        f"{correction.file}{'' if correction.frame < 0 else f', frame {correction.frame}'}: {correction.label}"
        for correction in written.unmatched.values()
    ]
    return "\n".join(
        [
            f"{counted(written.faces, 'face')} in {target}, {written.reviewed:,} of them reviewed.",
            *_listed("without a matching face, not exported", "correction", without_face),
            *_listed("not exported", "photo", written.unreadable),
            f"Check: mien data check folders {quoted(target)}",
        ]
    )


def _listed(what: str, noun: str, lines: list[str]) -> list[str]:
    more = [f"  and {len(lines) - _LISTED} more"] if len(lines) > _LISTED else []
    return [f"{counted(len(lines), noun)} {what}:", *(f"  {line}" for line in lines[:_LISTED]), *more] if lines else []


def _rows(journal: Journal, folder: Path, written: _Written, *, everything: bool) -> Iterator[Row]:
    """Write crops to `folder`, and yield their rows of the manifest.

    Crops of the run are copied; others are cut from the sources by the same function.
    """
    exported = set[tuple[str | None, int | None]]()
    with Sources() as sources:
        for image in journal.results():
            name, frame = image.name, image.frame
            decided = journal.corrections.of(image)
            for correction in decided.values():
                written.unmatched.pop(id(correction), None)
            if (image.sha256, frame) in exported:  # A copy of a photo would be in two splits.
                continue
            try:
                pixels = None
                for face in image.faces:
                    number = face.index
                    label = decided[number].label if number in decided else face.label
                    if label == NOT_A_FACE or not (everything or number in decided):
                        continue
                    path = f"train/{label}/{flat_crop_name(name, frame, number)}"
                    (folder / path).parent.mkdir(parents=True, exist_ok=True)
                    if (crop := journal.out / crop_path(name, frame, number)).exists():
                        shutil.copyfile(crop, folder / path)
                    else:
                        pixels = sources.open_pixels(image) if pixels is None else pixels
                        (folder / path).write_bytes(encode_png(contract.align(pixels, face.landmarks_px)))
                    written.faces, written.reviewed = written.faces + 1, written.reviewed + (number in decided)
                    values = (path, label, face.label, number in decided, name, frame, number, face.person)
                    yield dict(zip(MANIFEST_COLUMNS, values, strict=True))
                exported.add((image.sha256, frame))
            except LabelingError as error:
                written.unreadable.append(str(error))


def _clean(work: Path, target: Path) -> None:
    """Restore the earlier data set if it was moved but not replaced, and remove temporary files."""
    if (work / "old").exists() and not target.exists():
        (work / "old").replace(target)
    shutil.rmtree(work, ignore_errors=True)


def _check(target: Path) -> None:
    """Check that all files of a data set are in its manifest. Raises: LabelingError."""
    if target.exists() and not target.is_dir():
        raise LabelingError(f"{target} is a file. Choose a new or empty folder.")
    listed = set[str]()
    if (target / MANIFEST).exists():
        with (target / MANIFEST).open(encoding="utf-8-sig", errors="replace", newline="") as file:
            rows = csv.DictReader(file)
            if tuple(rows.fieldnames or ()) == MANIFEST_COLUMNS:
                listed = {MANIFEST, *(row["image"] for row in rows)}
    for parent, folders, names in os.walk(target):
        for name in (*names, *(name for name in folders if os.path.islink(os.path.join(parent, name)))):
            path = Path(parent, name)
            if path.relative_to(target).as_posix() not in listed:
                raise LabelingError(
                    f"{path} is not listed in {target / MANIFEST}. Choose a new or empty folder, or delete {target} if "
                    "it has nothing of yours."
                )
