"""Export of reviewed faces as a class-folder data set for training.

mien review out --export faces && mien data check folders faces
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from mien.app.errors import ForeignFile, LabelingError, OutputRefused
from mien.app.labeling.copies import crop_path, encode_png
from mien.app.labeling.inputs import Sources, counted, owned_names, quoted
from mien.app.labeling.journal import NOT_A_FACE, Correction, Journal, open_journal
from mien.app.labeling.review.class_folders import Crop, write_class_folders
from mien.data import contract

_LISTED: Final = 20


def write_export(out: Path, target: Path, *, everything: bool) -> str:
    """Write reviewed faces as class folders (all faces with `everything`, unreviewed ones by the model's label).

    Existing crops in `crops/` are used; others are cut from the sources by the same function. Returns: a message for
    the user, which lists what could not be exported. Raises: LabelingError.
    """
    folder = target.resolve()  # a link is followed, not replaced
    if folder.parent == out.resolve() and folder.name in owned_names(out):
        raise ForeignFile(f"{target} is an output of `mien label`. Choose another folder.")
    if Path.cwd().is_relative_to(folder):
        raise OutputRefused(f"{target} is the current folder or contains it, and would be replaced. Name a new folder.")
    unreadable: list[str] = []
    with closing(open_journal(out)) as journal:
        unmatched = {id(correction): correction for correction in journal.corrections}
        crops = _crops(journal, unmatched, unreadable, everything=everything)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            count, reviewed = write_class_folders(folder, crops, spreadsheet_safe=journal.options.spreadsheet_safe)
        except OSError as error:
            raise OutputRefused(f"cannot write {target}: {error.strerror or error}.") from error
    without_face = [
        f"{correction.file}{'' if correction.frame < 0 else f', frame {correction.frame}'}: {correction.label}"
        for correction in unmatched.values()
    ]
    return "\n".join(
        [
            f"{counted(count, 'face')} in {target}, {reviewed:,} of them reviewed.",
            *_listed("without a matching face, not exported", "correction", without_face),
            *_listed("not exported", "photo", unreadable),
            f"Check: mien data check folders {quoted(target)}",
        ]
    )


def _listed(what: str, noun: str, lines: list[str]) -> list[str]:
    more = [f"  and {len(lines) - _LISTED} more"] if len(lines) > _LISTED else []
    return [f"{counted(len(lines), noun)} {what}:", *(f"  {line}" for line in lines[:_LISTED]), *more] if lines else []


def _crops(
    journal: Journal, unmatched: dict[int, Correction], unreadable: list[str], *, everything: bool
) -> Iterator[Crop]:
    """Crops to export; decisions are removed from `unmatched`, and messages about photos added to `unreadable`."""
    exported = set[tuple[str | None, int | None]]()
    with Sources() as sources:
        for image in journal.results():
            name, frame = image.name, image.frame
            decided = journal.corrections.of(image)
            for correction in decided.values():
                unmatched.pop(id(correction), None)
            if (image.sha256, frame) in exported:  # a copy of a photo, which would be in two splits
                continue
            try:
                pixels = None
                for face in image.faces:
                    label = decided[face.index].label if face.index in decided else face.label
                    if label == NOT_A_FACE or not (everything or face.index in decided):
                        continue
                    source: Path | bytes = journal.out / crop_path(name, frame, face.index)
                    if isinstance(source, Path) and not source.exists():
                        pixels = sources.open_pixels(image) if pixels is None else pixels
                        source = encode_png(contract.align(pixels, face.landmarks_px))
                    yield Crop(image, face, label, face.index in decided, source)
                exported.add((image.sha256, frame))
            except LabelingError as error:
                unreadable.append(str(error))
