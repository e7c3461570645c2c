"""Cross-validation folds by hash: the same on every machine, with each group in one fold.

A group is a person, a photo, or a set of near-duplicate images. Without groups, each class is spread
evenly over the folds.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np

from mien.data.contract import Array
from mien.data.near_duplicates import near_duplicate_groups
from mien.data.readers.base import Reader, Sample
from mien.data.tree import DatasetError

Grouping = Literal["none", "person", "photo", "near_duplicates"]


def folds_of(reader: Reader, samples: Sequence[Sample], *, folds: int, group_by: Grouping = "none") -> Array:
    """Fold of each sample, (N,) from 0 to `folds` - 1.

    Args:
        samples: samples of one split.
        group_by: what must stay in one fold; `photo` is the attribute of this name, or the part of a key before `#`.
    Raises: DatasetError, if the set does not support the grouping, or a fold would have no groups.
    """
    groups = _groups(reader, samples, group_by)
    labels = [str(sample.label) if group_by == "none" else "" for sample in samples]
    fold_of = _assign(groups, labels, folds)
    if (filled := len(set(fold_of.values()))) < folds:
        raise DatasetError(
            f"{reader.kind}: {len(fold_of)} groups by {group_by} are too few for {folds} folds: they fill {filled}"
        )
    return np.array([fold_of[group] for group in groups])


def _groups(reader: Reader, samples: Sequence[Sample], group_by: Grouping) -> list[str]:
    if group_by == "none":
        return [sample.key for sample in samples]
    if group_by == "photo":
        return [sample.attributes.get("photo") or sample.key.split("#")[0] for sample in samples]
    if group_by == "near_duplicates":
        numbers = near_duplicate_groups(reader.thumbnails(samples))
        return [samples[int(number)].key for number in numbers]
    if any("person" not in sample.attributes for sample in samples):
        raise DatasetError(f"{reader.kind}: the set does not identify persons; group by photo or near_duplicates")
    return [sample.attributes["person"] for sample in samples]


def _assign(groups: Sequence[str], labels: Sequence[str], folds: int) -> dict[str, int]:
    """Fold by group: the largest groups first, each into the fold with the fewest images of its class so far.

    Of equal folds, the one with the fewest images is next, or else the rest of each class would be in the first folds.
    """
    sizes, label_of = Counter(groups), dict(zip(groups, labels, strict=True))
    ranked = sorted(sizes, key=lambda group: (-sizes[group], hashlib.sha256(group.encode()).digest()))
    filled: dict[str, list[int]] = {label: [0] * folds for label in set(labels)}
    totals = [0] * folds
    fold_of = {}
    for group in ranked:
        counts = filled[label_of[group]]
        fold = min(range(folds), key=lambda fold: (counts[fold], totals[fold]))
        fold_of[group] = fold
        counts[fold] += sizes[group]
        totals[fold] += sizes[group]
    return fold_of
