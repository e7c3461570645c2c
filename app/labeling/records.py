"""Records of inputs, images and faces during labeling, stored as rows of the journal."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from mien.app.inference.pipeline import LabeledFace
from mien.data.contract import Array

# folder: a folder that cannot be read; none: an entry that is never opened
Kind = Literal["file", "zip", "tar", "video", "folder", "none"]
Status = Literal["ok", "no_face", "error", "skipped"]

STILL: Final = -1  # frame number of still images
# Temporary reasons: such items are retried in the next run.
TRANSIENT: Final = ("permission_denied", "not_found", "unreadable")


@dataclass(frozen=True, slots=True)
class Failure:
    """Reason for an input without faces: a stable code, and a message."""

    reason: str
    message: str
    status: Status = "error"


@dataclass(frozen=True, slots=True)
class Source:
    """One input of the scan.

    Attributes:
        name: unique name in all outputs, with forward slashes.
        path: path of the file, as bytes.
        signature: size, time and sampling, to detect changes.
        failure: problem found by the scan.
    """

    name: str
    kind: Kind
    path: bytes
    size: int
    signature: str
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """One image to label: a file, a member of an archive or a frame of a video.

    Attributes:
        frame: number from 0 in its video, otherwise `STILL`.
        time_s: seconds since the start of the video.
        payload: encoded bytes, if the container is read sequentially (compressed tar).
        pixels: a decoded frame.
        products: bit mask of images to write.
    """

    name: str
    kind: Kind
    path: bytes
    member: int | None
    size: int
    frame: int = STILL
    time_s: float | None = None
    products: int = 0
    sha256: str | None = None
    payload: bytes | None = None
    pixels: Array | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ImageRecord:
    """Result of one item."""

    item: Item
    status: Status
    width: int = 0
    height: int = 0
    sha256: str = ""
    faces: tuple[LabeledFace, ...] = ()
    failure: Failure | None = None
    products: int = 0


@dataclass(slots=True)
class Tally:
    """Counts and times of one run for the summary; not part of any output."""

    images: int = 0
    faces: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def spend(self, stage: str, seconds: float) -> None:
        """Add thread time to a stage."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds


def uncertainty(probabilities: Array) -> float:
    """Normalized entropy of the probabilities: 0 if one label is certain, 1 if all are equal."""
    p = np.clip(np.asarray(probabilities, dtype=np.float64), 1e-12, 1.0)
    return float(-(p * np.log(p)).sum() / np.log(len(probabilities)))


def images_of(statuses: Mapping[str, int]) -> int:
    """Number of images: all inputs except skipped ones."""
    return sum(count for status, count in statuses.items() if status != "skipped")
