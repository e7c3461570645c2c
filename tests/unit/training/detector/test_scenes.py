"""Samples: reproducible, with labels that follow their pixels, and visible faces only."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from mien.training.detector.config import SceneConfig
from mien.training.detector.images import LabeledImage, LabeledImages
from mien.training.detector.scenes import Scenes, similarity, transform_faces, visible_share, warp
from mien.training.detector.teacher import SCORE
from tests.support_detector import drawn_face

SIDE = 128


@pytest.fixture
def images(tmp_path: Path) -> LabeledImages:
    items = []
    for number in range(4):
        image, faces = drawn_face(96, (40 + 4 * number, 48), 20 + 2 * number)
        faces = faces if number else faces[:0]
        faces[:, SCORE] = 0.5 if number == 3 else 0.95
        cv2.imwrite(str(tmp_path / f"{number}.png"), image if number else np.full_like(image, 60))
        items.append(LabeledImage("drawn", tmp_path / f"{number}.png", faces))
    return LabeledImages(tuple(items), "0" * 64)


def _scenes(images: LabeledImages, seed: int = 0) -> Scenes:
    return Scenes(images, SceneConfig(img_size=SIDE), weights={"drawn": 1.0}, seed=seed)


def test_a_sample_depends_only_on_seed_and_index(images: LabeledImages) -> None:
    one, again, other = _scenes(images)(3), _scenes(images)(3), _scenes(images, seed=1)(3)
    assert np.array_equal(one.pixels, again.pixels)
    assert np.array_equal(np.array(one.faces), np.array(again.faces))
    assert not np.array_equal(one.pixels, other.pixels)


@pytest.mark.parametrize(("scale", "angle_deg"), [(1.0, 0), (0.3, 0), (0.35, 40), (2.2, 90), (0.8, 180)])
def test_landmarks_move_with_their_pixels(scale: float, angle_deg: float) -> None:
    image, faces = drawn_face(200, (100, 100), 60)
    image[:] = 0
    eye = faces[0, 4:6]
    cv2.circle(image, (int(eye[0]), int(eye[1])), 7, (255, 255, 255), -1)
    matrix = similarity(np.array([100.0, 100.0]), np.array([130.0, 110.0]), scale, angle_deg)
    pixels = warp(image, matrix, (260, 240), scale)[..., 0].astype(float)
    y, x = np.mgrid[:240, :260] + 0.5
    seen = np.array([(pixels * x).sum(), (pixels * y).sum()]) / pixels.sum()
    assert transform_faces(faces, matrix)[0, 4:6] == pytest.approx(seen, abs=0.6 * max(1.0, scale))


def test_a_box_rotated_by_90_degrees_swaps_its_sides() -> None:
    faces = np.array([[10, 20, 30, 50, *[0] * 10]], np.float32)
    rotated = transform_faces(faces, similarity(np.array([25.0, 45.0]), np.array([60.0, 60.0]), 1.0, 90))
    assert rotated[0, :4] == pytest.approx([35, 45, 50, 30], abs=1e-4)


def test_samples_contain_visible_faces_and_ignore_unreliable_ones(images: LabeledImages) -> None:
    scenes = _scenes(images)
    samples = [scenes(number) for number in range(60)]
    faces = np.concatenate([np.array(sample.faces).reshape(-1, 14) for sample in samples])
    assert {sample.pixels.shape for sample in samples} == {(SIDE, SIDE, 3)}
    assert len(faces) > 60
    assert visible_share(faces[:, :4], (0, 0, SIDE, SIDE)).min() >= 0.75
    sizes = faces[:, 2:4].max(axis=1)
    assert sizes.min() < 16
    assert sizes.max() > 90
    assert any(sample.ignored for sample in samples)


def test_images_without_a_face_give_samples_without_faces(images: LabeledImages) -> None:
    scenes = _scenes(LabeledImages(images.items[:1], "0" * 64))
    assert not any(scenes(number).faces for number in range(20))


def test_parts_show_false_positives_as_often_as_the_recipe_says(images: LabeledImages) -> None:
    marked = images.items[0]
    pixels = np.full((96, 96, 3), 60, np.uint8)
    pixels[40:56, 20:36] = (0, 0, 255)
    cv2.imwrite(str(marked.path), pixels)
    false_positive = np.array([[20, 40, 16, 16, *[0] * 10, 0.5]], np.float32)

    def shares(hard_share: float) -> float:
        config = SceneConfig(img_size=SIDE, hard_share=hard_share)
        others = LabeledImages(images.items[1:], "0" * 64)
        scenes = Scenes(others, config, weights={"drawn": 1.0}, seed=0, hard=[(marked, false_positive)])
        red = [
            np.ptp(scenes(number).pixels.astype(int)[..., 2] - scenes(number).pixels[..., 1]) for number in range(60)
        ]
        return float(np.mean(np.array(red) > 120))

    assert shares(0.0) < 0.1
    assert shares(0.9) > 0.5
