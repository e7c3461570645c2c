"""muxspace faces: square 144x144 crops around press photos and film stills, with YuNet's landmarks.

Layout: `labels.csv` next to `train/`, `valid/` and an optional `test/`. About two thirds of a crop repeat the edge of
a source image that was itself a tight face crop, so faces are aligned by their landmarks.

    mien data check muxspace path/to/muxspace

Each label is from one annotator. Happiness and neutral are mostly correct, the rare expressions are not. Contempt is
left out.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from mien.data.contract import LABELS, parse_label
from mien.data.readers.base import Reader, Sample
from mien.data.tree import DatasetError

# "right" and "left" are from the person's view, so the right eye is on the left side of the image
_POINTS: Final = ("right_eye", "left_eye", "nose", "right_mouth", "left_mouth")
_PUBLISHED: Final = {
    "train": dict(zip(LABELS, (293, 17, 162, 4540, 208, 202, 5481), strict=True)),
    "valid": dict(zip(LABELS, (37, 2, 17, 568, 26, 25, 685), strict=True)),
}


class Muxspace(Reader):
    """Reader of the muxspace crops.

    Options:
        keep: labels to use, as a list or comma-separated; happiness,neutral leaves out the unreliable ones.
    """

    kind: ClassVar[str] = "muxspace"
    title: ClassVar[str] = "muxspace faces"
    where_to_get: ClassVar[str] = (
        "Source images and labels: github.com/muxspace/facial_expressions; this layout adds crops and landmarks by "
        "YuNet in a labels.csv"
    )
    terms: ClassVar[str] = (
        "labels Apache-2.0; the images are press photos and film stills, and their owners keep the copyright"
    )
    limits: ClassVar[str] = (
        "muxspace faces are mostly grayscale press photos of well-known people, each labeled by one person; most "
        "labels of rare expressions are wrong."
    )

    def __init__(self, root: Path | str, *, keep: Sequence[str] = LABELS) -> None:
        super().__init__(root)
        self.keep = frozenset(keep)
        if not self.keep or not self.keep <= set(LABELS):
            raise DatasetError(f"muxspace: {keep=}: expected some of {', '.join(LABELS)}")
        self._prefix = self.folder_of("labels.csv")
        name = f"{self._prefix}labels.csv"
        for line, row in enumerate(self.tree.read_csv(name), start=2):
            try:
                split = row["split"]
                label = "contempt" if row["emotion"] == "contempt" else parse_label(row["emotion"])
                if label not in self.keep:
                    self._left_out[split][label] += 1
                    continue
                person = re.sub(r"_?\d+k?$", "", row["source"].rsplit(".", 1)[0])
                points = tuple((float(row[f"{point}_x"]), float(row[f"{point}_y"])) for point in _POINTS)
                sample = Sample(row["file"], split, label, landmarks_px=points, attributes={"person": person})
                self._by_split[split].append(sample)
            except (KeyError, TypeError, ValueError) as error:
                raise self.error(f"{name} line {line}: {error!r} in {row}") from error

    def expected_counts(self) -> Mapping[str, Mapping[str, int]]:
        """Return the counts of the published train and valid splits, without contempt; {} if `keep` is set."""
        return _PUBLISHED if self.keep == set(LABELS) else {}
