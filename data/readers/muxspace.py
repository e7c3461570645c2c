"""muxspace faces: square 144x144 crops around press photos and film stills, with YuNet's landmarks.

Layout: `labels.csv` next to `train/`, `valid/` and an optional `test/`. About two thirds of a crop repeat the edge of
a source image that was itself a tight face crop, so faces are aligned by their landmarks.

    mien data check muxspace path/to/muxspace

Each label is from one annotator. Happiness and neutral are mostly correct, the rare expressions are not. Contempt is
left out.
"""

import re
from collections.abc import Iterator
from typing import ClassVar, Final

from mien.data.contract import EIGHT_LABELS, LABELS, parse_label
from mien.data.readers.base import Reader, Sample
from mien.data.readers.photos import landmarks_of

# "right" and "left" are from the person's view, so the right eye is on the left side of the image
_POINTS: Final = ("right_eye", "left_eye", "nose", "right_mouth", "left_mouth")


class Muxspace(Reader):
    """Reader of the muxspace crops; the option `classes=happiness,neutral` leaves out the unreliable labels."""

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

    published: ClassVar = {
        "train": dict(zip(LABELS, (293, 17, 162, 4540, 208, 202, 5481), strict=True)),
        "valid": dict(zip(LABELS, (37, 2, 17, 568, 26, 25, 685), strict=True)),
    }

    def read(self) -> Iterator[Sample]:
        self.enter("labels.csv")
        return self.rows("labels.csv", _sample)


def _sample(row: dict[str, str]) -> Sample:
    label = parse_label(row["emotion"], EIGHT_LABELS)
    if row["split"] not in ("train", "valid", "test"):
        raise ValueError(f"split {row['split']}")
    person = re.sub(r"_?\d+k?$", "", row["source"].rsplit(".", 1)[0])
    points = landmarks_of(row, _POINTS)
    return Sample(row["file"], row["split"], label, landmarks_px=points, attributes={"person": person})
