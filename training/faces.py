"""Labeled faces of one split of one data set, for evaluation, releases and reports."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from mien.data.contract import Array
from mien.data.readers.base import index_sha256, open_reader
from mien.data.tree import DatasetError
from mien.training.config import DataSource

TEST: Final = "test"


@dataclass(frozen=True, slots=True)
class FaceSet:
    """One split, sorted by key.

    Attributes:
        crops: (N, 112, 112, 3) uint8, RGB.
        labels: (N,) class indices.
        votes: (N, K) vote shares, or None if the set has none.
        index_sha256: hash of the data, see `index_sha256`.
        clean: (N,) bool, whether a face resembles no train face; None if unknown.
    """

    kind: str
    split: str
    crops: Array
    labels: Array
    votes: Array | None
    keys: tuple[str, ...]
    index_sha256: str
    clean: Array | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def check_classes(self, count: int, *, of: str) -> None:
        """Check that a network with `count` classes has those of the faces. Raises: DatasetError."""
        classes = int(self.labels.max()) + 1 if self.votes is None else self.votes.shape[1]
        if classes > count:
            raise DatasetError(f"{self.kind}: {self.split} has contempt, {of} does not. Leave out classes=8.")

    def sample(self, count: int) -> "FaceSet":
        """At most `count` random faces, the same ones each time."""
        if count >= len(self):
            return self
        chosen = np.sort(np.random.default_rng(0).choice(len(self), count, replace=False))
        return replace(
            self,
            crops=self.crops[chosen],
            labels=self.labels[chosen],
            votes=None if self.votes is None else self.votes[chosen],
            keys=tuple(self.keys[index] for index in chosen),
            clean=None if self.clean is None else self.clean[chosen],
        )

    def changed_since(self, trained_with: Mapping[str, str]) -> str:
        """Warning if a training with these index hashes by kind/split used other data as this split, or ""."""
        name = f"{self.kind}/{self.split}"
        used = any(known.split(" ")[0] == name for known in trained_with)
        if not used or self.index_sha256 in trained_with.values():
            return ""
        return (
            f"{self.kind} {self.split} changed since the training, or has other options, so it may contain faces of "
            "the training."
        )

    @property
    def title(self) -> str:
        """Display name: set, split and number of faces."""
        return f"{self.kind}, {self.split} split, {len(self):,} faces"


def read_faces(source: DataSource, *, find_clean: bool = False) -> FaceSet:
    """Read and decode one split, and determine its clean faces on request. Raises: DatasetError; see `DataSource`."""
    kind, split = source.kind, source.split
    reader = open_reader(kind, source.resolved_root(), **source.options)
    samples = reader.labeled(split)
    shares = [sample.distribution for sample in samples]
    return FaceSet(
        kind=kind,
        split=split,
        crops=np.stack([reader.crop(sample) for sample in samples]),
        labels=np.array([reader.labels.index(str(sample.label)) for sample in samples]),
        votes=None if any(share is None for share in shares) else np.array(shares, dtype=np.float64),
        keys=tuple(sample.key for sample in samples),
        index_sha256=index_sha256(reader, split),
        clean=reader.clean(split) if find_clean else None,
    )
