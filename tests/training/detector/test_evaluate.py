"""Evaluation of a detector: matches, false positives, landmark errors, and metrics without faces."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from mien.data.contract import Array
from mien.training.detector.evaluate import compare, evaluate, select_threshold
from mien.training.detector.images import LabeledImage, LabeledImages
from tests.support.detector import DrawnTeacher, drawn_face

FACES = np.concatenate([drawn_face(8, (50, 50), 20)[1], drawn_face(8, (150, 50), 30)[1]])


def _rows(*faces: Array) -> Array:
    return np.array([[*face[:14], 0.9] for face in faces], np.float32).reshape(-1, 15)


ELSEWHERE = FACES + np.array([200, 200, 0, 0, *[200] * 10, 0, 0], np.float32)


def test_each_face_is_matched_once_and_a_box_without_a_detection_of_the_teacher_is_a_false_positive() -> None:
    found = compare(_rows(FACES[0], FACES[0]), FACES, FACES[:, :4])
    assert (found.found.tolist(), found.false, found.detections) == ([True, False], 0, 2)
    assert found.errors.tolist() == pytest.approx([0.0])
    assert compare(_rows(ELSEWHERE[0]), FACES, FACES[:, :4]).false == 1
    assert compare(_rows(ELSEWHERE[0]), FACES, ELSEWHERE[:1, :4]).false == 0  # the teacher was uncertain there


@pytest.fixture
def images(tmp_path: Path) -> LabeledImages:
    """Six copies of an image with one face."""
    image, rows = drawn_face(120, (60, 60), 24)
    cv2.imwrite(str(tmp_path / "face.png"), image)
    return LabeledImages((LabeledImage("drawn", tmp_path / "face.png", rows),) * 6, "0" * 64)


def _perfect(image: Array) -> Array:
    return _rows(*DrawnTeacher(Path(__file__)).faces(image))


def test_a_perfect_detector_has_full_recall_and_no_false_positives(images: LabeledImages) -> None:
    metrics = {one.name: one for one in evaluate(_perfect, images)}
    assert metrics["recall, faces of 24 px and more"].estimate.value == 1
    assert metrics["recall, faces of 24 px and more"].faces == 6
    assert metrics["false positives per 100 faces"].estimate.value == 0
    assert metrics["recall, 24 to 48 px"].estimate.value == 1
    assert metrics["landmark error, rotated by 0 degrees"].estimate.value < 0.1
    # the drawn teacher ignores rotation: its landmarks are always upright
    assert metrics["landmark error, rotated by 90 degrees"].estimate.value > 0.3


def test_the_threshold_is_the_lowest_with_less_than_one_false_positive_per_100_faces(images: LabeledImages) -> None:
    def detect(image: Array, threshold: float) -> Array:
        rows = np.concatenate([_perfect(image), _rows(ELSEWHERE[1])])
        rows[1, 14] = 0.55
        return rows[rows[:, 14] >= threshold]

    assert select_threshold(detect, images) == 0.56
    assert select_threshold(lambda image, _: _perfect(image), images) == 0.4
    assert select_threshold(lambda *_: _rows(ELSEWHERE[1]), images) == 0.91
