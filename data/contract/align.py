"""Face crops: 112x112 RGB uint8, brow to chin with a margin.

`align` warps a face found in a photo; `fit` resizes an image that already is a face crop. The template consists of the
five landmarks that OpenCV's YuNet finds on FERPlus faces (median of each point, made symmetric), so that both kinds of
crops frame the face alike: docs/decisions/0002-crop-template.md.
"""

from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from mien.data.errors import MienError

Array = npt.NDArray[Any]

CROP_PX: Final = 112
# Names of the five landmarks, in order; left and right as seen in the image.
LANDMARKS: Final = ("left_eye", "right_eye", "nose", "left_mouth", "right_mouth")
# x then y, in pixels of the crop
TEMPLATE_PX: Final = ((35.0, 42.3), (77.0, 42.3), (56.0, 65.5), (39.1, 84.6), (72.9, 84.6))
MIN_SPREAD_PX: Final = 1.0
_CENTER: Final = sum(complex(*point) for point in TEMPLATE_PX) / len(TEMPLATE_PX)
_CENTERED: Final = [complex(*point) - _CENTER for point in TEMPLATE_PX]


class DegenerateLandmarks(MienError, ValueError):
    """Five points that do not determine a similarity transform: not finite, or all at the same place."""


def similarity(landmarks_px: Array) -> Array:
    """Least-squares similarity from five landmarks to the template, (2, 3) float64. Source: Umeyama 1991."""
    points = np.asarray(landmarks_px, dtype=np.float64)
    if points.shape != (5, 2) or not np.isfinite(points).all():
        raise DegenerateLandmarks(f"landmarks of shape {points.shape}: expected five finite (x, y) points")
    # A similarity without reflection multiplies by a complex number, and adds another. Plain Python takes a third of
    # NumPy's time, and each face needs three.
    source = [complex(x, y) for x, y in points.tolist()]
    center = sum(source) / len(source)
    centered = [point - center for point in source]
    spread = sum(point.real * point.real + point.imag * point.imag for point in centered)
    if spread < MIN_SPREAD_PX:
        raise DegenerateLandmarks(f"landmarks within {spread**0.5:.2f} px of each other: too close to align a face")
    factor = sum(point.conjugate() * wanted for point, wanted in zip(centered, _CENTERED, strict=True)) / spread
    if factor.real * factor.real + factor.imag * factor.imag < 1e-12:
        raise DegenerateLandmarks("landmarks are mirrored or in the wrong order: their best similarity has scale 0")
    shift = _CENTER - factor * center
    return np.array([[factor.real, -factor.imag, shift.real], [factor.imag, factor.real, shift.imag]])


def align(image: Array, landmarks_px: Array) -> Array:
    """Warp one face onto the 112-pixel template.

    Faces larger than the template are first reduced by area averaging, because bilinear sampling alone would alias.
    Outside of the image, its edge is repeated.

    Args:
        image: (H, W, 3) uint8, RGB.
        landmarks_px: (5, 2) float, x then y: image-left eye, image-right eye, nose, image-left mouth corner,
            image-right mouth corner.
    Returns: (112, 112, 3) uint8, RGB.
    Raises: DegenerateLandmarks, if the points do not determine a similarity.
    Source: Umeyama 1991.
    """
    matrix = similarity(landmarks_px)
    region, offset_xy = _region(image, matrix)
    shrink = max(1, int(1.0 / float(np.hypot(matrix[0, 0], matrix[1, 0]))))
    shrink = min(shrink, *region.shape[:2])
    if shrink > 1:
        height, width = region.shape[0] // shrink, region.shape[1] // shrink
        region = cv2.resize(
            np.ascontiguousarray(region[: height * shrink, : width * shrink]),
            (width, height),
            interpolation=cv2.INTER_AREA,
        )
    # A reduced pixel i covers source pixels shrink*i .. shrink*i+shrink-1, so its center is shrink*i + (shrink-1)/2.
    start = np.asarray(offset_xy, dtype=np.float64) + (shrink - 1) / 2
    warp = np.hstack([matrix[:, :2] * shrink, (matrix[:, :2] @ start + matrix[:, 2])[:, None]])
    return cv2.warpAffine(region, warp, (CROP_PX, CROP_PX), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)


def _region(image: Array, matrix: Array) -> tuple[Array, tuple[int, int]]:
    """Cut out the part of `image` that the crop covers, with a margin; returns it and its top-left corner (x, y)."""
    inverse = cv2.invertAffineTransform(matrix)
    corners = np.array([[0, 0, 1], [CROP_PX, 0, 1], [0, CROP_PX, 1], [CROP_PX, CROP_PX, 1]], dtype=np.float64)
    seen = corners @ inverse.T
    margin = 2.0 + 2.0 / float(np.hypot(matrix[0, 0], matrix[1, 0]))
    height, width = image.shape[:2]
    left, top = np.clip(np.floor(seen.min(axis=0) - margin), 0, [width - 1, height - 1]).astype(int)
    right, bottom = np.clip(np.ceil(seen.max(axis=0) + margin), [left + 1, top + 1], [width, height]).astype(int)
    return image[top:bottom, left:right], (int(left), int(top))


def fit(image: Array) -> Array:
    """Resize an image that already is a face crop (48x48, 100x100, ...) to the template's size.

    An image that is not square keeps its aspect ratio: its short side is padded by repeating the edge.

    Args:
        image: (H, W, 3) uint8, RGB, brow to chin with a margin.
    Returns: (112, 112, 3) uint8, RGB.
    """
    long_side = max(image.shape[:2])
    height, width = (max(1, round(side * CROP_PX / long_side)) for side in image.shape[:2])
    interpolation = cv2.INTER_AREA if long_side > CROP_PX else cv2.INTER_LINEAR
    face = cv2.resize(np.ascontiguousarray(image), (width, height), interpolation=interpolation)
    top, left = (CROP_PX - height) // 2, (CROP_PX - width) // 2
    return cv2.copyMakeBorder(face, top, CROP_PX - height - top, left, CROP_PX - width - left, cv2.BORDER_REPLICATE)


def roll_degrees(landmarks_px: Array) -> float:
    """In-plane rotation of a face: angle of the line between the eyes, degrees, clockwise positive, 0 when upright."""
    (left_x, left_y), (right_x, right_y) = np.asarray(landmarks_px, dtype=np.float64)[:2]
    return float(np.degrees(np.arctan2(right_y - left_y, right_x - left_x)))
