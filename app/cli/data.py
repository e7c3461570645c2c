"""`mien data`: the command of the data package, which gets the face detector of serving to recognize whole photos."""

from functools import cache
from typing import Final

import cv2

from mien.app.inference.detector import Detector
from mien.app.inference.detector_files import create_detector
from mien.app.settings import load_settings
from mien.data import command
from mien.data.contract import Array

_MIN_SEARCHED_PX: Final = 144  # detectors find few of the faces that fill a smaller image


def main(arguments: list[str]) -> None:
    """Run the command; exits with its status."""
    command.main(arguments, face_share=face_share)


@cache
def _detector() -> Detector:
    return create_detector(load_settings(threads=1))


def face_share(image: Array) -> float:
    """Width of the largest face over the shorter side of an image, (H, W, 3) uint8 RGB; 0 without a face."""
    factor = max(1.0, _MIN_SEARCHED_PX / min(image.shape[:2]))
    searched = cv2.resize(image, None, fx=factor, fy=factor, interpolation=cv2.INTER_LINEAR)
    widths = [face.box.width for face in _detector().detect(searched)]
    return float(max(widths, default=0.0) / min(searched.shape[:2]))
