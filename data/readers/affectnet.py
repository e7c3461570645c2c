"""AffectNet, manually annotated: 287,651 training and 4,000 validation faces from the web (Mollahosseini et al. 2017).

Two layouts are supported. The original release has `training.csv` and `validation.csv` (columns subDirectory_filePath,
facial_landmarks, expression, ...) above the folders of images; faces are aligned by the annotated landmarks. Class
folders, `train/0/*.jpg` and `val/0/*.jpg`, contain face crops; they have AffectNet's numbers or names.

    mien data check affectnet path/to/affectnet --option classes=8

The test split was never published, and papers report results on the official validation split. It is therefore `test`
here, and `valid` is a twentieth of each training class, held out by the SHA-256 of its path.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Final

import numpy as np

from mien.data.contract import EIGHT_LABELS, UnknownLabel, parse_label
from mien.data.readers.base import ClassNames, Point, Reader, ReaderOptions, Sample
from mien.data.split import held_out_counts, hold_out

EXPRESSIONS: Final = ("neutral", "happiness", "sadness", "surprise", "fear", "disgust", "anger", "contempt")
_BY_NUMBER: Final = dict(enumerate((*EXPRESSIONS, "none", "uncertain", "no face")))
_CSV: Final = {"train": "training.csv", "test": "validation.csv"}
_FOLDERS: Final = {"train": "train", "training": "train", "val": "test", "valid": "test", "validation": "test"}
_IMAGE: Final = re.compile(
    r"(?P<prefix>(?:.*/)?)(?P<key>(?P<split>[^/]+)/(?P<label>[^/]+)/[^/]+\.(?:jpe?g|png))", re.IGNORECASE
)
# of the 68 annotated points: six per eye, the tip of the nose, the corners of the mouth; image-left first
_POINTS: Final = (slice(36, 42), slice(42, 48), slice(30, 31), slice(48, 49), slice(54, 55))
VALID_SHARE: Final = 0.05
# Table 3 of the paper, in the order of EXPRESSIONS.
_PUBLISHED: Final = {
    "train": (74874, 134415, 25459, 14090, 6378, 3803, 24882, 3750),
    "test": (500, 500, 500, 500, 500, 500, 500, 500),
}


class AffectNetOptions(ReaderOptions):
    """Options of AffectNet."""

    classes: ClassNames = 7  # 8 with contempt last, or names of the expressions to use, in order
    hold_out_valid: bool = True  # false keeps all of train in train; there is no valid split then


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

    Options = AffectNetOptions

    def __init__(self, root: Path | str, options: AffectNetOptions) -> None:
        super().__init__(root, options)
        self.use_classes(options.classes)
        self.hold_out_valid = options.hold_out_valid
        self._path_by_file = {"/".join(name.split("/")[-2:]): name for name in self.files}
        self._from_csv = any(self.prefix_of(name) is not None for name in _CSV.values())
        self._take(list(self._listed() if self._from_csv else self._in_folders()))
        if not any(self._by_split.values()):
            raise self.error(f"neither training.csv nor train/0/*.jpg in {root}")

    def expected_counts(self) -> Mapping[str, Mapping[str, int]]:
        """Return the paper's counts, adjusted for held-out faces; {} for class folders, which are partial copies."""
        if not self._from_csv:
            return {}
        published = (dict(zip(EXPRESSIONS, counts, strict=True)) for counts in _PUBLISHED.values())
        train, test = ({label: counts[label] for label in self.labels} for counts in published)
        return {"train": train, "test": test} | (held_out_counts(train, VALID_SHARE) if self.hold_out_valid else {})

    def path_of(self, sample: Sample) -> str:
        return self._path_by_file.get(sample.key, sample.key) if self._from_csv else super().path_of(sample)

    def _take(self, samples: list[Sample]) -> None:
        train = {sample.key: sample.label for sample in samples if sample.split == "train"}
        held = hold_out(train, VALID_SHARE) if self.hold_out_valid else frozenset()
        for sample in samples:
            if sample.label not in self.labels:
                self._left_out[sample.split][str(sample.label)] += 1
            else:
                split = "valid" if sample.key in held else sample.split
                self._by_split[split].append(replace(sample, split=split))

    def _listed(self) -> Iterator[Sample]:
        for split, name in _CSV.items():

            def sample(row: dict[str, str], split: str = split) -> Sample:
                label = _BY_NUMBER[int(row["expression"])]
                points = five_points(row["facial_landmarks"])
                return Sample(row["subDirectory_filePath"], split, label, landmarks_px=points)

            if (prefix := self.prefix_of(name)) is not None:
                yield from self.rows(f"{prefix}{name}", sample)

    def _in_folders(self) -> Iterator[Sample]:
        for name in self.files:
            match = _IMAGE.fullmatch(name)
            split = _FOLDERS.get(match["split"].lower()) if match else None
            if match is None or split is None:
                continue
            self._prefix = match["prefix"]
            yield Sample(match["key"], split, self._folder_label(match["label"], name))

    def _folder_label(self, folder: str, where: str) -> str:
        if folder.isdecimal() and int(folder) < len(EXPRESSIONS):
            return EXPRESSIONS[int(folder)]
        try:
            return parse_label(folder, EIGHT_LABELS)
        except UnknownLabel as error:
            names = ", ".join(EXPRESSIONS)
            raise self.error(f"{where}: class folder {folder!r}, expected 0 to 7 or one of {names}") from error


def five_points(text: str) -> tuple[Point, ...]:
    """Eyes, nose and mouth corners from 68 annotated points, `x;y;x;y;...`. Raises: ValueError, for another number."""
    points = np.array([float(number) for number in text.split(";")]).reshape(68, 2)
    means = [points[chosen].mean(axis=0) for chosen in _POINTS]
    return tuple((float(x), float(y)) for x, y in means)
