"""FERPlus: 48x48 gray web faces of FER2013, each labeled by ten people (Barsoum et al. 2016).

Layout, as in github.com/microsoft/FERPlus: `FER2013Train/`, `FER2013Valid/` and `FER2013Test/`, each with PNG files and
a `label.csv` without a header: file, face box, then the votes of `COLUMNS`.

    mien data check ferplus path/to/ferplus --option protocol=probability

Rules, as in `_process_data` and `load_folders` of the official `src/ferplus.py`:
- A column with a single vote is an outlier and becomes 0, in both protocols.
- majority: the largest column is the label if it has more than half of the remaining votes.
- probability: columns are selected from the largest, equal ones together, until they have three quarters of the
  remaining votes or three are selected. Selection stops at unknown or NF, which is selected only if it comes first. The
  image is used if at most three columns are selected and they have more than half of the votes.
- Images whose largest column is unknown or NF are left out; with seven classes, so are those of contempt.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final, Literal

import numpy as np

from mien.data.contract import EIGHT_LABELS
from mien.data.readers.base import Reader, ReaderOptions, Sample

COLUMNS: Final = (
    "neutral", "happiness", "surprise", "sadness", "anger", "disgust", "fear", "contempt", "unknown", "NF",
)  # fmt: skip
_NOT_EMOTIONS: Final = ("unknown", "NF")
_FOLDERS: Final = {"train": "FER2013Train", "valid": "FER2013Valid", "test": "FER2013Test"}

Protocol = Literal["majority", "probability"]


class FerPlusOptions(ReaderOptions):
    """Options of FERPlus; of near-duplicates, images that the protocol leaves out count, too."""

    protocol: Protocol = "majority"  # which images are used, and how votes become a distribution; see above


class FerPlus(Reader):
    """Reader of FERPlus; under the majority protocol, `distribution` has the votes without single ones."""

    kind: ClassVar[str] = "ferplus"
    title: ClassVar[str] = "FERPlus"
    where_to_get: ClassVar[str] = (
        "Images: fer2013.csv of the challenge of 2013 on Kaggle; votes: github.com/microsoft/FERPlus, whose "
        "src/generate_training_data.py writes this layout from both"
    )
    terms: ClassVar[str] = (
        "votes MIT (Microsoft); the images (FER2013) are from the web and were collected for research, and their "
        "owners keep the copyright"
    )
    limits: ClassVar[str] = (
        "FERPlus faces are 48-pixel grayscale images from the web of 2013. Other skin tones, ages, cameras and "
        "cultures are underrepresented, and there are no annotations to measure results by group. Disgust and fear "
        "are rare, so their intervals are wide."
    )

    known_labels: ClassVar = EIGHT_LABELS
    # Under the majority protocol, in the order of COLUMNS, counted from the votes published by Microsoft.
    published: ClassVar = {
        "train": dict(zip(COLUMNS[:8], (8733, 7284, 3136, 3022, 2098, 116, 536, 120), strict=True)),
        "valid": dict(zip(COLUMNS[:8], (1180, 862, 411, 348, 289, 25, 60, 16), strict=True)),
    }
    Options = FerPlusOptions

    def read(self) -> Iterator[Sample]:
        self.enter(*(f"{folder}/label.csv" for folder in _FOLDERS.values()))
        rule = majority_shares if self.options.protocol == "majority" else probability_shares
        self._votes: dict[str, tuple[int, ...]] = {}  # by key, in the order of COLUMNS
        for split, folder in _FOLDERS.items():
            file = f"{folder}/label.csv"
            for name, votes in self.rows(file, _voted, header=False) if file in self.files else ():
                key = f"{folder}/{name}"
                self._votes[key] = votes
                label, shares = rule(votes)
                yield Sample(key, split, label or "no majority", self.distribution(shares))

    def expected_counts(self) -> Mapping[str, Mapping[str, int]]:
        return super().expected_counts() if self.options.protocol == "majority" else {}

    def voted(self, split: str) -> list[tuple[Sample, tuple[int, ...]]]:
        """List the images with their votes, single ones included; near-duplicates of other splits, too."""
        columns = [COLUMNS.index(label) for label in self.labels]
        votes = ((image, self._votes[image.key]) for image in self._images[split])
        chosen = ((image, tuple(of[column] for column in columns), sum(of)) for image, of in votes)
        return [(image, of) for image, of, total in chosen if 2 * sum(of) > total]


def _voted(row: list[str]) -> tuple[str, tuple[int, ...]]:
    """File and votes of a row with, perhaps, a box between them."""
    votes = [cell.strip().removesuffix(".0") for cell in row[-len(COLUMNS) :]]
    if len(row) - len(COLUMNS) not in (1, 2) or not all(map(str.isdecimal, votes)):
        raise ValueError(f"expected a file, perhaps a box, and {len(COLUMNS)} vote counts")
    return row[0], tuple(map(int, votes))


def _without_single_votes(votes: Sequence[int]) -> dict[str, int]:
    return {name: count if count > 1 else 0 for name, count in zip(COLUMNS, votes, strict=True)}


def majority_shares(votes: Sequence[int]) -> tuple[str | None, dict[str, float]]:
    """Return the majority column (None if there is none) and the votes of each column without single ones."""
    counts = _without_single_votes(votes)
    top = max(counts, key=lambda name: counts[name])
    label = top if counts[top] > 0.5 * sum(counts.values()) else None
    return label, {name: float(count) for name, count in counts.items()}


def probability_shares(votes: Sequence[int]) -> tuple[str | None, dict[str, float]]:
    """Return the largest selected column (None if the image is not used) and the votes of the selected columns."""
    counts = _without_single_votes(votes)
    total = sum(counts.values())
    taken: dict[str, float] = dict.fromkeys(COLUMNS, 0.0)
    for size in sorted({count for count in counts.values() if count}, reverse=True):
        if sum(taken.values()) >= 0.75 * total or np.count_nonzero(list(taken.values())) >= 3:
            break
        equal = [name for name in COLUMNS if counts[name] == size]
        emotions = [name for name in equal if name not in _NOT_EMOTIONS]
        taken |= dict.fromkeys(emotions, float(size))
        if len(emotions) < len(equal):
            if not any(taken.values()):
                return equal[0], taken
            break
    chosen = [name for name in COLUMNS if taken[name]]
    if sum(taken.values()) <= 0.5 * total or len(chosen) > 3:
        return None, taken
    return max(chosen, key=lambda name: taken[name]), taken
