"""Records on the way of a photo: detections, the prepared photo, and the labeled photo with its faces."""

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mien.data.contract import CROP_PX, Array
from mien.data.quality import AMBIGUOUS_BELOW

# Notes about a photo whose labels are valid, by their stable code
NOTES: Final = {
    "max_faces": "the photo has more faces than the limit (--max-faces); the largest are labeled",
    "reduced_search": "searched at reduced size, without faces below 1/160 of the long side; --small-faces finds these",
    "framing": "the face fills less of the image, or another part of it, than in the faces that the model learned from",
}
NO_CROPS: Final = np.empty((0, CROP_PX, CROP_PX, 3), np.uint8)


def _no_crop() -> NDArray[np.uint8]:
    return np.empty((0, 0, 3), np.uint8)


class Box(NamedTuple):
    """A rectangle in pixels of the upright image; it may extend beyond the edge."""

    x: float
    y: float
    width: float
    height: float

    @property
    def short_side_px(self) -> float:
        """The shorter side."""
        return min(self.width, self.height)


@dataclass(frozen=True, slots=True, eq=False)
class Detection:
    """One detected face.

    landmarks_px: (5, 2) float32, x then y: image-left eye, image-right eye, nose, image-left mouth corner,
        image-right mouth corner. "Image-left" refers to an upright head: in an upside-down face, this eye is on
        the right.
    score: confidence of the detector, 0 to 1; not comparable between detectors. 1 for a face that was given with
        its landmarks, 0 for a given box in which the detector found none.
    """

    box: Box
    landmarks_px: Array
    score: float

    def scaled(self, scale_x: float, scale_y: float) -> "Detection":
        """The face in an image that is `scale_x` times as wide and `scale_y` times as high."""
        x, y, width, height = self.box
        landmarks = (self.landmarks_px * np.array([scale_x, scale_y])).astype(np.float32)
        return Detection(Box(x * scale_x, y * scale_y, width * scale_x, height * scale_y), landmarks, self.score)


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A photo that is decoded, and whose faces are detected and aligned.

    Attributes:
        width, height: size of the upright photo, pixels.
        detections: in pixels of the photo, largest first.
        crops: (N, 112, 112, 3) uint8 RGB.
        pixels: (H, W, 3) uint8 RGB, on request; smaller than the photo if it was decoded at reduced size.
        timings_ms: decode, detect, align.
        notes: codes of `NOTES`.
        icc_profile: color profile of `pixels`, if they are kept for a copy; empty: sRGB.
    """

    width: int
    height: int
    detections: tuple[Detection, ...]
    crops: Array
    pixels: Array | None = None
    timings_ms: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    icc_profile: bytes = b""


@dataclass(frozen=True, slots=True)
class Face:
    """One labeled face.

    Attributes:
        box: in pixels of the upright photo.
        landmarks: (x, y) in pixels of the photo, by name; left and right as seen in the photo.
        detection_score: confidence of the detector, 0 to 1; not comparable between detectors.
        probabilities: of all expressions of the model, by label; calibrated; they sum to 1.
        label: the most probable expression.
        confidence: the probability of the label.
        uncertain: whether the confidence is below the threshold.
        agreement: expected share of people who would choose the label, 0 to 1; None if the model cannot tell.
        reasons: why the label may be wrong: some of `small`, `blurred`, `turned`, `dark`, `covered`, and `ambiguous`
            (less than twice as probable as the next one); empty if none applies.
        roll_degrees: in-plane rotation, clockwise positive.
        crop: (112, 112, 3) uint8 RGB, the aligned face as the model saw it; empty if it was not kept. Not compared.
        index: from 0 within the photo, largest first.
        track: number that the face keeps across the frames of a video, from 1; 0 without tracking.
        sharpness, thumb: of the crop, measured by the labeling of folders: variance of the Laplacian; a small JPEG.
    """

    box: Box
    landmarks: dict[str, tuple[float, float]]
    detection_score: float
    probabilities: dict[str, float]
    label: str
    confidence: float
    uncertain: bool
    reasons: tuple[str, ...]
    roll_degrees: float
    crop: NDArray[np.uint8] = field(default_factory=_no_crop, compare=False, repr=False)
    index: int = 0
    track: int = 0
    agreement: float | None = None
    sharpness: float = 0.0
    thumb: bytes = field(default=b"", compare=False, repr=False)

    @property
    def landmarks_px(self) -> Array:
        """The landmarks as (5, 2) float32."""
        return np.array(list(self.landmarks.values()), np.float32)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the crop as plain values, rounded: 0.01 px and degrees, one millionth. The form of REST."""
        values = {
            "box": {name: round(value, 2) for name, value in self.box._asdict().items()},
            "landmarks": {name: {"x": round(x, 2), "y": round(y, 2)} for name, (x, y) in self.landmarks.items()},
            "detection_score": round(self.detection_score, 4),
            "roll_degrees": round(self.roll_degrees, 2),
            "label": self.label,
            "confidence": round(self.confidence, 6),
            "uncertain": self.uncertain,
            "reasons": list(self.reasons),
            "probabilities": {label: round(value, 6) for label, value in self.probabilities.items()},
        }
        if self.agreement is not None:
            values["agreement"] = round(self.agreement, 6)
        return values | ({"track": self.track} if self.track else {})

    @classmethod
    def from_dict(cls, values: dict[str, Any], *, index: int = 0) -> "Face":
        """The face with these values of `to_dict`, which may have others, too."""
        names = ("detection_score", "probabilities", "label", "confidence", "uncertain", "roll_degrees")
        return cls(
            box=Box(**values["box"]),
            landmarks={name: (point["x"], point["y"]) for name, point in values["landmarks"].items()},
            reasons=tuple(values["reasons"]),
            index=index,
            track=values.get("track", 0),
            agreement=values.get("agreement"),
            **{name: values[name] for name in names},
        )


@dataclass(frozen=True, slots=True, eq=False)
class Photo:
    """A labeled photo.

    Attributes:
        width, height: size of the upright photo, pixels.
        faces: largest first.
        pixels: (H, W, 3) uint8 RGB, on request; smaller than the photo if it was decoded at reduced size.
        timings_ms: decode, detect, align, classify.
        notes: codes of `NOTES`.
        icc_profile: see `Prepared`.
    """

    width: int
    height: int
    faces: tuple[Face, ...]
    pixels: Array | None = None
    timings_ms: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    icc_profile: bytes = b""


def with_ambiguity(reasons: tuple[str, ...], probabilities: dict[str, float]) -> tuple[str, ...]:
    """The reasons with `ambiguous` if no expression is clearly the most probable, else without."""
    *_, second, first = sorted(probabilities.values())
    others = tuple(reason for reason in reasons if reason != "ambiguous")
    return (*others, "ambiguous") if first < AMBIGUOUS_BELOW * second else others
