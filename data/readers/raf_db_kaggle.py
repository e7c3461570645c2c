"""RAF-DB in its Kaggle layout: the aligned 100x100 images in numbered folders.

Layout: `DATASET/train/1/train_00001_aligned.jpg` to `DATASET/train/7/...`, `DATASET/test/1` to `7`, and next to or
above them `train_labels.csv` and `test_labels.csv` (columns image, label). A CSV file takes precedence over folders.

    mien data check raf_db_kaggle path/to/archive.zip

The validation split is held out of train as in `raf_db`, by the same ids, so both copies have the same splits.
"""

import re
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import ClassVar, Final

from mien.data.contract import LABELS, RAF_DB_IDS
from mien.data.readers.base import Sample
from mien.data.readers.raf_db import WHERE_TO_GET, RafDbReader, split_of

_IMAGE: Final = re.compile(r"(?P<prefix>(?:.*/)?)(?P<key>(?:train|test)/(?P<number>[^/]+)/[^/]+\.jpe?g)")
_NUMBER_BY_LABEL: Final = {label: number for number, label in RAF_DB_IDS.items()}


class RafDbKaggle(RafDbReader):
    """Reader of RAF-DB in its Kaggle layout.

    Options:
        hold_out_valid: false keeps all of train in train.
    """

    kind: ClassVar[str] = "raf_db_kaggle"
    title: ClassVar[str] = "RAF-DB (Kaggle copy)"
    where_to_get: ClassVar[str] = (
        f"This layout is shuvoalok/raf-db-dataset on Kaggle; the rights are those of the original. {WHERE_TO_GET}"
    )

    def __init__(self, root: Path | str, *, hold_out_valid: bool = True) -> None:
        super().__init__(root, hold_out_valid=hold_out_valid)
        matches = [match for name in self.tree.names if (match := _IMAGE.fullmatch(name))]
        if not matches:
            raise self.error(f"no DATASET/train/1/*.jpg in {root}")
        self._prefix = matches[0]["prefix"]
        self._in_folders = {match["key"]: self._label(match["number"], match["key"]) for match in matches}
        listed = {key: label for part in ("train", "test") for key, label in self._listed(part).items()}
        self._label_by_key = listed or self._in_folders
        by_id = {_id_of(key): label for key, label in self._label_by_key.items()}
        self._split_by_id = split_of(by_id, hold_out_valid=hold_out_valid)

    def findings(self) -> list[str]:
        """Report images in a class folder that no CSV file lists under this class."""
        unlisted = sorted(self._in_folders.keys() - self._label_by_key.keys())
        if not unlisted:
            return []
        return [f"{len(unlisted)} images in class folders are not listed there by a CSV file, such as {unlisted[0]}"]

    def _label(self, number: str, where: str) -> str:
        label = RAF_DB_IDS.get(int(number)) if number.strip().isdecimal() else None
        if label is None:
            raise self.error(f"class {number!r} of {where}: expected 1 to {len(LABELS)}")
        return label

    def _listed(self, part: str) -> dict[str, str]:
        """Return the label of each key from `<part>_labels.csv`; {} if there is no such file."""
        prefix = self.tree.prefix_of(f"{part}_labels.csv")
        if prefix is None:
            return {}
        name = f"{prefix}{part}_labels.csv"
        rows = self.tree.read_csv(name)
        if not {"image", "label"} <= set(rows.fieldnames or ()):
            raise self.error(f"{name} has columns {rows.fieldnames}, expected image and label")
        labels: dict[str, str] = {}
        for row in rows:
            label = self._label(row["label"], f"{row['image']} in {name}")
            labels[f"{part}/{_NUMBER_BY_LABEL[label]}/{row['image']}"] = label
        twice = [file for file, count in Counter(PurePosixPath(key).name for key in labels).items() if count > 1]
        if twice:
            raise self.error(f"{name} lists {twice[0]} under two classes")
        return labels

    def _read_split(self, split: str) -> list[Sample]:
        return [
            Sample(key, split, label)
            for key, label in self._label_by_key.items()
            if self._split_by_id[_id_of(key)] == split
        ]


def _id_of(key: str) -> str:
    return PurePosixPath(key).stem.removesuffix("_aligned")
