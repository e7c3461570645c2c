"""Cross-validation folds, the same on every machine, with each group in one fold and each class spread evenly.

A group is a person, a photo, or a set of near-duplicate images.
"""

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np

from mien.data.contract import Array
from mien.data.errors import DatasetError
from mien.data.near_duplicates import near_duplicate_groups
from mien.data.readers.base import Reader, Sample

Grouping = Literal["none", "person", "photo", "near_duplicates"]


def folds_of(reader: Reader, samples: Sequence[Sample], *, folds: int, group_by: Grouping = "none") -> Array:
    """Fold of each sample, (N,) from 0 to `folds` - 1.

    Args:
        samples: samples of one split.
        group_by: what must stay in one fold; `photo` is the attribute of this name, or the file.
    Raises: DatasetError, if the set does not support the grouping, or a fold would have no groups.
    """
    from sklearn.model_selection import StratifiedGroupKFold  # of training, which alone needs folds

    groups, labels = _groups(reader, samples, group_by), [str(sample.label) for sample in samples]
    count, largest = len(set(groups)), max(Counter(labels).values())
    if min(count, largest) < folds:
        raise DatasetError(
            f"{reader.kind}: {count} groups by {group_by} and {largest} faces of the most frequent class are too few "
            f"for {folds} folds"
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)  # not in each fold, then
        parts = StratifiedGroupKFold(folds, shuffle=True, random_state=0).split(groups, labels, groups)
        fold_of = np.empty(len(samples), int)
        for fold, (_others, chosen) in enumerate(parts):
            fold_of[chosen] = fold
    return fold_of


def _groups(reader: Reader, samples: Sequence[Sample], group_by: Grouping) -> list[str]:
    if group_by == "none":
        return [sample.key for sample in samples]
    if group_by == "photo":
        return [sample.attributes.get("photo") or reader.path_of(sample) for sample in samples]
    if group_by == "near_duplicates":
        numbers = near_duplicate_groups(reader.thumbnails(samples))
        return [samples[int(number)].key for number in numbers]
    if any("person" not in sample.attributes for sample in samples):
        raise DatasetError(f"{reader.kind}: the set does not identify persons; group by photo or near_duplicates")
    return [sample.attributes["person"] for sample in samples]
