"""Export of reviewed faces as a class-folder data set for training.

mien review out --export faces && mien data check folders faces
"""

import shlex
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from mien.app.labeling.files import ForeignFile, LabelingError, OutputRefused
from mien.app.labeling.images import crop_path, encode_png
from mien.app.labeling.outputs import owned_names
from mien.app.labeling.records import Result
from mien.app.labeling.review.class_folders import Crop, write_class_folders
from mien.app.labeling.review.corrections import NOT_A_FACE, Correction, Corrections
from mien.app.labeling.review.people import People
from mien.app.labeling.review.sources import SourceReader
from mien.app.labeling.timeline import moments
from mien.app.labeling.view import View, open_view
from mien.app.wording import counted
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
    with closing(open_view(out, filtered=False)) as view:
        export = _Export(view, everything=everything)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            write_class_folders(folder, export.crops())
        except OSError as error:
            raise OutputRefused(f"cannot write {target}: {error.strerror or error}.") from error
    unmatched = [
        f"{correction.file}{'' if correction.frame < 0 else f', frame {correction.frame}'}: {correction.label}"
        for correction in export.unmatched
    ]
    return "\n".join(
        [
            f"{counted(export.count, 'face')} in {target}, {export.reviewed:,} of them reviewed.",
            *_listed("without a matching face, not exported", "correction", unmatched),
            *_listed("not exported", "photo", export.unreadable),
            f"Check: mien data check folders {shlex.quote(str(target))}",
        ]
    )


def _listed(what: str, noun: str, lines: list[str]) -> list[str]:
    more = [f"  and {len(lines) - _LISTED} more"] if len(lines) > _LISTED else []
    return [f"{counted(len(lines), noun)} {what}:", *(f"  {line}" for line in lines[:_LISTED]), *more] if lines else []


class _Export:
    """One pass over the faces of a run; the fields are filled by it."""

    def __init__(self, view: View, *, everything: bool) -> None:
        self._view, self._everything = view, everything
        self._corrections = Corrections(view.out)
        self.count = self.reviewed = 0
        self._persons: dict[tuple[str, int, int], tuple[int, str]] = {}
        self.unreadable: list[str] = []
        self.unmatched: list[Correction] = []

    def crops(self) -> Iterator[Crop]:
        matched, exported = set(), set[tuple[str | None, int]]()
        people, video = People(self._view.out), ""
        with closing(SourceReader()) as reader:
            for image in self._view.images():
                corrections = self._corrections.of(image)
                if image.input.is_frame and image.input.kind == "video" and image.input.name != video:
                    video = image.input.name
                    self._persons = _persons(self._view, people, video)
                matched |= {id(correction) for correction in corrections.values()}
                content = image.sha256, image.input.frame
                if content in exported:  # a copy of a photo, which would be in two splits
                    continue
                try:
                    yield from self._image(image, corrections, reader)
                    exported.add(content)
                except LabelingError as error:
                    self.unreadable.append(str(error))
        self.unmatched = [correction for correction in self._corrections if id(correction) not in matched]

    def _image(self, image: Result, corrections: dict[int, Correction], reader: SourceReader) -> Iterator[Crop]:
        pixels = None
        for face in image.faces:
            correction = corrections.get(face.number)
            label = correction.label if correction else face.label
            if label == NOT_A_FACE or not (correction or self._everything):
                continue
            source: Path | bytes = self._view.out / crop_path(image.input.name, image.input.frame, face.number)
            if isinstance(source, Path) and not source.exists():
                pixels = reader.pixels(image) if pixels is None else pixels
                source = encode_png(contract.align(pixels, face.landmarks_px))
            self.count += 1
            self.reviewed += correction is not None
            person = self._persons.get((image.input.name, image.input.frame, face.number))
            yield Crop(image, face, label, correction is not None, source, person)


def _persons(view: View, people: People, video: str) -> dict[tuple[str, int, int], tuple[int, str]]:
    """Number and name of the person of each face of a video, by name, frame and number of the face."""
    return {
        (video, moment.image.input.frame, face.number): (face.track, moment.names.get(face.track, ""))
        for moment in moments(view, video, people)
        for face in moment.faces
    }
