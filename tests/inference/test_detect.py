"""Detection of real faces by every detector, and YuNet compared with OpenCV."""

import csv
from pathlib import Path

import cv2
import numpy as np
import pytest

from mien.app.errors import SettingsError
from mien.app.inference.detect import builtin, create_detector, network, weights
from mien.app.inference.detect.base import Detector
from mien.app.inference.detect.network import NetworkDetector
from mien.app.inference.detect.yunet import create
from mien.app.inference.records import Detection
from mien.app.settings import InferenceSettings, load_settings
from mien.data import contract
from mien.data.contract import Array, roll_degrees
from mien.models.detector.decode import NMS_IOU, TOP_K, to_blob
from tests.support import folder_from_environment, sample_photo

ROTATIONS = {cv2.ROTATE_90_CLOCKWISE: 90, cv2.ROTATE_180: 180, cv2.ROTATE_90_COUNTERCLOCKWISE: -90}
MIN_RECALL = {"builtin": 0.86, "yunet": 0.97}  # of the faces that YuNet found at full size
MAX_ROLL_ERROR = {"builtin": 20, "yunet": 5}  # degrees


@pytest.fixture(scope="module", params=["builtin", "yunet"])
def detector(request: pytest.FixtureRequest) -> Detector:
    folder = folder_from_environment("MIEN_MODELS_DIR") if request.param == "yunet" else None
    return create_detector(load_settings(detector=request.param, models_dir=folder))


@pytest.fixture(scope="module")
def photo() -> Array:
    return contract.decode(sample_photo().read_bytes())


def the_face(detector: Detector, image: Array) -> Detection:
    (face,) = detector.detect(image)
    return face


def roll_error(detector: Detector, image: Array, rotated: Array, expected: float) -> float:
    """Difference between the measured rotation of a face and the expected one, degrees."""
    before, after = (roll_degrees(the_face(detector, one).landmarks_px) for one in (image, rotated))
    return abs((after - before - expected + 180) % 360 - 180)


def test_the_face_of_a_photo_is_found_with_its_landmarks(detector: Detector, photo: Array) -> None:
    face = the_face(detector, photo)
    x, y, width, height = face.box
    left_eye, right_eye, nose, left_mouth, right_mouth = face.landmarks_px
    assert x < left_eye[0] < nose[0] < right_eye[0] < x + width
    assert y < max(left_eye[1], right_eye[1]) < nose[1] < min(left_mouth[1], right_mouth[1]) < y + height
    assert contract.align(photo, face.landmarks_px).shape == (contract.CROP_PX, contract.CROP_PX, 3)


# landmarks of YuNet hardly follow the lean of this face
@pytest.mark.parametrize("detector", ["builtin"], indirect=True)
@pytest.mark.parametrize("degrees", [-20, 20])
def test_a_leaning_face_is_found_with_its_roll(detector: Detector, photo: Array, degrees: int) -> None:
    height, width = photo.shape[:2]
    lean = cv2.getRotationMatrix2D((width / 2, height / 2), -degrees, 1.0)
    leaning = cv2.warpAffine(photo, lean, (width, height), borderMode=cv2.BORDER_REPLICATE)
    assert roll_error(detector, photo, leaning, degrees) < 6


@pytest.mark.parametrize("times", [0.5, 5])
def test_a_face_is_found_in_an_enlarged_or_reduced_photo(detector: Detector, photo: Array, times: float) -> None:
    face = the_face(detector, photo)
    same = the_face(detector, cv2.resize(photo, None, fx=times, fy=times, interpolation=cv2.INTER_AREA))
    side = max(face.box[2:])
    assert np.array(same.box) / times == pytest.approx(np.array(face.box), abs=0.15 * side)
    assert same.landmarks_px / times == pytest.approx(face.landmarks_px, abs=0.1 * side)


@pytest.mark.parametrize("side", [48, 1500])
def test_a_face_that_fills_the_image_is_found(detector: Detector, photo: Array, side: int) -> None:
    x, y, width, height = (round(value) for value in the_face(detector, photo).box)
    close_up = cv2.resize(photo[y : y + height, x : x + width], (side, side), interpolation=cv2.INTER_AREA)
    assert min(the_face(detector, close_up).box[2:]) > 0.7 * side


@pytest.mark.parametrize("code", ROTATIONS)
def test_the_face_of_a_rotated_photo_is_found_with_its_roll(detector: Detector, photo: Array, code: int) -> None:
    assert roll_error(detector, photo, cv2.rotate(photo, code), ROTATIONS[code]) < MAX_ROLL_ERROR[detector.name]


def test_the_listed_faces_of_real_photos_are_found(detector: Detector) -> None:
    folder = folder_from_environment("MIEN_PHOTOS_DIR")
    with (folder / "photos.csv").open(encoding="utf-8", newline="") as file:
        listed = {row["file"]: int(row["faces_yunet"]) for row in csv.DictReader(file)}
    detected = {name: len(detector.detect(contract.decode((folder / name).read_bytes()))) for name in listed}
    matched = sum(min(detected[name], count) for name, count in listed.items())
    assert matched >= MIN_RECALL[detector.name] * sum(listed.values())
    assert sum(detected.values()) - matched <= 0.03 * sum(listed.values())


def test_the_threshold_of_the_settings_counts(detector: Detector, photo: Array) -> None:
    folder = None if detector.name == "builtin" else folder_from_environment("MIEN_MODELS_DIR")
    strict = load_settings(detector=detector.name, models_dir=folder, detection_threshold=0.99)
    assert create_detector(strict).detect(photo) == []


def test_the_threshold_is_known_to_the_builtin_network(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = ["cls_32", "bbox_32"]
    monkeypatch.setattr(network, "detect_rows", lambda run, image, **_: run(outputs, {"input": to_blob(image)}))
    scores, boxes = builtin.create(InferenceSettings(device="cpu")).rows(np.zeros((64, 64, 3), np.uint8))
    assert np.array_equal(boxes, np.repeat(scores, 4, axis=2))  # nothing is computed where no face can be


def test_an_unknown_detector_is_rejected_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match=r"'hog': expected auto, builtin, yunet"):
        create_detector(load_settings(detector="hog"))


def test_auto_without_yunet_is_the_builtin_detector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "cache_dir", lambda: tmp_path / "none")
    assert create_detector(load_settings(models_dir=tmp_path)).name == "builtin"


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
