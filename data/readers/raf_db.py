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
the smallest SHA-256, in both layouts. The test split is never used for selection.
"""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import ClassVar, Final, Literal

from mien.data.contract import LABELS
from mien.data.readers.base import Point, Reader, ReaderOptions, Sample, held_out, held_out_counts

VALID_SHARE: Final = 0.1
_LABEL_OF: Final = {str(number): label for number, label in enumerate(LABELS, start=1)}  # The set's order is ours.
_LABEL_FILES: Final = ("EmoLabel/list_patition_label.txt", "EmoLabel/list_partition_label.txt")
# Archives unpack to Image/aligned/ or Image/aligned/aligned/.
_FOLDERS: Final = ("Image/aligned/", "Image/original/", "Annotation/manual/")


class RafDbOptions(ReaderOptions):
    """Options of RAF-DB."""

    # 100x100, fitted, or whole photos, warped by their landmarks; by default the latter if they are there
    images: Literal["aligned", "original"] | None = None


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

    # Table of the paper's basic-emotion subset, in the order of LABELS.
    published: ClassVar = {
        **held_out_counts(dict(zip(LABELS, (1290, 281, 717, 4772, 1982, 705, 2524), strict=True)), VALID_SHARE),
        "test": dict(zip(LABELS, (329, 74, 160, 1185, 478, 162, 680), strict=True)),
    }
    Options = RafDbOptions

    def read(self) -> list[Sample]:
        lists = [name for marker in _LABEL_FILES if (name := self.find(marker)) is not None]
        for path, file in list(self.files.items()):
            if folder := next((folder for folder in _FOLDERS if folder in path), ""):
                self.files[folder + PurePosixPath(path).name] = file
        has_originals = all(any(name.startswith(part) for name in self.files) for part in _FOLDERS[1:])
        self.images = self.options.images or ("original" if has_originals else "aligned")
        cropped = {"original": "cropped by their landmarks as in serving", "aligned": "only scaled"}
        self.notes.append(f"{self.images} images, {cropped[self.images]}")
        by_image: dict[str, Sample] = {}
        for sample in self.rows(lists[0], self._listed, header=False) if lists else self._numbered_folders():
            if (earlier := by_image.setdefault(_image_of(sample), sample)).label != sample.label:
                raise self.error(f"{_image_of(sample)} is both {earlier.label} and {sample.label}")
        return held_out([*by_image.values()], "valid", VALID_SHARE, _image_of)

    def _numbered_folders(self) -> Iterator[Sample]:
        """Samples of Kaggle's layout."""
        if self.images == "original":
            raise self.error("images=original: Kaggle's copy has aligned images only")
        for key, split, number in self.class_folders({"train": "train", "test": "test"}):
            if number not in _LABEL_OF:
                raise self.error(f"class {number!r} of {key}: expected 1 to {len(LABELS)}")
            yield Sample(key, split, _LABEL_OF[number])

    def _listed(self, row: list[str]) -> Sample:
        file, _, number = row[0].strip().partition(" ")
        if number not in _LABEL_OF or not file.startswith(("train_", "test_")):
            raise ValueError("expected `train_00001.jpg 1` to 7")
        image = PurePosixPath(file).stem
        split, label = image.split("_")[0], _LABEL_OF[number]
        if self.images == "aligned":
            return Sample(f"Image/aligned/{image}_aligned.jpg", split, label)
        points = parse_landmarks(self.read_text(f"Annotation/manual/{image}_manu_attri.txt"))
        return Sample(f"Image/original/{image}.jpg", split, label, landmarks_px=points)


def _image_of(sample: Sample) -> str:
    """Id of an image in all layouts: `train_00001`, `test_0001`."""
    return PurePosixPath(sample.key).stem.removesuffix("_aligned")


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
