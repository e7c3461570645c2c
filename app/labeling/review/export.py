"""Export of reviewed faces as class folders, `train/<label>/`, with a manifest: a data set for training.

mien review out --export faces && mien data check folders faces
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from mien.app.errors import LabelingError
from mien.app.labeling.copies import crop_path, encode_png, flat_crop_name
from mien.app.labeling.inputs import Sources, counted, quoted
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

    The data set appears in `target`, a new or empty folder, when it is complete.
    Returns: a message for the user, which lists what could not be exported. Raises: LabelingError.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise LabelingError(f"{target} is not an empty folder. Choose a new one, or delete it.")
    with closing(open_journal(out)) as journal:
        written = _Written({id(correction): correction for correction in journal.corrections})
        if not (everything or written.unmatched):
            raise LabelingError(f"no face of {out} is reviewed. Run mien review {quoted(out)}, or add --all.")
        try:
            target.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=target.resolve().parent, prefix=f".{target.name}-") as work:
                rows = _rows(journal, Path(work), written, everything=everything)
                with (Path(work) / MANIFEST).open("w", encoding="utf-8", newline="") as file:
                    write_csv(file, MANIFEST_COLUMNS, rows)
                for name in sorted(os.listdir(work), reverse=True):  # The manifest comes last.
                    Path(work, name).replace(target / name)
        except OSError as error:
            raise LabelingError(f"cannot write {target}: {error.strerror or error}.") from error
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
