"""Plausible faces, their order, and the released detector."""

import math

import cv2
import numpy as np
import pytest

from mien.app.inference.detect import builtin, create_detector
from mien.app.inference.detect.base import iou, largest_first, plausible
from mien.app.inference.records import Box, Detection
from mien.app.settings import load_settings
from mien.data.contract import Array
from mien.data.contract.align import TEMPLATE_PX
from mien.models.detector.manifest import default_detector_dir, load_detector
from tests.support import gradient_image

SETTINGS = load_settings(detector="builtin")


def plain_textures() -> dict[str, Array]:
    random = np.random.default_rng(0)
    coarse = random.integers(0, 256, (12, 16, 3), dtype=np.uint8)
    y, x = np.mgrid[:480, :640]
    return {
        "noise": random.integers(0, 256, (480, 640, 3), dtype=np.uint8),
        "clouds": cv2.resize(coarse, (640, 480), interpolation=cv2.INTER_CUBIC),
        "checkerboard": np.repeat((((x // 24 + y // 24) % 2) * 255).astype(np.uint8)[..., None], 3, axis=2),
        "gradient": gradient_image(640, 480),
    }


def test_plain_textures_have_no_face() -> None:
    detector = create_detector(SETTINGS)
    assert [name for name, image in plain_textures().items() if detector.detect(image)] == []


def test_the_default_threshold_is_that_of_the_artifact() -> None:
    assert builtin.create(SETTINGS).threshold == load_detector(default_detector_dir()).score_threshold


EYES_APART = np.array([[30, 40], [70, 40], [50, 60], [35, 80], [65, 80]], np.float32)
NAN_MOUTH = np.vstack([EYES_APART[:3], [[np.nan, 80]], EYES_APART[4:]]).astype(np.float32)
# equally upright and upside down: no rotation fits better
_CENTERED = EYES_APART - EYES_APART.mean(axis=0)
_MIXED = (_CENTERED * (np.asarray(TEMPLATE_PX) - np.mean(TEMPLATE_PX, axis=0))).sum(axis=0)
MIRRORED = (_CENTERED * (1, -_MIXED[0] / _MIXED[1]) + 50).astype(np.float64)


def face(box: Box, landmarks: np.ndarray = EYES_APART, score: float = 0.9) -> Detection:
    return Detection(box, landmarks, score)


@pytest.mark.parametrize(
    ("box", "landmarks"),
    [
        ((-1e12, -1e12, 2e12, 2e12), EYES_APART),  # what OpenCV returns for an image of 32 px
        ((10, 10, math.nan, 50), EYES_APART),
        ((10, 10, math.inf, 50), EYES_APART),
        ((200, 200, 50, 50), EYES_APART),
        ((-60, 10, 50, 50), EYES_APART),
        ((10, 10, 0, 50), EYES_APART),
        ((10, 10, 80, 80), NAN_MOUTH),
        ((10, 10, 80, 80), np.zeros((5, 2), np.float32)),  # both eyes at the same place
        ((10, 10, 80, 80), MIRRORED),
    ],
)
def test_what_cannot_be_in_this_image_is_not_a_face(box: Box, landmarks: np.ndarray) -> None:
    assert not plausible(face(box, landmarks), width=100, height=100)
    assert plausible(face((-20, -30, 90, 120)), width=100, height=100), "a face cut by the edge is one"


def test_faces_are_sorted_by_size_and_equal_ones_by_position() -> None:
    small, left, right = face((0, 0, 10, 10)), face((5, 0, 20, 20)), face((50, 0, 20, 20))
    assert largest_first([small, right, left]) == [left, right, small]


def test_overlap_is_intersection_over_union() -> None:
    assert iou((0, 0, 10, 10), (0, 0, 10, 10)) == 1.0
    assert iou((0, 0, 10, 10), (5, 0, 10, 10)) == pytest.approx(50 / 150)
    assert iou((0, 0, 10, 10), (10, 0, 10, 10)) == 0.0
