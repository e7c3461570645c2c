"""Samples: faces move with their pixels, are repeatable, and are learned only where they are seen."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.support_detector import drawn_face
from training.detector.config import SceneConfig
from training.detector.pictures import Picture, Pictures
from training.detector.scenes import Scenes, moved, similarity, visible_share, warped
from training.detector.teacher import SCORE

SIDE = 128


@pytest.fixture
def pictures(tmp_path: Path) -> Pictures:
    items = []
    for number in range(4):
        image, faces = drawn_face(96, (40 + 4 * number, 48), 20 + 2 * number)
        faces = faces if number else faces[:0]
        faces[:, SCORE] = 0.5 if number == 3 else 0.95
        cv2.imwrite(str(tmp_path / f"{number}.png"), image if number else np.full_like(image, 60))
        items.append(Picture("drawn", tmp_path / f"{number}.png", faces))
    return Pictures(tuple(items), "0" * 64)


def _scenes(pictures: Pictures, seed: int = 0) -> Scenes:
    return Scenes(pictures, SceneConfig(img_size=SIDE), weights={"drawn": 1.0}, seed=seed)


def test_a_sample_depends_on_seed_and_number_alone(pictures: Pictures) -> None:
    one, again, other = _scenes(pictures)(3), _scenes(pictures)(3), _scenes(pictures, seed=1)(3)
    assert np.array_equal(one.pixels, again.pixels)
    assert np.array_equal(np.array(one.faces), np.array(again.faces))
    assert not np.array_equal(one.pixels, other.pixels)


@pytest.mark.parametrize(("scale", "turn"), [(1.0, 0), (0.3, 0), (0.35, 40), (2.2, 90), (0.8, 180)])
def test_landmarks_move_with_their_pixels(scale: float, turn: float) -> None:
    image, faces = drawn_face(200, (100, 100), 60)
    image[:] = 0
    eye = faces[0, 4:6]
    cv2.circle(image, (int(eye[0]), int(eye[1])), 7, (255, 255, 255), -1)
    matrix = similarity(np.array([100.0, 100.0]), np.array([130.0, 110.0]), scale, turn)
    pixels = warped(image, matrix, (260, 240), scale)[..., 0].astype(float)
    y, x = np.mgrid[:240, :260] + 0.5
    seen = np.array([(pixels * x).sum(), (pixels * y).sum()]) / pixels.sum()
    assert moved(faces, matrix)[0, 4:6] == pytest.approx(seen, abs=0.6 * max(1.0, scale))


def test_a_box_turned_by_a_quarter_trades_its_sides() -> None:
    faces = np.array([[10, 20, 30, 50, *[0] * 10]], np.float32)
    turned = moved(faces, similarity(np.array([25.0, 45.0]), np.array([60.0, 60.0]), 1.0, 90))
    assert turned[0, :4] == pytest.approx([35, 45, 50, 30], abs=1e-4)


def test_every_sample_has_faces_within_it_and_leaves_out_what_is_in_doubt(pictures: Pictures) -> None:
    scenes = _scenes(pictures)
    samples = [scenes(number) for number in range(60)]
    faces = np.concatenate([np.array(sample.faces).reshape(-1, 14) for sample in samples])
    assert {sample.pixels.shape for sample in samples} == {(SIDE, SIDE, 3)}
    assert len(faces) > 60
    assert visible_share(faces[:, :4], (0, 0, SIDE, SIDE)).min() >= 0.75
    sizes = faces[:, 2:4].max(axis=1)
    assert sizes.min() < 16
    assert sizes.max() > 90
    assert any(sample.ignored for sample in samples)


def test_pictures_without_a_face_make_samples_without_faces(pictures: Pictures) -> None:
    scenes = _scenes(Pictures(pictures.items[:1], "0" * 64))
    assert not any(scenes(number).faces for number in range(20))
