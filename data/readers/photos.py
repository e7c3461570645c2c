"""Photos without labels whose faces were detected by `mien label`, for training on the predictions of a teacher.

    mien label path/to/photos --out found --write csv && cp found/labels.csv path/to/photos/

Layout: any folder of images with that `labels.csv` at its root; its `file` column is relative to the root. Faces in
videos are left out. The labels in this file are predictions and are ignored: samples have no label, and recipes use
them with `target: teacher`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final

from mien.data.contract import LANDMARKS
from mien.data.readers.base import Point, Reader, ReaderOptions, Sample

TABLE: Final = "labels.csv"


class PhotosOptions(ReaderOptions):
    """Options of photos."""

    min_face_px: float = 32.0  # of the shorter side of a face box
    min_score: float = 0.8  # of the detection


class Photos(Reader):
    """Reader of photos with a table written by `mien label`."""

    kind: ClassVar[str] = "photos"
    title: ClassVar[str] = "photos without labels"
    where_to_get: ClassVar[str] = (
        "Any folder of photos: run `mien label FOLDER --out found --write csv` and copy found/labels.csv into FOLDER"
    )
    terms: ClassVar[str] = "those of the owner of the photos"
    limits: ClassVar[str] = "Photos without labels are learned with the predictions of a teacher, including its errors."

    Options = PhotosOptions

    def read(self) -> Iterator[Sample]:
        self.enter(TABLE)
        return self.rows(TABLE, self._sample)

    def _sample(self, row: dict[str, str]) -> Sample:
        if reason := self._reason_against(row):
            return Sample(row["file"], "train", reason)
        return Sample(f"{row['file']}#{int(row['face']):03}", "train", None, landmarks_px=landmarks_of(row))

    def _reason_against(self, row: dict[str, str]) -> str:
        smallest, lowest = self.options.min_face_px, self.options.min_score
        if not row["face"]:
            return "no face"
        if row.get("frame"):
            return "in a video"
        if min(float(row["width"]), float(row["height"])) < smallest:
            return f"smaller than {smallest:g} px"
        return "" if float(row["detection_score"]) >= lowest else f"score below {lowest:g}"


def landmarks_of(row: Mapping[str, str], names: Sequence[str] = LANDMARKS) -> tuple[Point, ...]:
    """Five points of a face in the table, pixels. Raises: KeyError, ValueError."""
    return tuple((float(row[f"{name}_x"]), float(row[f"{name}_y"])) for name in names)
