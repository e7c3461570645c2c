"""The fallback detector, and which detector `auto` takes."""

import logging
from pathlib import Path

import cv2
import numpy as np
import pytest

from app.errors import DetectorUnavailable, SettingsError
from app.inference import detect
from app.inference.detect import create_detector, detector_names, weights
from app.inference.detect.haar import create
from app.settings import load_settings
from data import contract
from data.contract import CROP_PX, align, roll_degrees
from tests.support import picture, sample_photo

SETTINGS = load_settings(detector="haar")


def test_the_face_of_a_photo_is_found_with_its_eyes() -> None:
    image = contract.decode(sample_photo().read_bytes())
    faces = create(SETTINGS).detect(image)
    assert len(faces) == 1
    x, y, width, height = faces[0].box_px
    eyes = faces[0].landmarks_px[:2]
    assert (eyes[:, 0] > x).all()
    assert (eyes[:, 0] < x + width).all()
    assert (eyes[:, 1] > y).all()
    assert (eyes[:, 1] < y + height / 2).all()
    assert 0 < faces[0].score < 1
    assert align(image, faces[0].landmarks_px).shape == (CROP_PX, CROP_PX, 3)


def test_the_threshold_of_the_settings_is_the_least_score() -> None:
    image = contract.decode(sample_photo().read_bytes())
    (face,) = create(load_settings(detector="haar", detection_threshold=0.3)).detect(image)
    above = load_settings(detector="haar", detection_threshold=min(0.999, face.score + 0.001))
    assert create(above).detect(image) == []


def test_a_leaning_head_has_its_roll_from_the_eyes() -> None:
    image = contract.decode(sample_photo().read_bytes())
    height, width = image.shape[:2]
    straight = roll_degrees(create(SETTINGS).detect(image)[0].landmarks_px)
    lean = cv2.getRotationMatrix2D((width / 2, height / 2), -10, 1.0)
    faces = create(SETTINGS).detect(cv2.warpAffine(image, lean, (width, height), borderMode=cv2.BORDER_REPLICATE))
    assert roll_degrees(faces[0].landmarks_px) - straight == pytest.approx(10, abs=6)


def test_boxes_are_in_pixels_of_a_large_photo() -> None:
    image = contract.decode(sample_photo().read_bytes())
    large = cv2.resize(image, None, fx=4, fy=4, interpolation=cv2.INTER_LINEAR)
    (face,), (same,) = create(SETTINGS).detect(image), create(SETTINGS).detect(large)
    assert same.box_px[0] / 4 == pytest.approx(face.box_px[0], abs=25)
    assert same.box_px[2] / 4 == pytest.approx(face.box_px[2], rel=0.25)


@pytest.mark.parametrize("shape", [(1, 1), (1, 2000), (23, 23), (24, 24), (33, 700)])
def test_odd_sizes_are_no_error(shape: tuple[int, int]) -> None:
    assert create(SETTINGS).detect(np.full((*shape, 3), 127, np.uint8)) == []


def test_a_picture_without_a_face_has_none() -> None:
    assert create(SETTINGS).detect(picture()) == []


def test_every_detector_of_the_folder_has_a_name_and_is_found_by_it() -> None:
    assert detector_names() == ("haar", "yunet")
    for name in detector_names():
        settings = load_settings(detector=name)
        try:
            detector = create_detector(settings)
        except DetectorUnavailable:
            continue  # its file is not on this machine
        assert detector.name == name


def test_an_unknown_detector_is_refused_with_those_there_are() -> None:
    with pytest.raises(SettingsError, match=r"'hog': expected auto, haar, yunet"):
        create_detector(load_settings(detector="hog"))


def test_auto_without_yunet_says_once_which_detector_it_takes_and_how_to_get_the_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(weights, "cache_dir", lambda: tmp_path / "none")
    detect._warn_of_haar.cache_clear()
    with caplog.at_level(logging.WARNING, logger=detect.__name__):
        detectors = [create_detector(load_settings(models_dir=tmp_path)) for _ in range(2)]
    assert [detector.name for detector in detectors] == ["haar", "haar"]
    assert caplog.text.count("mien models pull") == 1


def test_auto_refuses_a_damaged_yunet_rather_than_take_the_weaker(tmp_path: Path) -> None:
    (tmp_path / weights.YUNET_FILE).write_bytes(b"damaged")
    with pytest.raises(DetectorUnavailable, match="sha256"):
        create_detector(load_settings(models_dir=tmp_path))
