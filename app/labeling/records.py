"""Records of an input, an image and a face while a folder is labeled; the rows of the journal."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from app.inference.detect import Face
from app.inference.pipeline import LabeledFace
from data.contract import LABELS, Array

# folder: one that cannot be read; none: an entry that is never opened
Kind = Literal["file", "zip", "tar", "video", "folder", "none"]
Status = Literal["ok", "no_face", "error", "skipped"]

STILL: Final = -1  # frame number of everything but videos
# Reasons that may have passed at the next run, so such items are tried again.
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

    name: its name in every output; unique, with forward slashes.
    path: path of the file, as bytes.
    signature: changes when the input does: size, time, sampling.
    failure: what the scan found to be wrong.
    """

    name: str
    kind: Kind
    path: bytes
    size: int
    signature: str
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """One picture to be labeled: a file, a member of an archive or a frame of a video.

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
    """One labeled face; boxes and landmarks in pixels of the upright picture, probabilities (7,) in `LABELS` order.

    number: from 0 within the picture, largest first; known once it is read from the journal.
    """

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
    number: int = 0

    def labeled(self) -> LabeledFace:
        """The face as the pipeline gave it, without its crop."""
        return LabeledFace(
            face=Face(self.box_px, self.landmarks_px, self.score),
            probabilities=self.probabilities,
            label=self.label,
            confidence=self.confidence,
            uncertain=self.uncertain,
            roll_degrees=self.roll_degrees,
            crop=np.empty((0, 0, 3), np.uint8),
        )

    def passes(self, min_face_px: float, min_confidence: float) -> bool:
        """Whether the face is in the outputs: its shorter side and its confidence are large enough."""
        return min(self.box_px[2:]) >= min_face_px and self.confidence >= min_confidence


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


def pictures_of(statuses: Mapping[str, int]) -> int:
    """Pictures among the inputs: all but those skipped."""
    return sum(count for status, count in statuses.items() if status != "skipped")
