"""RAF-DB in its Kaggle layout: the aligned 100x100 images in numbered folders.

Layout: `DATASET/train/1/train_00001_aligned.jpg` to `DATASET/train/7/...` and `DATASET/test/1` to `7`. The CSV files of
the copy repeat the folders and are not read.

    mien data check raf_db_kaggle path/to/archive.zip

The validation split is held out of train as in `raf_db`, by the same ids, so both copies have the same splits.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import ClassVar, Final

from mien.data.contract import LABELS, RAF_DB_IDS
from mien.data.readers.base import Sample
from mien.data.readers.raf_db import WHERE_TO_GET, RafDbReader, split_of

_IMAGE: Final = re.compile(r"(?P<prefix>(?:.*/)?)(?P<key>(?:train|test)/(?P<number>[^/]+)/[^/]+\.jpe?g)")


class RafDbKaggle(RafDbReader):
    """Reader of RAF-DB in its Kaggle layout.

    Options:
        hold_out_valid: false keeps all of train in train.
        exclude_near_duplicates_of: splits, as a list or comma-separated; see `Reader`.
    """

    kind: ClassVar[str] = "raf_db_kaggle"
    title: ClassVar[str] = "RAF-DB (Kaggle copy)"
    where_to_get: ClassVar[str] = (
        f"This layout is shuvoalok/raf-db-dataset on Kaggle; the rights are those of the original. {WHERE_TO_GET}"
    )

    def __init__(
        self, root: Path | str, *, hold_out_valid: bool = True, exclude_near_duplicates_of: Sequence[str] = ()
    ) -> None:
        super().__init__(root, hold_out_valid=hold_out_valid, exclude_near_duplicates_of=exclude_near_duplicates_of)
        matches = [match for name in self.tree.names if (match := _IMAGE.fullmatch(name))]
        if not matches:
            raise self.error(f"no DATASET/train/1/*.jpg in {root}")
        self._prefix = matches[0]["prefix"]
        label_by_key = {match["key"]: self._label(match["number"], match["key"]) for match in matches}
        by_id = {_id_of(key): label for key, label in label_by_key.items()}
        if len(by_id) < len(matches):
            ids = Counter(_id_of(match["key"]) for match in matches)
            raise self.error(f"{ids.most_common(1)[0][0]} is in two class folders")
        split_by_id = split_of(by_id, hold_out_valid=hold_out_valid)
        for key, label in label_by_key.items():
            split = split_by_id[_id_of(key)]
            self._by_split[split].append(Sample(key, split, label))

    def _label(self, number: str, where: str) -> str:
        label = RAF_DB_IDS.get(int(number)) if number.strip().isdecimal() else None
        if label is None:
            raise self.error(f"class {number!r} of {where}: expected 1 to {len(LABELS)}")
        return label


def _id_of(key: str) -> str:
    return PurePosixPath(key).stem.removesuffix("_aligned")
