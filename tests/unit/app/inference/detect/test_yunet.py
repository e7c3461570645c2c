"""YuNet in ONNX Runtime compared with OpenCV, and close-ups of faces."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from mien.app.inference.detect.network import NetworkDetector
from mien.app.inference.detect.yunet import create
from mien.app.settings import load_settings
from mien.data import contract
from mien.data.contract import Array, roll_degrees
from mien.models.detector.decode import NMS_IOU, TOP_K
from tests.support import folder_from_environment, sample_photo


@pytest.fixture(scope="module")
def network_file() -> Path:
    return folder_from_environment("MIEN_MODELS_DIR") / "face_detection_yunet_2023mar.onnx"


@pytest.fixture(scope="module")
def yunet(network_file: Path) -> NetworkDetector:
    return create(load_settings(models_dir=network_file.parent, device="cpu", threads=1))


def opencv_rows(path: Path, image: Array) -> Array:
    detector = cv2.FaceDetectorYN.create(str(path), "", (image.shape[1], image.shape[0]), 0.6, NMS_IOU, TOP_K)
    _, rows = detector.detect(cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    found: Array | None = rows
    return np.empty((0, 15), np.float32) if found is None else found


@pytest.mark.parametrize("long_side", [97, 320, 512, 641])
def test_rows_equal_those_of_opencv(yunet: NetworkDetector, network_file: Path, long_side: int) -> None:
    image = contract.decode(sample_photo().read_bytes())
    scale = long_side / max(image.shape[:2])
    image = cv2.resize(image, None, fx=scale, fy=scale * 0.9, interpolation=cv2.INTER_AREA)
    ours, theirs = yunet.rows(image), opencv_rows(network_file, image)
    assert len(ours) == len(theirs) >= 1
    assert np.abs(ours - theirs).max() < 0.01


def test_rows_of_real_photos_equal_those_of_opencv(yunet: NetworkDetector, network_file: Path) -> None:
    photos = sorted(folder_from_environment("MIEN_PHOTOS_DIR").glob("*.jpg"))
    assert len(photos) >= 60
    for photo in photos:
        image = contract.decode(photo.read_bytes(), reduce_to_px=640)
        scale = 640 / max(image.shape[:2])
        image = cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
        ours, theirs = yunet.rows(image), opencv_rows(network_file, image)
        assert len(ours) == len(theirs), photo.name
        assert np.abs(ours - theirs).max(initial=0) < 1, photo.name


@pytest.mark.parametrize("name", ["042.jpg", "063.jpg"])
def test_an_upright_close_up_of_a_real_photo_stays_upright(yunet: NetworkDetector, name: str) -> None:
    image = contract.decode((folder_from_environment("MIEN_PHOTOS_DIR") / name).read_bytes())
    (face,) = yunet.detect(image)
    x, y, width, height = (max(0, round(value)) for value in face.box)
    cut = image[y : y + height, x : x + width]
    scale = 640 / max(cut.shape[:2])
    way = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    (found,) = yunet.detect(cv2.resize(cut, None, fx=scale, fy=scale, interpolation=way))
    assert roll_degrees(found.landmarks_px) == pytest.approx(roll_degrees(face.landmarks_px), abs=15)


def test_the_settings_reach_the_detector(network_file: Path) -> None:
    detector = create(load_settings(models_dir=network_file.parent, detection_threshold=0.99))
    assert detector.detect(contract.decode(sample_photo().read_bytes())) == []
