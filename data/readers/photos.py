"""Photos without labels whose faces were detected by `mien label`, for training on the predictions of a teacher.

    mien label path/to/photos --out found --write csv && cp found/labels.csv path/to/photos/

Layout: any folder of images with that `labels.csv` at its root; its `file` column is relative to the root. Faces in
videos are left out. The labels in this file are predictions and are ignored: samples have no label, and recipes use
them with `target: teacher`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
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

    def __init__(self, root: Path | str, options: PhotosOptions) -> None:
        super().__init__(root, options)
        self.min_face_px, self.min_score = options.min_face_px, options.min_score
        self._prefix = self.folder_of(TABLE)

    def splits(self) -> tuple[str, ...]:
        """Return train: photos without labels cannot be used for evaluation."""
        return ("train",)

    def _read_split(self, split: str) -> list[Sample]:
        def sample(row: dict[str, str]) -> Sample | None:
            if reason := self._reason_against(row):
                self._left_out[split][reason] += 1
                return None
            key = f"{row['file']}#{int(row['face']):03}"
            self._path_by_key[key] = self._prefix + row["file"]
            return Sample(key, split, None, landmarks_px=landmarks_of(row))

        return list(self.rows(self._prefix + TABLE, sample))

    def _reason_against(self, row: Mapping[str, str]) -> str:
        if not row["face"]:
            return "no face"
        if row.get("frame"):
            return "in a video"
        if min(float(row["width"]), float(row["height"])) < self.min_face_px:
            return f"smaller than {self.min_face_px:g} px"
        return "" if float(row["detection_score"]) >= self.min_score else f"score below {self.min_score:g}"


def landmarks_of(row: Mapping[str, str], names: Sequence[str] = LANDMARKS) -> tuple[Point, ...]:
    """Five points of a face in the table, pixels. Raises: KeyError, ValueError."""
    return tuple((float(row[f"{name}_x"]), float(row[f"{name}_y"])) for name in names)
