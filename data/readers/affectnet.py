"""AffectNet, manually annotated: 287,651 training and 4,000 validation faces from the web (Mollahosseini et al. 2017).

Two layouts are supported. The original release has `training.csv` and `validation.csv` (columns subDirectory_filePath,
facial_landmarks, expression, ...) above the folders of images; faces are aligned by the annotated landmarks. Class
folders, `train/0/*.jpg` and `val/0/*.jpg`, contain face crops; they have AffectNet's numbers or names.

    mien data check affectnet path/to/affectnet --option classes=8

The test split was never published, and papers report results on the official validation split. It is therefore `test`
here, and `valid` is a twentieth of each training class, held out by the SHA-256 of its path.
"""

from collections.abc import Mapping
from functools import partial
from itertools import chain
from typing import ClassVar, Final

import numpy as np

from mien.data.contract import EIGHT_LABELS, parse_label
from mien.data.readers.base import Point, Reader, Sample, held_out, held_out_counts

EXPRESSIONS: Final = ("neutral", "happiness", "sadness", "surprise", "fear", "disgust", "anger", "contempt")
_BY_NUMBER: Final = dict(enumerate((*EXPRESSIONS, "none", "uncertain", "no face")))
_CSV: Final = {"train": "training.csv", "test": "validation.csv"}
_FOLDERS: Final = {"train": "train", "training": "train", "val": "test", "valid": "test", "validation": "test"}
# Of the 68 annotated points: six per eye, the tip of the nose, the corners of the mouth; image-left first.
_POINTS: Final = (slice(36, 42), slice(42, 48), slice(30, 31), slice(48, 49), slice(54, 55))
VALID_SHARE: Final = 0.05
# Table 3 of the paper.
_TRAIN: Final = dict(zip(EXPRESSIONS, (74874, 134415, 25459, 14090, 6378, 3803, 24882, 3750), strict=True))


class AffectNet(Reader):
    """Reader of AffectNet."""

    kind: ClassVar[str] = "affectnet"
    title: ClassVar[str] = "AffectNet"
    where_to_get: ClassVar[str] = (
        "Request it at mohammadmahoor.com/pages/databases/affectnet, from an academic address; the layout is "
        "training.csv and validation.csv above the images, or train/0/*.jpg and val/0/*.jpg"
    )
    terms: ClassVar[str] = (
        "for non-commercial research under an agreement with its authors, which also covers models trained on it; "
        "the images are from the web, and their owners keep the copyright"
    )
    limits: ClassVar[str] = (
        "AffectNet faces are from the web, and each was labeled by one person; its authors report that two annotators "
        "agree on 61 % of them. Most training faces are happy or neutral."
    )

    known_labels: ClassVar = EIGHT_LABELS
    published: ClassVar = {**held_out_counts(_TRAIN, VALID_SHARE), "test": dict.fromkeys(EXPRESSIONS, 500)}

    def read(self) -> list[Sample]:
        tables = {split: table for split, name in _CSV.items() if (table := self.find(name)) is not None}
        self._from_csv = bool(tables)
        if tables:
            self.files |= {"/".join(name.split("/")[-2:]): file for name, file in self.files.items()}
            samples = [*chain(*(self.rows(table, partial(_sample, split)) for split, table in tables.items()))]
        else:
            samples = [Sample(key, split, _label_of(folder)) for key, split, folder in self.class_folders(_FOLDERS)]
        return held_out(samples, "valid", VALID_SHARE)

    def expected_counts(self) -> Mapping[str, Mapping[str, int]]:
        """Return the paper's counts; {} for class folders, which are partial copies."""
        return super().expected_counts() if self._from_csv else {}


def _label_of(folder: str) -> str:
    is_number = folder.isdecimal() and int(folder) < len(EXPRESSIONS)
    return EXPRESSIONS[int(folder)] if is_number else parse_label(folder, EIGHT_LABELS)


def _sample(split: str, row: dict[str, str]) -> Sample:
    label = _BY_NUMBER[int(row["expression"])]
    return Sample(row["subDirectory_filePath"], split, label, landmarks_px=five_points(row["facial_landmarks"]))


def five_points(text: str) -> tuple[Point, ...]:
    """Eyes, nose and mouth corners from 68 annotated points, `x;y;x;y;...`. Raises: ValueError, for another number."""
    points = np.array([float(number) for number in text.split(";")]).reshape(68, 2)
    means = [points[chosen].mean(axis=0) for chosen in _POINTS]
    return tuple((float(x), float(y)) for x, y in means)
