"""The released detector, and which detector `auto` takes."""

import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from app.errors import DetectorUnavailable, SettingsError
from app.inference.detect import builtin, create_detector, detector_names, detector_source, weights
from app.inference.detect.base import Detector, Face
from app.settings import load_settings
from data import contract
from data.contract import Array, roll_degrees
from models.detector.manifest import default_detector_dir, load_detector
from tests.support import gradient_image, sample_photo

SETTINGS = load_settings(detector="builtin")


@pytest.fixture(scope="module")
def detector() -> Detector:
    return create_detector(SETTINGS)


@pytest.fixture(scope="module")
def photo() -> Array:
    return contract.decode(sample_photo().read_bytes())


def the_face(detector: Detector, image: Array) -> Face:
    (face,) = detector.detect(image)
    return face


def test_the_face_of_a_photo_is_found_with_its_landmarks(detector: Detector, photo: Array) -> None:
    face = the_face(detector, photo)
    x, y, width, height = face.box_px
    left_eye, right_eye, nose, left_mouth, right_mouth = face.landmarks_px
    assert x < left_eye[0] < nose[0] < right_eye[0] < x + width
    assert y < max(left_eye[1], right_eye[1]) < nose[1] < min(left_mouth[1], right_mouth[1]) < y + height
    assert contract.align(photo, face.landmarks_px).shape == (contract.CROP_PX, contract.CROP_PX, 3)


@pytest.mark.parametrize("degrees", [-20, 20])
def test_a_leaning_face_is_found_with_its_roll(detector: Detector, photo: Array, degrees: int) -> None:
    height, width = photo.shape[:2]
    lean = cv2.getRotationMatrix2D((width / 2, height / 2), -degrees, 1.0)
    leaning = cv2.warpAffine(photo, lean, (width, height), borderMode=cv2.BORDER_REPLICATE)
    roll = roll_degrees(the_face(detector, photo).landmarks_px)
    assert roll_degrees(the_face(detector, leaning).landmarks_px) - roll == pytest.approx(degrees, abs=6)


@pytest.mark.parametrize("times", [0.5, 3, 5])
def test_a_face_is_found_in_an_enlarged_or_reduced_photo(detector: Detector, photo: Array, times: float) -> None:
    face = the_face(detector, photo)
    same = the_face(detector, cv2.resize(photo, None, fx=times, fy=times, interpolation=cv2.INTER_AREA))
    side = max(face.box_px[2:])
    assert np.array(same.box_px) / times == pytest.approx(np.array(face.box_px), abs=0.15 * side)
    assert same.landmarks_px / times == pytest.approx(face.landmarks_px, abs=0.1 * side)


@pytest.mark.parametrize("side", [48, 350, 1500])
def test_a_face_that_fills_the_image_is_found(detector: Detector, photo: Array, side: int) -> None:
    x, y, width, height = (round(value) for value in the_face(detector, photo).box_px)
    close_up = cv2.resize(photo[y : y + height, x : x + width], (side, side), interpolation=cv2.INTER_AREA)
    assert min(the_face(detector, close_up).box_px[2:]) > 0.7 * side


@pytest.mark.parametrize("code", [cv2.ROTATE_90_CLOCKWISE, cv2.ROTATE_180, cv2.ROTATE_90_COUNTERCLOCKWISE])
def test_a_rotated_photo_has_its_face_with_the_roll(detector: Detector, photo: Array, code: int) -> None:
    expected = {cv2.ROTATE_90_CLOCKWISE: 90, cv2.ROTATE_180: 180, cv2.ROTATE_90_COUNTERCLOCKWISE: -90}[code]
    roll = roll_degrees(the_face(detector, photo).landmarks_px)
    change = roll_degrees(the_face(detector, cv2.rotate(photo, code)).landmarks_px) - roll
    assert abs((change - expected + 180) % 360 - 180) < 20


def plain_textures() -> dict[str, Array]:
    random = np.random.default_rng(0)
    noise = random.integers(0, 256, (480, 640, 3), dtype=np.uint8)
    coarse = random.integers(0, 256, (12, 16, 3), dtype=np.uint8)
    y, x = np.mgrid[:480, :640]
    return {
        "gray": np.full((480, 640, 3), 127, np.uint8),
        "noise": noise,
        "clouds": cv2.resize(coarse, (640, 480), interpolation=cv2.INTER_CUBIC),
        "stripes": np.repeat(((x // 16 % 2) * 255).astype(np.uint8)[..., None], 3, axis=2),
        "checkerboard": np.repeat((((x // 24 + y // 24) % 2) * 255).astype(np.uint8)[..., None], 3, axis=2),
        "gradient": gradient_image(640, 480),
    }


@pytest.mark.parametrize("name", list(plain_textures()))
def test_plain_textures_have_no_face(detector: Detector, name: str) -> None:
    assert detector.detect(plain_textures()[name]) == []


@pytest.mark.parametrize("shape", [(1, 1), (1, 2000), (23, 23), (24, 24), (33, 700)])
def test_odd_sizes_are_no_error(detector: Detector, shape: tuple[int, int]) -> None:
    assert detector.detect(np.full((*shape, 3), 127, np.uint8)) == []


def test_the_threshold_is_the_artifacts_unless_the_settings_name_one(photo: Array) -> None:
    released = load_detector(default_detector_dir()).score_threshold
    assert builtin.create(SETTINGS).threshold == released
    strict = load_settings(detector="builtin", detection_threshold=0.99)
    assert builtin.create(strict).detect(photo) == []


def test_a_damaged_artifact_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / default_detector_dir().name
    shutil.copytree(default_detector_dir(), folder)
    graph = folder / load_detector(folder).graph.file
    graph.write_bytes(graph.read_bytes() + b"\0")
    monkeypatch.setattr(builtin, "default_detector_dir", lambda: folder)
    with pytest.raises(DetectorUnavailable, match=f"{graph.name} has sha256"):
        builtin.create(SETTINGS)
    with pytest.raises(DetectorUnavailable, match="has sha256"):
        detector_source("builtin", SETTINGS)


def test_every_detector_of_the_folder_has_a_name_and_is_found_by_it() -> None:
    assert detector_names() == ("builtin", "yunet")
    for name in detector_names():
        try:
            detector = create_detector(load_settings(detector=name))
        except DetectorUnavailable:
            continue  # its file is not on this machine
        assert detector.name == name


def test_an_unknown_detector_is_refused_with_those_there_are() -> None:
    with pytest.raises(SettingsError, match=r"'hog': expected auto, builtin, yunet"):
        create_detector(load_settings(detector="hog"))


def test_auto_without_yunet_takes_the_detector_in_the_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "cache_dir", lambda: tmp_path / "none")
    assert create_detector(load_settings(models_dir=tmp_path)).name == "builtin"


def test_auto_refuses_a_damaged_yunet_rather_than_take_the_weaker(tmp_path: Path) -> None:
    (tmp_path / weights.YUNET_FILE).write_bytes(b"damaged")
    with pytest.raises(DetectorUnavailable, match="sha256"):
        create_detector(load_settings(models_dir=tmp_path))
