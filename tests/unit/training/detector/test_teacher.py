"""Labels of the teacher: merged views, mirror images, and images without faces."""

import numpy as np
import pytest

from mien.data.contract import Array
from mien.training.detector.config import TEACHER_FILE
from mien.training.detector.images import read_bgr
from mien.training.detector.teacher import FIELDS, SCORE, VIEW_SHARE, Teacher, merge_views, mirrored, rows_turned_back
from tests.support import folder_from_environment, sample_photo


def _row(x: float, score: float) -> Array:
    points = np.array([[2, 3], [8, 3], [5, 5], [3, 8], [7, 8]]) + np.array([x, 0])
    return np.array([x, 0, 10, 10, *points.ravel(), score], np.float32)


def test_landmarks_are_the_mean_of_confident_views_and_the_score_is_the_best() -> None:
    views = [np.stack([_row(0.0, 0.9)]), np.stack([_row(1.0, 0.7)]), np.stack([_row(3.0, 0.4)]), np.empty((0, 15))]
    (face,) = merge_views(views)
    assert face[0] == pytest.approx(0.5)
    assert face[4] == pytest.approx(2.5)
    assert (face[SCORE], face[VIEW_SHARE]) == (pytest.approx(0.9), 0.5)


def test_merging_keeps_separate_faces_and_empty_views() -> None:
    assert len(merge_views([np.stack([_row(0, 0.9), _row(50, 0.8)])] * 2)) == 2
    assert merge_views([np.empty((0, 15), np.float32)] * 8).shape == (0, len(FIELDS))


def test_a_mirrored_face_keeps_its_image_left_eye_on_the_left() -> None:
    row = _row(4.0, 0.9)[None]
    other = mirrored(row, 100)
    assert other[0, 4] < other[0, 6]
    assert other[0, 4] == pytest.approx(100 - row[0, 6])
    assert np.allclose(mirrored(other, 100), row)


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_a_face_of_a_turned_image_is_placed_in_the_image_itself(turns: int) -> None:
    image = np.zeros((40, 60))
    image[8, 21] = 1  # a landmark at the center of this pixel, in a box of 20x10 px
    y, x = np.argwhere(np.rot90(image, turns))[0] + 0.5
    width, height = (20, 10) if turns % 2 == 0 else (10, 20)
    row = np.array([[x - width / 2, y - height / 2, width, height, *[x, y] * 5, 0.9]], np.float32)
    back = np.array([[11.5, 3.5, 20, 10, *[21.5, 8.5] * 5, 0.9]])
    assert rows_turned_back(row, turns, (60, 40)) == pytest.approx(back)


def test_a_face_that_only_a_turned_view_shows_is_doubtful(monkeypatch: pytest.MonkeyPatch) -> None:
    def detect(self: Teacher, image: Array) -> Array:
        return _row(4.0, 0.9)[None] if image.shape[0] > image.shape[1] else np.empty((0, 15), np.float32)

    monkeypatch.setattr(Teacher, "detect", detect)
    (face, *_) = Teacher.__new__(Teacher).faces(np.zeros((100, 200, 3), np.uint8))
    assert face[SCORE] < 0.6
    assert face[VIEW_SHARE] == 0


def test_views_of_a_real_face_agree_and_a_gray_image_has_no_face() -> None:
    teacher = Teacher(folder_from_environment("MIEN_MODELS_DIR") / TEACHER_FILE)
    faces = teacher.faces(read_bgr(sample_photo()))
    assert faces[:, SCORE].max() > 0.8
    assert faces[faces[:, SCORE].argmax(), VIEW_SHARE] >= 0.5
    assert len(teacher.faces(np.full((200, 200, 3), 128, np.uint8))) == 0


def test_outputs_of_cells_are_those_of_the_detections() -> None:
    teacher = Teacher(folder_from_environment("MIEN_MODELS_DIR") / TEACHER_FILE)
    image = read_bgr(sample_photo())  # 512x512 px
    cells = teacher.cells(image)
    assert cells.shape == (64**2 + 32**2 + 16**2, 16)
    best = teacher.detect(image)[0]
    cell = int((cells[:, 0] * cells[:, 1]).argmax())
    assert np.sqrt(cells[cell, 0] * cells[cell, 1]) == pytest.approx(best[14], abs=1e-5)
