"""Data of a detector: split, labels of the teacher, and samples."""

from pathlib import Path
from typing import get_args

import cv2
import numpy as np
import pytest

from mien.data.contract import Array
from mien.training.detector import images as module
from mien.training.detector import scenes as scenes_module
from mien.training.detector.config import TEACHER_FILE, DetectorData, SceneConfig
from mien.training.detector.images import LabeledImage, LabeledImages, Split, load_images, read_bgr
from mien.training.detector.scenes import Scenes, similarity, transform_faces, visible_share, warp
from mien.training.detector.teacher import SCORE, VIEW_SHARE, Teacher, merge_views, mirrored, rows_turned_back
from tests.support import folder_from_environment, sample_photo
from tests.support.detector import drawn_face, small_detector_recipe


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DetectorData:
    return small_detector_recipe(tmp_path, monkeypatch).data


def test_every_image_is_in_one_split_also_after_renaming(data: DetectorData, tmp_path: Path) -> None:
    def splits() -> list[set[bytes]]:
        return [{item.path.read_bytes() for item in load_images(data, split).items} for split in get_args(Split)]

    before = train, *held_out = splits()
    assert [len(split) for split in held_out] == [2, 2]
    assert len(train.union(*held_out)) == len(train) + 4 == 40
    for path in (tmp_path / "drawn").iterdir():
        path.rename(path.with_name("other_" + path.name))
    assert splits() == before


def test_labels_are_computed_once(data: DetectorData, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_images(data, "train")
    monkeypatch.setattr(module, "Teacher", pytest.fail)
    again = load_images(data, "train")
    assert [item.faces.tolist() for item in again.items] == [item.faces.tolist() for item in first.items]
    assert again.index_sha256 == first.index_sha256


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


@pytest.mark.parametrize(("scale", "angle_deg"), [(0.3, 0), (0.35, 40), (2.2, 90)])
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


def test_samples_contain_visible_faces_and_ignore_unreliable_ones(images: LabeledImages) -> None:
    scenes = _scenes(images)
    samples = [scenes(number) for number in range(60)]
    faces = np.concatenate([np.array(sample.faces).reshape(-1, 14) for sample in samples])
    assert len(faces) > 60
    assert visible_share(faces[:, :4], (0, 0, SIDE, SIDE)).min() >= 0.75
    sizes = faces[:, 2:4].max(axis=1)
    assert sizes.min() < 16
    assert sizes.max() > 90
    assert any(sample.ignored for sample in samples)


def test_close_ups_show_whole_faces_and_parts_of_larger_ones_which_are_background(
    images: LabeledImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search at full size sees parts of a large face."""
    monkeypatch.setattr(scenes_module, "MODES", {"close-up": 1.0})
    scenes = _scenes(LabeledImages(images.items[1:3], images.index_sha256))
    samples = [scenes(number) for number in range(60)]
    whole, cut = sum(bool(sample.faces) for sample in samples), sum(bool(sample.ignored) for sample in samples)
    assert min(whole, cut, len(samples) - whole - cut) >= 8


def _row(x: float, score: float) -> Array:
    points = np.array([[2, 3], [8, 3], [5, 5], [3, 8], [7, 8]]) + np.array([x, 0])
    return np.array([x, 0, 10, 10, *points.ravel(), score], np.float32)


def test_landmarks_are_the_mean_of_confident_views_and_the_score_is_the_best() -> None:
    views = [np.stack([_row(0.0, 0.9)]), np.stack([_row(1.0, 0.7)]), np.stack([_row(3.0, 0.4)]), np.empty((0, 15))]
    (face,) = merge_views(views)
    assert face[[0, 4, SCORE, VIEW_SHARE]] == pytest.approx([0.5, 2.5, 0.9, 0.5])


def test_a_mirrored_face_keeps_its_image_left_eye_on_the_left() -> None:
    row = _row(4.0, 0.9)[None]
    assert mirrored(row, 100)[0, 4] == pytest.approx(100 - row[0, 6])
    assert np.allclose(mirrored(mirrored(row, 100), 100), row)


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_a_face_of_a_turned_image_is_placed_in_the_image_itself(turns: int) -> None:
    image = np.zeros((40, 60))
    image[8, 21] = 1  # a landmark at the center of this pixel, in a box of 20x10 px
    y, x = np.argwhere(np.rot90(image, turns))[0] + 0.5
    width, height = (20, 10) if turns % 2 == 0 else (10, 20)
    row = np.array([[x - width / 2, y - height / 2, width, height, *[x, y] * 5, 0.9]], np.float32)
    back = np.array([[11.5, 3.5, 20, 10, *[21.5, 8.5] * 5, 0.9]])
    assert rows_turned_back(row, turns, (60, 40)) == pytest.approx(back)


def test_views_and_cells_of_a_real_face_agree_and_a_gray_image_has_no_face() -> None:
    teacher = Teacher(folder_from_environment("MIEN_MODELS_DIR") / TEACHER_FILE)
    image = read_bgr(sample_photo())  # 512x512 px
    faces = teacher.faces(image)
    best = faces[faces[:, SCORE].argmax()]
    assert best[SCORE] > 0.8
    assert best[VIEW_SHARE] >= 0.5
    assert len(teacher.faces(np.full((200, 200, 3), 128, np.uint8))) == 0
    cells = teacher.cells(image)
    assert cells.shape == (64**2 + 32**2 + 16**2, 16)
    scores = np.sqrt(cells[:, 0] * cells[:, 1])
    assert scores.max() == pytest.approx(teacher.detect(image)[0, 14], abs=1e-5)
