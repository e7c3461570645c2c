"""Class folders: your own face crops, as `split/class/*.jpg` or `class/*.jpg`.

Names of expressions may have any common spelling (`happy`, `4_Happiness`), and so may split names (`training`, `val`).
Numbers and other names need the option `labels`, because data sets number the expressions differently. Classes of your
own are listed in the option `classes`. A root without split folders is one split, `all`. Kaggle's copies of FER2013 and
AffectNet have this layout.
The `manifest.csv` of an export of `mien review` tells the photo or video of each face and, in videos, the person.

    mien data check folders path/to/faces --option valid_share=0.1 --option ignore=contempt
    mien data check folders path/to/faces --option classes=bored,confused,interested

Whole photos instead of crops (`images=photos`) are aligned by the landmarks of their largest face, as in serving, which
`mien label` has found:

    mien label path/to/photos --out found --write csv && cp found/labels.csv path/to/photos/
"""

import logging
import re
from collections import Counter
from collections.abc import Set
from pathlib import Path, PurePosixPath
from typing import ClassVar, Final, Literal

from pydantic import Field, ValidationInfo, field_validator

from mien.data.contract import EIGHT_LABELS, UnknownLabel, parse_label
from mien.data.errors import DatasetError
from mien.data.readers.base import LabelOf, Names, Point, Reader, ReaderOptions, Sample
from mien.data.readers.photos import TABLE, landmarks_of

_SPLITS: Final = {
    "train": "train", "training": "train",
    "valid": "valid", "val": "valid", "validation": "valid", "dev": "valid",
    "test": "test", "testing": "test",
}  # fmt: skip
_IMAGE: Final = re.compile(r"\.(jpe?g|jfif|png|webp|bmp|gif|tiff?|avif|hei[cf])$", re.IGNORECASE)
_ALL: Final = "all"
_MANIFEST: Final = "manifest.csv"
logger = logging.getLogger(__name__)


class FoldersOptions(ReaderOptions):
    """Options of class folders.

    Attributes:
        images: crops, or photos with a labels.csv of `mien label` at the root. Photos without a face are left out.
        valid_share, test_share: share of each class of `all` (or else of train) that is held out, by the SHA-256 of
            the file's name with its class folder. The rest of `all` becomes train.
        labels: the expression of class folders whose names are numbers or in another language, spelled as on disk:
            a mapping, or `1=anger,2=disgust`.
        ignore: class folders to leave out, spelled as on disk.
    """

    images: Literal["crops", "photos"] = "crops"
    valid_share: float = Field(0.0, ge=0, lt=1)
    test_share: float = Field(0.0, ge=0, lt=1)
    labels: LabelOf = Field(default_factory=dict)
    ignore: Names = ()

    @field_validator("test_share")
    @classmethod
    def _leaves_some(cls, share: float, info: ValidationInfo) -> float:
        if share + info.data.get("valid_share", 0) >= 1:
            raise ValueError("expected shares with a sum below 1")
        return share


class Folders(Reader):
    """Reader of class folders."""

    kind: ClassVar[str] = "folders"
    title: ClassVar[str] = "class folders"
    where_to_get: ClassVar[str] = (
        "Expected split/class/*.jpg or class/*.jpg with images of one face, brow to chin; classes=8 adds contempt, "
        "classes=name,name lists classes of your own, labels=folder=class,folder=class names the classes of other "
        "folders, such as numbers, and ignore=folder,folder excludes class folders"
    )
    terms: ClassVar[str] = "those of the owner of the images"
    limits: ClassVar[str] = "Metrics on class folders apply to similar images only."

    known_labels: ClassVar = None
    Options = FoldersOptions

    def __init__(self, root: Path | str, options: FoldersOptions) -> None:
        super().__init__(root, options)
        self._ignored = frozenset(name for name in options.ignore if name)
        try:  # by class folder, as read
            self._label_of = {name: parse_label(label, self.labels) for name, label in options.labels.items()}
        except UnknownLabel as error:
            raise DatasetError(f"folders: labels: {error}") from error
        self._by_split[_ALL] = []
        self._landmarks = self._detected() if options.images == "photos" else None  # by file; None without a face
        self._collect()
        for split, share in (("test", options.test_share), ("valid", options.valid_share / (1 - options.test_share))):
            if share:
                self._hold_out_of_all(split, share)

    def samples(self, split: str) -> list[Sample]:
        """List one split's samples, sorted by key. Raises: DatasetError, also for a missing split."""
        if split == "train" and self.splits() == (_ALL,):
            split = _ALL  # Without split folders and held-out parts, everything is for training.
        if split != _ALL and split not in self.splits() and self.splits() in ((_ALL,), ("train",)):
            raise self.error(
                f"no split {split!r} in {self.root}, which has no other split folders. Hold out a part of each class "
                "with the options valid_share=0.1 and test_share=0.1; the rest becomes train"
            )
        return super().samples(split)

    def _sources(self) -> dict[str, dict[str, str]]:
        """Photo or video of each exported face and, in a video, the person; by file name, which survives a move."""
        name = self._prefix + _MANIFEST
        sources = {}
        for row in self.rows(name, dict) if name in self.files else ():
            if row.get("image") and row.get("file"):  # A table of another program has other columns.
                person = row.get("name") or (f"{row['file']} {row['person']}" if row.get("person") else "")
                attributes = {"photo": row["file"]} | ({"person": person} if person else {})
                sources[PurePosixPath(row["image"]).name] = attributes
        return sources

    def _detected(self) -> dict[str, tuple[Point, ...] | None]:
        """Landmarks of the largest face of each photo by its name; None for a photo without a face."""
        if TABLE not in self.files:
            raise self.error(
                f"images=photos needs a {TABLE} at the root of {self.root}: run `mien label {self.root} --out found "
                f"--write csv` and copy found/{TABLE} there"
            )

        def largest(row: dict[str, str]) -> tuple[str, tuple[Point, ...] | None] | None:
            if int(row["face"] or 0):  # Faces are numbered from the largest.
                return None
            return row["file"], landmarks_of(row) if row["face"] else None

        return dict(self.rows(TABLE, largest))

    def _collect(self) -> None:
        images = [name for name in self.files if "/" in name and _IMAGE.search(name)]
        if not images:
            raise self.error(f"no images in folders below {self.root}")
        self._prefix = _common_folder(images, self._ignored | self._label_of.keys(), self.labels)
        keys = [name.removeprefix(self._prefix) for name in images]
        has_splits = any(key.split("/")[0].lower() in _SPLITS for key in keys)
        classes = {key.split("/")[has_splits] for key in keys if key.count("/") > has_splits}
        for option, names in (("ignore", self._ignored), ("labels", self._label_of.keys())):
            if missing := ",".join(sorted(names - classes)):
                existing = ", ".join(sorted(classes))
                raise self.error(
                    f"{option}={missing}: no such class folder with images in {self.root}, only {existing}"
                )
        sources = self._sources()
        for key in keys:
            self._take(key, sources.get(PurePosixPath(key).name, {}), has_splits=has_splits)
        read = ", ".join(f"{name} = {label}" for name, label in sorted(self._label_of.items()))
        self.notes = [f"class folders read as {read}"]
        others = Counter(PurePosixPath(name).suffix or name for name in self.files.keys() - images if "/" in name)
        self.notes += [
            f"{count} files ignored: {suffix} is not a supported image"
            for suffix, count in sorted(others.items())
            if suffix not in (".csv", ".txt", ".md")
        ]
        if loose := [name for name in self.files if "/" not in name and _IMAGE.search(name)]:
            self.notes.append(f"{len(loose)} images ignored: in no class folder, such as {loose[0]}")
        for note in self.notes:
            logger.info("%s: %s", self.root, note)

    def _take(self, key: str, attributes: dict[str, str], *, has_splits: bool) -> None:
        folders = key.split("/")[:-1]
        split = _SPLITS.get(folders[0].lower()) if has_splits else _ALL
        if split is None:
            raise self.error(f"{key} is next to the split folders; move it into train, valid or test")
        if not has_splits and len(folders) > 1 and folders[1].lower() in _SPLITS:
            raise self.error(f"{key}: the split is below the class; move it to {folders[1]}/{folders[0]}/")
        if len(folders) <= has_splits:
            raise self.error(f"{self._prefix}{key} is in no class folder")
        name = folders[has_splits]
        if name in self._ignored:
            self._left_out[split][name] += 1
            return
        if name not in self._label_of:
            try:
                self._label_of[name] = parse_label(name, self.labels)
            except UnknownLabel as error:
                raise self.error(f"{key}: {error}") from error
        landmarks_px = None
        if self._landmarks is not None:
            file = self._prefix + key
            if file not in self._landmarks:
                raise self.error(f"{file} is not in {TABLE}. Run `mien label` again, and copy its table")
            landmarks_px = self._landmarks[file]
            if landmarks_px is None:
                self._left_out[split]["no face"] += 1
                return
        sample = Sample(key, split, self._label_of[name], landmarks_px=landmarks_px, attributes=attributes)
        self._by_split[split].append(sample)

    def _hold_out_of_all(self, split: str, share: float) -> None:
        """Hold out a share of everything, which becomes train, or else of the train folder."""
        if self._by_split[split]:
            raise self.error(f"{split}_share={share:g}, but there is a {split} folder")
        if pool := self._by_split[_ALL]:
            self._by_split |= {_ALL: [], "train": pool}
            self._left_out["train"] += self._left_out.pop(_ALL, Counter())
        if not self._by_split["train"]:
            raise self.error(f"{split}_share={share:g} is held out of train, but there is no train folder")
        if not self._hold_out(split, share):
            largest = max(Counter(sample.label for sample in self._by_split["train"]).values())
            raise self.error(
                f"{split}_share={share:g} of {largest} images in the largest class is less than one. "
                f"Add images, or increase {split}_share to {1 / largest:.2g}"
            )


def _common_folder(names: list[str], classes: Set[str], labels: tuple[str, ...]) -> str:
    """Return the folder around all files, such as "a/b/" or ""; folders of splits and classes do not count."""
    prefix = ""
    while True:
        tops = {name.removeprefix(prefix).split("/")[0] for name in names}
        top = tops.pop()
        if tops or top.lower() in _SPLITS or top in classes or _is_class(top, labels) or f"{prefix}{top}" in names:
            return prefix
        prefix += f"{top}/"


def _is_class(name: str, labels: tuple[str, ...]) -> bool:
    if name.isdecimal():
        return True
    try:
        parse_label(name, (*EIGHT_LABELS, *labels))
    except UnknownLabel:
        return False
    return True
