"""Equality of the template with the detector's landmarks on face crops."""

import numpy as np
import pytest

from mien.data.contract.align import TEMPLATE_PX
from mien.data.readers.base import open_reader
from tests.support import folder_from_environment
from tools.measure_template import ARCFACE_PX, ENLARGED_PX, Faces, detect_on_crops, published_landmarks

TEMPLATE = np.asarray(TEMPLATE_PX)


def _faces(count: int = 5) -> Faces:
    """Scaled copies of the template as faces, in a box from brow to chin."""
    sizes = 1 + np.arange(count)
    landmarks = TEMPLATE * sizes[:, None, None] + 7
    boxes = np.stack([20 * sizes + 7, 12 * sizes + 7, 72 * sizes, 96 * sizes], axis=1)
    return Faces(landmarks, boxes.astype(np.float64), count)


def test_landmarks_relative_to_the_box_are_independent_of_face_size() -> None:
    assert _faces().landmarks_in_box() == pytest.approx((TEMPLATE - (20, 12)) / 96)


def test_a_box_is_mapped_by_the_template() -> None:
    assert _faces().boxes_in_crop(TEMPLATE_PX) == pytest.approx(np.tile([20, 12, 92, 108], (5, 1)))
    arcface = _faces().boxes_in_crop(ARCFACE_PX)
    assert arcface[0, 3] > 108  # ArcFace puts the face lower, and the chin nearer to the edge


def test_faces_equal_to_the_template_have_no_spread_after_alignment() -> None:
    assert _faces().landmarks_aligned() == pytest.approx(np.tile(TEMPLATE, (5, 1, 1)))
    assert _faces().landmarks_in_square().std(axis=0) == pytest.approx(np.zeros((5, 2)), abs=1e-9)


def test_the_template_is_the_median_of_ferplus_faces_within_a_pixel() -> None:
    data, models = folder_from_environment("MIEN_DATA_DIR"), folder_from_environment("MIEN_MODELS_DIR")
    detector = models / "face_detection_yunet_2023mar.onnx"
    faces = detect_on_crops(open_reader("ferplus", data / "ferplus"), detector, step=60)
    assert len(faces.boxes_px) > 0.95 * faces.searched
    medians = np.median(faces.landmarks_px, axis=0) * 112 / ENLARGED_PX
    assert np.abs(medians - TEMPLATE).max() < 1.5


def test_muxspace_and_ferplus_landmarks_agree_relative_to_the_box() -> None:
    data, models = folder_from_environment("MIEN_DATA_DIR"), folder_from_environment("MIEN_MODELS_DIR")
    detector = models / "face_detection_yunet_2023mar.onnx"
    ferplus = detect_on_crops(open_reader("ferplus", data / "ferplus"), detector, step=60)
    muxspace = published_landmarks(open_reader("muxspace", data / "muxspace"))
    assert np.abs(ferplus.landmarks_in_box() - muxspace.landmarks_in_box()).max() < 0.03
