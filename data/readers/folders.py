"""Class folders: your own face crops, as `split/class/*.jpg` or `class/*.jpg`.

Names of expressions may have any common spelling (`happy`, `4_Happiness`), and so may split names (`training`, `val`).
Numbers and other names need the option `labels`, because data sets number the expressions differently. Classes of your
own are listed in the option `classes`. A root without split folders is one split, `train`. Kaggle's copies of FER2013
and AffectNet have this layout.
The `manifest.csv` of an export of `mien review` tells the photo or video of each face and, in videos, the person.

    mien data check folders path/to/faces --option valid_share=0.1 --option ignore=contempt
    mien data check folders path/to/faces --option classes=bored,confused,interested

The largest faces of whole photos become crops in the same folders by

    MIEN_MAX_FACES=1 mien label path/to/photos --out found --write crops && mien data check folders found/crops
"""

import logging
import posixpath
import re
from collections import Counter
from itertools import takewhile
from pathlib import PurePosixPath
from typing import ClassVar, Final

from pydantic import Field, ValidationInfo, field_validator

from mien.data.contract import EIGHT_LABELS, UnknownLabel, parse_label
from mien.data.readers.base import LabelOf, Names, Reader, ReaderOptions, Sample, held_out

_SPLITS: Final = {
    "train": "train", "training": "train",
    "valid": "valid", "val": "valid", "validation": "valid", "dev": "valid",
    "test": "test", "testing": "test",
}  # fmt: skip
_IMAGE: Final = re.compile(r"\.(jpe?g|jfif|png|webp|bmp|gif|tiff?|avif|hei[cf])$", re.IGNORECASE)
_MANIFEST: Final = "manifest.csv"
logger = logging.getLogger(__name__)


class FoldersOptions(ReaderOptions):
    """Options of class folders.

    Attributes:
        valid_share, test_share: share of each class of train that is held out, by the SHA-256 of the file's name with
            its class folder.
        labels: the expression of class folders whose names are numbers or in another language, spelled as on disk:
            a mapping, or `1=anger,2=disgust`.
        ignore: class folders to leave out, spelled as on disk.
    """

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
        "folders, such as numbers, ignore=folder,folder excludes class folders, and valid_share=0.1 and test_share=0.1 "
        "hold out a part of each class of train"
    )
    terms: ClassVar[str] = "those of the owner of the images"
    limits: ClassVar[str] = "Metrics on class folders apply to similar images only."

    known_labels: ClassVar = None
    Options = FoldersOptions

    def read(self) -> list[Sample]:
        images = [name for name in self.files if "/" in name and _IMAGE.search(name)]
        if not images:
            raise self.error(f"no images in folders below {self.root}")
        self._note_ignored()
        # by class folder, as read
        self._label_of = {name: parse_label(label, self.labels) for name, label in self.options.labels.items()}
        self._label_of |= {name: f"{name} (ignored)" for name in self.options.ignore if name}
        common = posixpath.commonpath([posixpath.dirname(name) for name in images])
        prefix = "".join(f"{name}/" for name in takewhile(self._is_outside, filter(None, common.split("/"))))
        self.files = {name.removeprefix(prefix): file for name, file in self.files.items()}
        keys = [name.removeprefix(prefix) for name in images]
        has_splits = any(key.split("/")[0].lower() in _SPLITS for key in keys)
        classes = {key.split("/")[has_splits] for key in keys if key.count("/") > has_splits}
        for option in ("ignore", "labels"):
            if missing := ",".join(sorted({*getattr(self.options, option)} - classes - {""})):
                raise self.error(
                    f"{option}={missing}: no such class folder with images in {self.root}, only "
                    f"{', '.join(sorted(classes))}"
                )
        sources = self._sources()
        samples = [self._sample(key, sources.get(PurePosixPath(key).name, {}), has_splits=has_splits) for key in keys]
        read = ", ".join(f"{name} = {label}" for name, label in sorted(self._label_of.items()))
        self.notes.append(f"class folders read as {read}")
        for note in self.notes:
            logger.info("%s: %s", self.root, note)
        valid_share, test_share = self.options.valid_share, self.options.test_share
        for split, share in (("test", test_share), ("valid", valid_share / (1 - test_share))):
            if share:
                samples = self._hold_out(samples, split, share)
        return samples

    def _note_ignored(self) -> None:
        names = [name for name in self.files if not _IMAGE.search(name) and "/" in name]
        for suffix, count in sorted(Counter(PurePosixPath(name).suffix or name for name in names).items()):
            if suffix not in (".csv", ".txt", ".md"):
                self.notes.append(f"{count} files ignored: {suffix} is not a supported image")
        if loose := [name for name in self.files if "/" not in name and _IMAGE.search(name)]:
            self.notes.append(f"{len(loose)} images ignored: in no class folder, such as {loose[0]}")

    def _is_outside(self, name: str) -> bool:
        """Tell a folder around the data from one of a split or class."""
        if name.lower() in _SPLITS or name in self._label_of or name.isdecimal():
            return False
        try:
            parse_label(name, (*EIGHT_LABELS, *self.labels))
        except UnknownLabel:
            return True
        return False

    def _sources(self) -> dict[str, dict[str, str]]:
        """Photo or video of each exported face and, in a video, the person; by file name, which survives a move."""
        sources = {}
        for row in self.rows(_MANIFEST, dict) if _MANIFEST in self.files else ():
            if row.get("image") and row.get("file"):  # A table of another program has other columns.
                person = row.get("name") or (f"{row['file']} {row['person']}" if row.get("person") else "")
                attributes = {"photo": row["file"]} | ({"person": person} if person else {})
                sources[PurePosixPath(row["image"]).name] = attributes
        return sources

    def _sample(self, key: str, attributes: dict[str, str], *, has_splits: bool) -> Sample:
        top, *others = key.split("/")[:-1] or [""]
        split, folders = (_SPLITS.get(top.lower()), others) if has_splits else ("train", [top, *others])
        if split is None:
            raise self.error(f"{key} is next to the split folders; move it into train, valid or test")
        if not folders or not folders[0]:
            raise self.error(f"{key} is in no class folder")
        name = folders[0]
        if not has_splits and others and others[0].lower() in _SPLITS:
            raise self.error(f"{key}: the split is below the class; move it to {others[0]}/{name}/")
        if name not in self._label_of:
            try:
                self._label_of[name] = parse_label(name, self.labels)
            except UnknownLabel as error:
                raise self.error(f"{key}: {error}") from error
        return Sample(key, split, self._label_of[name], attributes=attributes)

    def _hold_out(self, samples: list[Sample], split: str, share: float) -> list[Sample]:
        """Hold out a share of each class of train."""
        if any(sample.split == split for sample in samples):
            raise self.error(f"{split}_share={share:g}, but there is a {split} folder")
        counts = Counter(sample.label for sample in samples if sample.split == "train" and sample.label in self.labels)
        if not counts:
            raise self.error(f"{split}_share={share:g} is held out of train, but there is no train folder")
        if (largest := max(counts.values())) * share < 1 - 1e-9:
            raise self.error(
                f"{split}_share={share:g} of {largest} images in the largest class is less than one. "
                f"Add images, or increase {split}_share to {1 / largest:.2g}"
            )
        return held_out(samples, split, share)
