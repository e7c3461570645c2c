"""Records of a photo and of its labeled faces.

`Face` is what REST returns, what the journal of a run stores and what tables are made of.
"""

import base64
import dataclasses
import io
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, Literal

import numpy as np
from PIL import Image
from pydantic import ConfigDict, Field, PlainSerializer, TypeAdapter
from pydantic.dataclasses import dataclass

from mien.data.contract import CROP_PX, EIGHT_LABELS, LANDMARKS, Array
from mien.data.quality import Reason, head_pose

if TYPE_CHECKING:
    from mien.app.inference.detector import Detection

# Notes about a photo whose labels are valid, by their stable code
NOTES: Final = {
    "incomplete": "the end of the file is missing; what it has is labeled",
    "max_faces": "the photo has more faces than the limit (--max-faces); the largest are labeled",
    "reduced_search": "searched at reduced size, without faces below 1/160 of the long side; --small-faces finds these",
}
NO_CROPS: Final = np.empty((0, CROP_PX, CROP_PX, 3), np.uint8)


def _rounded(digits: int, **limits: float) -> PlainSerializer:
    """Round when serialized, which is the only place where records are rounded."""
    return PlainSerializer(partial(round, ndigits=digits), return_type=Annotated[float, Field(**limits)])


Pixels = Annotated[float, _rounded(2)]
Degrees = Annotated[float, _rounded(2)]
Score = Annotated[float, _rounded(4, ge=0, le=1)]
Share = Annotated[float, _rounded(6, ge=0, le=1)]
Label = Annotated[
    str, Field(description=f"{', '.join(EIGHT_LABELS)}, or a class of a model of your own", examples=[EIGHT_LABELS[3]])
]
ImageType = Literal["image/png", "image/jpeg"]


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class Box:
    """A rectangle in the upright image, in pixels; it may extend beyond the edge."""

    x: Pixels
    y: Pixels
    width: Pixels
    height: Pixels

    def __iter__(self) -> Iterator[float]:
        yield from (self.x, self.y, self.width, self.height)


@dataclass(frozen=True, slots=True)
class Point:
    """A point in the upright image, in pixels from the top-left corner."""

    x: Pixels
    y: Pixels


@dataclass(frozen=True, slots=True)
class Landmarks:
    """Five points of a face; left and right as seen in the image."""

    left_eye: Point
    right_eye: Point
    nose: Point
    left_mouth: Point
    right_mouth: Point

    @classmethod
    def of(cls, points_px: Array) -> "Landmarks":
        """The landmarks of (5, 2) points in the order of the contract."""
        return cls(*(Point(x, y) for x, y in points_px.tolist()))


@dataclass(frozen=True, slots=True)
class ImageData:
    """An encoded image in a response."""

    media_type: ImageType
    base64: str

    @classmethod
    def of(cls, image_rgb: Array, media_type: ImageType = "image/png") -> "ImageData":
        """Encode (H, W, 3) uint8 RGB."""
        buffer = io.BytesIO()
        Image.fromarray(image_rgb).save(buffer, media_type.partition("/")[2], quality=90)  # PNG ignores the quality.
        return cls(media_type, base64.b64encode(buffer.getvalue()).decode("ascii"))


@dataclass(frozen=True, slots=True)
class Explanation:
    """Attention map of the model; it does not prove the reason for a label."""

    map: list[list[Share]] = Field(description="rows over the crop's patches, from the top; all values sum to 1")
    overlay: ImageData = Field(description="the map drawn over the face, 224x224 pixels")


@dataclass(
    frozen=True,
    slots=True,
    config=ConfigDict(arbitrary_types_allowed=True, json_schema_serialization_defaults_required=True),
)
class Face:
    """One labeled face."""

    box: Box
    landmarks: Landmarks
    detection_score: Score = Field(
        description="confidence of the detector, not comparable between detectors; 1 if nothing was detected"
    )
    roll_degrees: Degrees = Field(description="in-plane rotation, clockwise positive")
    label: Label = Field(description="the most probable expression")
    confidence: Share = Field(description="probability of `label`, calibrated on validation data")
    uncertain: bool = Field(description="whether `confidence` is below the confidence threshold")
    reasons: tuple[Reason, ...] = Field(
        description="why the label may be wrong; empty if nothing is known to speak against it"
    )
    probabilities: dict[Label, Share] = Field(description="of all expressions of the model; they sum to 1")
    agreement: Share | None = Field(
        default=None,
        description="expected share of people who would choose `label`, of those who choose one of the expressions of "
        "the model; null if the model was fitted without votes",
    )
    person: int | None = Field(
        default=None, description="number that the face keeps while it is tracked in a video, from 1; null in a photo"
    )
    index: int = Field(default=0, description="number of the face in its photo, from 0, largest first")
    sharpness: Annotated[float, _rounded(1)] = Field(
        default=0.0,
        description="variance of the Laplacian of the crop, gray levels squared; below about 20 a face is blurred",
    )
    crop: ImageData | None = Field(
        default=None, description="with `crops=true`: the aligned face, 112x112 pixels, as PNG; else null"
    )
    explanation: Explanation | None = Field(default=None, description="with `explain=true`; else null")
    # What follows is neither serialized nor compared: (112, 112, 3) uint8 as the model saw it, and a small JPEG of it.
    crop_rgb: Annotated[Array | None, Field(exclude=True, repr=False)] = dataclasses.field(default=None, compare=False)
    thumb: Annotated[bytes, Field(exclude=True, repr=False)] = dataclasses.field(default=b"", compare=False)

    @property
    def landmarks_px(self) -> Array:
        """The landmarks as (5, 2) float32, in the order of the contract."""
        points = (getattr(self.landmarks, name) for name in LANDMARKS)
        return np.array([(point.x, point.y) for point in points], np.float32)


FACES: Final = TypeAdapter(list[Face])


def flat(face: Face) -> dict[str, str | int | float | bool | None]:
    """Columns of a face in tables, rounded to meaningful digits: 0.1 px, 0.1 degrees, one millionth."""
    x, y, width, height = (round(value, 1) for value in face.box)
    yaw, pitch = head_pose(face.landmarks_px)
    points = ((name, getattr(face.landmarks, name)) for name in LANDMARKS)
    return {
        "face": face.index,
        "person": face.person,
        "x": x,
        "y": y,
        "width": width,
        "height": height,
        "label": face.label,
        "confidence": round(face.confidence, 6),
        **{f"p_{label}": round(probability, 6) for label, probability in face.probabilities.items()},
        "uncertain": face.uncertain,
        "uncertainty": round(uncertainty([*face.probabilities.values()]), 4),
        "detection_score": round(face.detection_score, 4),
        **{f"{name}_{axis}": round(getattr(point, axis), 1) for name, point in points for axis in "xy"},
        "roll": round(face.roll_degrees, 1),
        "sharpness": round(face.sharpness, 1),
        "yaw": yaw,
        "pitch": pitch,
        "reasons": " ".join(face.reasons),
        "agreement": face.agreement and round(face.agreement, 6),
    }


def uncertainty(probabilities: Sequence[float]) -> float:
    """Normalized entropy of the probabilities: 0 if one label is certain, 1 if all are equal."""
    return sum(-p * math.log(p) for p in probabilities if 0 < p < 1) / math.log(len(probabilities))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Photo:
    """A photo whose faces are detected and aligned, and then labeled.

    Attributes:
        width, height: size of the upright photo, pixels.
        detections: in pixels of the photo, largest first.
        crops: (N, 112, 112, 3) uint8 RGB.
        faces: one per detection once they are labeled.
        pixels: (H, W, 3) uint8 RGB, on request; smaller than the photo if it was decoded at reduced size.
        timings_ms: decode, detect, align, classify.
        notes: codes of `NOTES`.
        icc_profile: color profile of `pixels`, if they are kept for a copy; empty: sRGB.
    """

    width: int
    height: int
    detections: tuple["Detection", ...] = ()
    crops: Array = dataclasses.field(default_factory=lambda: NO_CROPS)
    faces: tuple[Face, ...] = ()
    pixels: Array | None = None
    timings_ms: dict[str, float] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    icc_profile: bytes = b""
