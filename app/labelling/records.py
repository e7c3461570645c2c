"""What is known of an input, a picture and a face while a folder is labelled; the rows of the journal."""

import hashlib
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from data.contract import LABELS, Array

Kind = Literal["file", "zip", "tar", "video", "none"]
Status = Literal["ok", "no_face", "error", "skipped"]

STILL: Final = -1  # the frame number of what is no video
# Reasons that may be gone at the next run, so such items are tried again.
TRANSIENT: Final = ("permission_denied", "not_found", "unreadable")

Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an input has no faces to show: a stable code, and a sentence for people."""

    reason: str
    message: str
    status: Status = "error"


@dataclass(frozen=True, slots=True)
class Source:
    """One input as the scan found it.

    name: how it is called in every output; unique, with forward slashes.
    path: the file's, or its archive's, path as bytes.
    member: index within an archive; None for a plain file.
    signature: changes when the input does: size, time, place, sampling.
    failure: what the scan already knows to be wrong.
    """

    name: str
    kind: Kind
    path: bytes
    member: int | None
    size: int
    signature: str
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """One picture to be labelled: a file, a member of an archive or a frame of a video.

    frame: number from 0 in its video, `STILL` otherwise; time_s: seconds from the video's start.
    payload: encoded bytes, where reading has to be in order (compressed tar); pixels: a decoded frame.
    products: bits of the pictures that this item must write.
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
class FaceRecord:
    """One labelled face; boxes and landmarks in pixels of the upright picture, probabilities (7,) in `LABELS` order."""

    box_px: Box
    landmarks_px: Array
    score: float
    probabilities: Array
    label: str
    confidence: float
    uncertain: bool
    roll_degrees: float
    sharpness: float
    thumb: bytes = b""


@dataclass(frozen=True, slots=True, eq=False)
class PictureRecord:
    """What became of one item."""

    item: Item
    status: Status
    width: int = 0
    height: int = 0
    sha256: str = ""
    faces: tuple[FaceRecord, ...] = ()
    failure: Failure | None = None
    products: int = 0


@dataclass(slots=True)
class Tally:
    """Counts and times of one run of the program, for people; never part of an output."""

    pictures: int = 0
    faces: int = 0
    errors: int = 0
    skipped: int = 0
    no_face: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, record: PictureRecord) -> None:
        """Count one picture."""
        self.pictures += 1
        self.faces += len(record.faces)
        self.errors += record.status == "error"
        self.skipped += record.status == "skipped"
        self.no_face += record.status == "no_face"

    def spend(self, stage: str, seconds: float) -> None:
        """Add thread time to a stage."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds


def uncertainty(probabilities: Array) -> float:
    """Entropy of the seven probabilities over its maximum: 0 when one label has all, 1 when all are alike."""
    p = np.clip(np.asarray(probabilities, dtype=np.float64), 1e-12, 1.0)
    return float(-(p * np.log(p)).sum() / np.log(len(LABELS)))


def sha256_hex(payload: bytes) -> str:
    """SHA-256 of bytes, 64 hexadecimal digits."""
    return hashlib.sha256(payload).hexdigest()
