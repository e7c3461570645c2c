"""RAF-DB, basic emotions (Li et al. 2017): 15,339 web faces, each labeled by about 40 people.

Original layout, below the root or its `basic/`: `EmoLabel/list_patition_label.txt` (misspelled so), whose lines are
`train_00001.jpg 5`; `Image/aligned/train_00001_aligned.jpg` (100x100); `Image/original/train_00001.jpg`; and for these,
`Annotation/manual/train_00001_manu_attri.txt`, which begins with five landmarks.

The archives that the authors put into `Image/` and `Annotation/` are read packed or unpacked. `images` is `original`
where annotations and original images are there: their faces are cropped as in serving, by the five landmarks.

Kaggle's copy has the aligned images in numbered folders, `DATASET/train/1/train_00001_aligned.jpg` to
`DATASET/test/7/...`. Its CSV files repeat the folders and are not read.

    mien data check raf_db path/to/RAF-DB --option images=original
    mien data check raf_db path/to/archive.zip

The set has no validation split, so one tenth of each train class is held out: the images whose id (`train_00001`) has
the smallest SHA-256 (`data.split`), in both layouts. The test split is never used for selection.
"""

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import ClassVar, Final, Literal

from mien.data.contract import LABELS
from mien.data.readers.base import ExcludingOptions, Point, Reader, Sample
from mien.data.split import held_out_counts, hold_out

VALID_SHARE: Final = 0.1
_LABEL_OF: Final = {
    str(number): label for number, label in enumerate(LABELS, start=1)
}  # by the set's numbers, whose order is ours
# Table of the paper's basic-emotion subset; in the order of LABELS.
PUBLISHED: Final = {
    "train": dict(zip(LABELS, (1290, 281, 717, 4772, 1982, 705, 2524), strict=True)),
    "test": dict(zip(LABELS, (329, 74, 160, 1185, 478, 162, 680), strict=True)),
}
_KAGGLE_IMAGE: Final = re.compile(r"(?P<prefix>(?:.*/)?)(?P<key>(?:train|test)/(?P<number>[^/]+)/[^/]+\.jpe?g)")
_LABEL_FILES: Final = ("EmoLabel/list_patition_label.txt", "EmoLabel/list_partition_label.txt")


def published_counts(*, hold_out_valid: bool) -> Mapping[str, Mapping[str, int]]:
    """Return the paper's counts, with the held-out tenth of train moved to valid."""
    return PUBLISHED | (held_out_counts(PUBLISHED["train"], VALID_SHARE) if hold_out_valid else {})


def split_of(labels_by_id: Mapping[str, str], *, hold_out_valid: bool) -> dict[str, str]:
    """Assign every image id (`train_00001`, `test_0001`) to train, valid or test."""
    splits = {image: image.split("_")[0] for image in labels_by_id}
    if hold_out_valid:
        train = {image: label for image, label in labels_by_id.items() if splits[image] == "train"}
        splits |= dict.fromkeys(hold_out(train, VALID_SHARE), "valid")
    return splits


class RafDbOptions(ExcludingOptions):
    """Options of RAF-DB."""

    # 100x100, fitted, or whole photos, warped by their landmarks; by default the latter if they are there
    images: Literal["aligned", "original"] | None = None
    hold_out_valid: bool = True  # false keeps all of train in train


class RafDb(Reader):
    """Reader of RAF-DB in both layouts, which are told apart by their files."""

    kind: ClassVar[str] = "raf_db"
    title: ClassVar[str] = "RAF-DB"
    where_to_get: ClassVar[str] = (
        "RAF-DB is free for research after a request from an academic address: http://www.whdeng.cn/RAF/model1.html. "
        "Kaggle's copy, shuvoalok/raf-db-dataset, is read, too; the rights are those of the original"
    )
    terms: ClassVar[str] = (
        "for non-commercial research under an agreement with its authors, which also covers models trained on it; the "
        "images are from the web, and their owners keep the copyright"
    )
    limits: ClassVar[str] = (
        "RAF-DB faces are from the web, each labeled by about 40 people. Fear and disgust are rare, so their intervals "
        "are wide."
    )

    Options = RafDbOptions

    def __init__(self, root: Path | str, options: RafDbOptions) -> None:
        super().__init__(root, options)
        self.hold_out_valid = options.hold_out_valid
        annotated = ("Image/original/", "Annotation/manual/")
        has_originals = all(any(part in name for name in self.files) for part in annotated)
        self.images = options.images or ("original" if has_originals else "aligned")
        self.notes.append(
            "original images, cropped by their landmarks as in serving"
            if self.images == "original"
            else "aligned images, only scaled"
        )
        prefixes = [(name, self.prefix_of(name)) for name in _LABEL_FILES]
        present = [f"{prefix}{name}" for name, prefix in prefixes if prefix is not None]
        self._key_by_id: dict[str, str] = {}  # of Kaggle's copy
        self._label_by_id = self._read_labels(present[0]) if present else self._numbered_folders()
        self._split_by_id = split_of(self._label_by_id, hold_out_valid=self.hold_out_valid)
        # archives unpack to Image/aligned/ or Image/aligned/aligned/, so files are found by file name
        self._path_by_name = {
            PurePosixPath(name).name: name
            for name in self.files
            if f"Image/{self.images}/" in name or "Annotation/manual/" in name
        }

    def expected_counts(self) -> Mapping[str, Mapping[str, int]]:
        """Return the paper's counts, adjusted for held-out images; {} without near-duplicates."""
        return {} if self.exclude_near_duplicates_of else published_counts(hold_out_valid=self.hold_out_valid)

    def splits(self) -> tuple[str, ...]:
        present = set(self._split_by_id.values())
        return tuple(split for split in ("train", "valid", "test") if split in present)

    def path_of(self, sample: Sample) -> str:
        if self._key_by_id:
            return self._prefix + sample.key
        return self._path_by_name.get(PurePosixPath(sample.key).name, sample.key)

    def _numbered_folders(self) -> dict[str, str]:
        """Labels by image id in Kaggle's layout."""
        matches = [match for name in self.files if (match := _KAGGLE_IMAGE.fullmatch(name))]
        if not matches:
            raise self.error(f"neither {_LABEL_FILES[0]} nor DATASET/train/1/*.jpg in {self.root}")
        if self.images == "original":
            raise self.error("images=original: Kaggle's copy has aligned images only")
        self._prefix = matches[0]["prefix"]
        for match in matches:
            name = PurePosixPath(match["key"]).stem.removesuffix("_aligned")
            if match["number"] not in _LABEL_OF:
                raise self.error(f"class {match['number']!r} of {match['key']}: expected 1 to {len(LABELS)}")
            if name in self._key_by_id:
                raise self.error(f"{name} is in two class folders")
            self._key_by_id[name] = match["key"]
        return {name: _LABEL_OF[key.split("/")[1]] for name, key in self._key_by_id.items()}

    def _read_labels(self, name: str) -> dict[str, str]:
        labels: dict[str, str] = {}
        for line, text in enumerate(self.read_text(name).splitlines(), start=1):
            if not text.strip():
                continue
            file, _, number = text.strip().partition(" ")
            label = _LABEL_OF.get(number)
            if label is None or not file.startswith(("train_", "test_")):
                raise self.error(f"{name} line {line}: expected `train_00001.jpg 1` to 7, got {text!r}")
            image = PurePosixPath(file).stem
            if labels.setdefault(image, label) != label:
                raise self.error(f"{name} line {line}: {file} is {label} here, but {labels[image]} in an earlier line")
        return labels

    def _read_split(self, split: str) -> list[Sample]:
        return [self._sample(name) for name in self._label_by_id if self._split_by_id[name] == split]

    def _sample(self, name: str) -> Sample:
        split, label = self._split_by_id[name], self._label_by_id[name]
        if self.images == "aligned":
            return Sample(self._key_by_id.get(name, f"Image/aligned/{name}_aligned.jpg"), split, label)
        path = self._path_by_name.get(f"{name}_manu_attri.txt")
        if path is None:
            raise self.error(f"images=original needs Annotation/manual/{name}_manu_attri.txt, which does not exist")
        try:
            landmarks_px = parse_landmarks(self.read_text(path))
        except ValueError as error:
            raise self.error(f"{path}: {error}") from error
        return Sample(f"Image/original/{name}.jpg", split, label, landmarks_px=landmarks_px)


def parse_landmarks(text: str) -> tuple[Point, ...]:
    """Read the five `x y` lines at the start of a `_manu_attri.txt`, image-left first. Raises: ValueError.

    Left and right are swapped if they are named from the person's view, as mirrored points match no upright face: the
    vector between the eyes, rotated clockwise by 90 degrees, must point to the mouth at any roll angle.
    """
    numbers = [float(word) for word in text.split()]
    if len(numbers) < 10:
        raise ValueError(f"expected five landmarks, found {len(numbers)} numbers")
    points = tuple(zip(numbers[0:10:2], numbers[1:10:2], strict=True))
    eye_a, eye_b, nose, mouth_a, mouth_b = points
    across = (eye_b[0] - eye_a[0], eye_b[1] - eye_a[1])
    down = (mouth_a[0] + mouth_b[0] - eye_a[0] - eye_b[0], mouth_a[1] + mouth_b[1] - eye_a[1] - eye_b[1])
    if across[0] * down[1] - across[1] * down[0] < 0:
        return (eye_b, eye_a, nose, mouth_b, mouth_a)
    return points
