"""Haar cascades, the embedded fallback: always there with OpenCV 4, weaker than YuNet (Viola and Jones 2001).

They find frontal, upright faces of some 24 px and more. Eyes, where both are found, fix the roll; the other landmarks
stand where a typical face has them, so crops are framed alike but less exactly than with YuNet.
"""

import math
import threading
from pathlib import Path
from typing import Final

import cv2
import numpy as np

from app.errors import DetectorUnavailable
from app.inference.detect.base import Face, largest_first, plausible, scaled
from app.settings import Settings
from data.contract import Array
from data.contract.align import TEMPLATE_PX

_FRONTAL: Final = "haarcascade_frontalface_alt2.xml"
_EYES: Final = "haarcascade_eye_tree_eyeglasses.xml"
_FIRST_PX: Final = 640
_MIN_FACE_PX: Final = 24
# Where the eyes of an upright face are in the cascade's square box, as fractions of its side.
_EYES_IN_BOX: Final = ((0.31, 0.38), (0.69, 0.38))
# A cascade has no probability, but the number of windows around a place that passed it tells faces from chance: on 68
# real photos 3 to 7 where there is no face, 20 and more on most faces. This many make a score of one half.
_HALF_SURE_WINDOWS: Final = 3
_MAX_ROLL_DEGREES: Final = 30.0


class Haar:
    """Frontal-face cascade, with an eye cascade for the roll."""

    name = "haar"

    def __init__(self, long_side_px: int, *, threshold: float) -> None:
        """Load the cascades that come with OpenCV; `threshold` is the least score. Raises: DetectorUnavailable."""
        self._threshold = threshold
        self._faces, self._eyes = _cascade(_FRONTAL), _cascade(_EYES)
        self._lock = threading.Lock()  # a cascade keeps buffers between calls
        self._long_side_px = long_side_px

    def detect(self, image: Array) -> list[Face]:
        """Find faces in (H, W, 3) uint8 RGB, largest first."""
        height, width = image.shape[:2]
        scale = min(1.0, self._long_side_px / max(height, width))
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        gray = cv2.equalizeHist(cv2.cvtColor(cv2.resize(image, size, interpolation=cv2.INTER_AREA), cv2.COLOR_RGB2GRAY))
        if min(size) < _MIN_FACE_PX:
            return []
        with self._lock:
            found, windows = self._faces.detectMultiScale2(
                gray, scaleFactor=1.1, minNeighbors=_HALF_SURE_WINDOWS, minSize=(_MIN_FACE_PX, _MIN_FACE_PX)
            )
            scores = [int(count) / (int(count) + _HALF_SURE_WINDOWS) for count in np.ravel(windows)]
            faces = [
                self._face(gray, tuple(int(value) for value in box), score)
                for box, score in zip(found, scores, strict=True)
                if score >= self._threshold
            ]
        faces = [scaled(face, width / size[0], height / size[1]) for face in faces]
        return largest_first([face for face in faces if plausible(face, width=width, height=height)])

    def _face(self, gray: Array, box: tuple[int, ...], score: float) -> Face:
        x, y, width, height = box
        eyes = self._eye_centers(gray[y : y + height, x : x + width])
        if eyes is None:
            eyes = np.array(_EYES_IN_BOX) * [width, height]
        return Face((float(x), float(y), float(width), float(height)), _landmarks(np.add(eyes, (x, y))), score)

    def _eye_centers(self, face: Array) -> Array | None:
        """Centers of both eyes (2, 2) in pixels of the box, image-left first; None unless they are believable."""
        upper = face[: round(face.shape[0] * 0.6)]
        side = face.shape[1]
        found = self._eyes.detectMultiScale(upper, 1.1, 3, minSize=(max(8, side // 8), max(8, side // 8)))
        centers = sorted((x + w / 2, y + h / 2) for x, y, w, h in found)
        left = [c for c in centers if c[0] < side / 2]
        right = [c for c in centers if c[0] >= side / 2]
        if len(left) != 1 or len(right) != 1:
            return None
        (left_x, left_y), (right_x, right_y) = left[0], right[0]
        distance = right_x - left_x
        roll = math.degrees(math.atan2(right_y - left_y, distance))
        if not 0.25 * side < distance < 0.6 * side or abs(roll) > _MAX_ROLL_DEGREES:
            return None
        return np.array([left[0], right[0]])


def _landmarks(eyes: Array) -> Array:
    """Five landmarks (5, 2) float32 from two eyes (2, 2): the template's, under the similarity that fixes the eyes."""
    template = np.asarray(TEMPLATE_PX)
    points = template[:, 0] + 1j * template[:, 1]
    left, right = eyes[:, 0] + 1j * eyes[:, 1]
    placed = left + (points - points[0]) * (right - left) / (points[1] - points[0])
    return np.stack([placed.real, placed.imag], axis=1).astype(np.float32)


def _cascade(name: str) -> cv2.CascadeClassifier:
    path = Path(cv2.__file__).parent / "data" / name
    cascade = cv2.CascadeClassifier(str(path)) if path.is_file() else None
    if cascade is None or cascade.empty():
        raise DetectorUnavailable(
            f"detector haar: {path} is missing or unreadable. It comes with opencv-python 4.x: install that again, or "
            "run `mien models pull` and use MIEN_DETECTOR=yunet."
        )
    return cascade


def create(settings: Settings) -> Haar:
    """Build from settings. Raises: DetectorUnavailable."""
    return Haar(max(_FIRST_PX, settings.detection_px), threshold=settings.detection_threshold)


def source(_settings: Settings) -> str:
    """Where the cascades come from."""
    return "comes with OpenCV"
