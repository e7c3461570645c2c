"""Calibrated probabilities, and properties of a face that decide how far its label can be trusted.

`mien.training.photo_graph` computes the same in ONNX, and a test compares both. The limits of the reasons and the
slopes of the softening are those of the released model `fast`, measured once (docs/trust.md).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, cast, get_args

import cv2
import numpy as np

from mien.data.contract import CROP_PX, Array, similarity

# Why a label may be wrong, in the order in which they are listed. `ambiguous` follows from the probabilities alone.
Reason = Literal["small", "blurred", "turned", "dark", "covered", "ambiguous"]
REASONS: Final[tuple[Reason, ...]] = get_args(Reason)
AMBIGUOUS_BELOW: Final = 2.0  # times as probable as the next expression
FACE_SHARE: Final = 0.8  # width of the detectors' boxes over the side of the square that becomes the crop, median
# What few faces of the validation split of FERPlus exceed; beyond it, probabilities are softened.
USUAL_SOFTNESS_PX: Final = 1.4
USUAL_YAW: Final = 20.0

# Blur is measured from how much more blur takes away from the edges (Zhuo and Sim 2011).
SMOOTHED_PX: Final = 1.0  # This much removes noise.
REBLUR_PX: Final = 2.0
MAX_BLUR_PX: Final = 12.0
MAX_COVERED: Final = 3.0  # Beyond it, accuracy does not fall any more.
# Blur of a crop that was enlarged, in pixels of the crop: a constant, and a share of the size of a source pixel.
RESAMPLED_PX: Final = (0.93, 0.212)
# Of an average head, in millimeters: the depth of the nose before eyes and mouth, their mean width, and their distance.
NOSE_MM: Final = 24.0
WIDTH_MM: Final = 56.5
_HEIGHT_MM: Final = 70.0
# Side of the reduced crop whose luminance, edges and colors tell a covered face, and the parts that are used.
COVER_GRID: Final = 28
_COVER_INSIDE: Final = np.s_[5:28, 2:26]
_COVER_INSIDE_HALF: Final = np.s_[2:14, 1:13]
LUMA: Final = (0.299, 0.587, 0.114)
# Values beyond which a face has the reason: at them, accuracy is 5 points lower, for turned faces 16 points
LIMITS: Final = {"small": 24.343, "blurred": 1.479, "turned": 35.0, "dark": 0.054, "covered": 2.0}
# Increase of the temperature per pixel of softness beyond the usual one, per pixel of blur that the size does not
# explain, per degree of yaw beyond the usual one, and per unit of the log odds that a part of it is covered
SLOPES: Final = {"per_px": 0.8017, "per_blur_px": -0.20362, "per_degree": 0.00479, "per_covered": 0.1}
_MIN_PROBABILITY: Final = 1e-12
VOTES_SOFTENING: Final = 0.353  # share of the softening of probabilities that expected votes get


@dataclass(frozen=True, slots=True)
class Quality:
    """Properties of one face.

    Attributes:
        width_px: width of the face in the photo by its landmarks, about that of its box, pixels.
        softness_px: standard deviation of the blur in pixels of the crop, by its edges.
        blur_px: the part of it that the size of the face does not explain.
        yaw_degrees: turn of the head; positive: to the right of the image.
        brightness: mean luminance of the crop, 0 to 1.
        covered: log odds that a mask, a hand, sunglasses or cloth covers a part of the face, at most `MAX_COVERED`.
    """

    width_px: float
    softness_px: float
    blur_px: float
    yaw_degrees: float
    brightness: float
    covered: float


def measure(crop: Array, landmarks_px: Array) -> Quality:
    """Measure one face.

    Args:
        crop: (112, 112, 3) uint8, RGB, aligned.
        landmarks_px: (5, 2) float, in pixels of the photo; see `align`.
    """
    gray = cv2.cvtColor(crop, cv2.COLOR_RGB2GRAY)
    matrix = similarity(landmarks_px)
    side_px = CROP_PX / math.hypot(matrix[0, 0], matrix[1, 0])
    softness = softness_px(gray)
    resampled = RESAMPLED_PX[0] + RESAMPLED_PX[1] * CROP_PX / side_px
    return Quality(
        width_px=FACE_SHARE * side_px,
        softness_px=softness,
        blur_px=math.sqrt(max(0.0, softness**2 - resampled**2)),
        yaw_degrees=head_pose(landmarks_px)[0] or 0.0,
        brightness=cv2.mean(gray)[0] / 255,
        covered=cover_logit(crop),
    )


def reasons_of(quality: Quality) -> tuple[str, ...]:
    """Reasons for doubt that the pixels and landmarks of a face give, in the order of `REASONS`."""
    beyond = {
        "small": quality.width_px < LIMITS["small"],
        "blurred": quality.blur_px > LIMITS["blurred"],
        "turned": abs(quality.yaw_degrees) > LIMITS["turned"],
        "dark": quality.brightness < LIMITS["dark"],
        "covered": quality.covered > LIMITS["covered"],
    }
    return tuple(reason for reason, applies in beyond.items() if applies)


def with_ambiguity(reasons: Sequence[str], probabilities: dict[str, float]) -> tuple[Reason, ...]:
    """The reasons with `ambiguous` if no expression is clearly the most probable, else without."""
    *_, second, first = sorted(probabilities.values())
    others = tuple(cast("Reason", reason) for reason in reasons if reason != "ambiguous")
    return (*others, "ambiguous") if first < AMBIGUOUS_BELOW * second else others


def softmax(logits: Array, temperature: float = 1.0, offsets: Sequence[float] | float = 0.0) -> Array:
    """Softmax over the last axis of logits divided by the temperature (Guo et al. 2017), plus an offset per class.

    Args:
        logits: (..., C), any float type.
        temperature: above 1 flattens the distribution, below 1 sharpens it.
        offsets: C numbers added to the scaled logits, such as a correction for rare classes (Menon et al. 2021).
    Returns: (..., C) float64; rows sum to 1.
    """
    scaled = logits.astype(np.float64) / temperature + np.asarray(offsets)
    powers = np.exp(scaled - scaled.max(axis=-1, keepdims=True))  # The largest exponent is 0: there is no overflow.
    probabilities: Array = powers / powers.sum(axis=-1, keepdims=True)
    return probabilities


def expected_votes(
    probabilities: Array, correction: Sequence[float], temperature: float, offsets: Sequence[float]
) -> Array:
    """Expected shares of votes (N, K) float32 of probabilities (N, K) that have the correction for rare classes."""
    natural = np.log(np.maximum(probabilities, _MIN_PROBABILITY)) - correction
    shares: Array = softmax(natural, temperature, offsets).astype(np.float32)
    return shares


def temperature_factor(quality: Quality) -> float:
    """Temperature of a blurred, turned or covered face, relative to that of the others; at least 1."""
    softness, yaw = quality.softness_px - USUAL_SOFTNESS_PX, abs(quality.yaw_degrees) - USUAL_YAW
    beyond = max(0.0, softness), quality.blur_px, max(0.0, yaw), max(0.0, quality.covered)
    return max(1.0, 1 + sum(slope * value for slope, value in zip(SLOPES.values(), beyond, strict=True)))


def soften(probabilities: Array, quality: Quality, share: float = 1.0) -> Array:
    """Probabilities (K,) of a face at its temperature, or at a share of the increase; the label stays the same."""
    factor = 1 + share * (temperature_factor(quality) - 1)
    if factor == 1:
        return probabilities
    powers = probabilities ** (1 / factor)
    softened: Array = (powers / powers.sum()).astype(probabilities.dtype)
    return softened


def softness_px(gray: Array) -> float:
    """Standard deviation of the blur of a crop, (112, 112) uint8, in its pixels; `MAX_BLUR_PX` without edges.

    The energy of the gradients at an edge falls with the inverse of the blur; more blur of known size shows how much.
    """
    half = cv2.resize(gray, (CROP_PX // 2, CROP_PX // 2), interpolation=cv2.INTER_AREA)
    smoothed = cv2.GaussianBlur(half, (5, 5), SMOOTHED_PX / 2)
    blurred = cv2.GaussianBlur(half, (11, 11), math.hypot(SMOOTHED_PX, REBLUR_PX) / 2)
    ratio = (_gradient_energy(smoothed) + 1e-9) / (_gradient_energy(blurred) + 1e-9)
    if ratio**2 - 1 < 1e-3:
        return MAX_BLUR_PX
    return min(MAX_BLUR_PX, math.sqrt(max(0.0, REBLUR_PX**2 / (ratio**2 - 1) - SMOOTHED_PX**2)))


def sharpness(crop: Array) -> float:
    """Variance of the Laplacian of a crop's luminance, gray levels squared; below about 20 a face is blurred.

    Args:
        crop: (112, 112, 3) uint8, RGB.
    Source: Pech-Pacheco et al. 2000.
    """
    return float(cv2.Laplacian(cv2.cvtColor(crop, cv2.COLOR_RGB2GRAY), cv2.CV_32F).var())


def _gradient_energy(gray: Array) -> float:
    """Sum of the squared differences between the neighbors of each pixel, across and down."""
    across = cv2.norm(gray[:, 2:], gray[:, :-2], cv2.NORM_L2SQR)
    return across + cv2.norm(gray[2:], gray[:-2], cv2.NORM_L2SQR)


def cover_logit(crop: Array) -> float:
    """Log odds that a part of a face is covered, at most `MAX_COVERED`.

    Args:
        crop: (112, 112, 3) uint8, RGB, aligned.
    """
    hidden = np.maximum(cover_features(crop) @ COVER["hidden"] + COVER["hidden_bias"], 0)
    return min(MAX_COVERED, float(hidden @ COVER["output"] + COVER["output_bias"]))


def cover_features(crop: Array) -> Array:
    """Describe a crop, (112, 112, 3) uint8 RGB, by its luminance, its edges and its color on a coarse grid; float32."""
    small = cv2.resize(crop, (COVER_GRID, COVER_GRID), interpolation=cv2.INTER_AREA).astype(np.float32)
    gray = small @ np.array(LUMA, np.float32)
    mean, contrast = cv2.meanStdDev(gray[4:26, 3:25])
    luminance = (gray - np.float32(mean[0, 0])) / np.float32(contrast[0, 0] + 4)
    edges = [np.abs(cv2.Sobel(luminance, cv2.CV_32F, dx, 1 - dx, ksize=1)) for dx in (1, 0)]
    colors = [(small[..., channel] - gray) / 16 for channel in (0, 2)]
    half = (COVER_GRID // 2, COVER_GRID // 2)
    coarse = [cv2.resize(part, half, interpolation=cv2.INTER_AREA)[_COVER_INSIDE_HALF] for part in (*edges, *colors)]
    return np.concatenate([luminance[_COVER_INSIDE].ravel(), *(part.ravel() for part in coarse)])


def head_pose(landmarks_px: Array) -> tuple[float | None, float | None]:
    """Estimate yaw and pitch in degrees; None if the points do not determine them.

    Orthographic projection of an average head: how far the nose is from the middle of eyes and mouth. With five
    landmarks, errors are 5 to 10 degrees. The roll has no effect.

    Args:
        landmarks_px: (5, 2) float, x then y: image-left eye, image-right eye, nose, image-left and -right mouth corner.
    """
    left, right, nose, left_mouth, right_mouth = (complex(x, y) for x, y in landmarks_px.tolist())
    across = (right - left + right_mouth - left_mouth) / 2
    width = abs(across)
    if not math.isfinite(width + abs(nose)) or width < 1e-3:
        return None, None
    upright = (across / width).conjugate()  # a factor that removes the roll
    off = (nose - (left + right + left_mouth + right_mouth) / 4) * upright
    height = ((left_mouth + right_mouth - left - right) / 2 * upright).imag
    yaw = math.atan2(off.real * WIDTH_MM, width * NOSE_MM)
    pitch = math.atan2(-off.imag * _HEIGHT_MM - height, height * NOSE_MM) if height > 0 else None
    return round(math.degrees(yaw), 1), None if pitch is None else round(math.degrees(pitch), 1)


# Weights of two layers, fitted by benchmarks/covered.py at commit d5637127
with np.load(Path(__file__).with_name("cover.npz")) as _fitted:
    COVER: Final = {name: _fitted[name].astype(np.float32) for name in _fitted.files}
