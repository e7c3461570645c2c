"""Detection of real faces by every detector, and YuNet compared with OpenCV."""

import csv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest

from mien.app.errors import SettingsError
from mien.app.inference import detector as detector_module
from mien.app.inference import detector_files
from mien.app.inference.detector import NMS_IOU, TOP_K, NetworkDetector
from mien.app.inference.detector_files import YUNET_FILE, create_detector
from mien.app.settings import load_settings
from mien.data.contract import Array, decode, roll_degrees
from tests.inference.conftest import FakeGpu
from tests.support import eventually, folder_from_environment, gradient_image

ROTATIONS = {cv2.ROTATE_90_CLOCKWISE: 90, cv2.ROTATE_180: 180, cv2.ROTATE_90_COUNTERCLOCKWISE: -90}
MIN_RECALL = {"builtin": 0.86, "yunet": 0.97}  # of the faces that YuNet found at full size
MAX_ROLL_ERROR = {"builtin": 20, "yunet": 5}  # degrees


@pytest.fixture(scope="module", params=["builtin", "yunet"])
def detector(request: pytest.FixtureRequest) -> NetworkDetector:
    folder = folder_from_environment("MIEN_MODELS_DIR") if request.param == "yunet" else None
    return create_detector(load_settings(detector=request.param, models_dir=folder))


def test_a_face_is_found_in_an_enlarged_reduced_or_rotated_photo(detector: NetworkDetector, photo: Array) -> None:
    (face,) = detector.detect(photo)
    left_eye, right_eye, nose, left_mouth, right_mouth = face.landmarks_px
    assert left_eye[0] < nose[0] < right_eye[0]
    assert nose[1] < min(left_mouth[1], right_mouth[1])
    side = max(face.box.width, face.box.height)
    for times in (0.5, 5):
        (same,) = detector.detect(cv2.resize(photo, None, fx=times, fy=times, interpolation=cv2.INTER_AREA))
        assert np.array([*same.box]) / times == pytest.approx(np.array([*face.box]), abs=0.15 * side)
        assert same.landmarks_px / times == pytest.approx(face.landmarks_px, abs=0.1 * side)
    for code, turned in ROTATIONS.items():
        (same,) = detector.detect(cv2.rotate(photo, code))
        roll = roll_degrees(same.landmarks_px) - roll_degrees(face.landmarks_px)
        assert abs((roll - turned + 180) % 360 - 180) < MAX_ROLL_ERROR[detector.name]


def test_the_listed_faces_of_real_photos_are_found(detector: NetworkDetector) -> None:
    folder = folder_from_environment("MIEN_PHOTOS_DIR")
    with (folder / "photos.csv").open(encoding="utf-8", newline="") as file:
        listed = {row["file"]: int(row["faces_yunet"]) for row in csv.DictReader(file)}
    detected = {name: len(detector.detect(decode((folder / name).read_bytes()))) for name in listed}
    matched = sum(min(detected[name], count) for name, count in listed.items())
    assert matched >= MIN_RECALL[detector.name] * sum(listed.values())
    assert sum(detected.values()) - matched <= 0.03 * sum(listed.values())


def test_plain_textures_have_no_face_and_the_threshold_of_the_settings_counts(
    detector: NetworkDetector, photo: Array
) -> None:
    random = np.random.default_rng(0)
    clouds = cv2.resize(random.integers(0, 256, (12, 16, 3), np.uint8), (640, 480), interpolation=cv2.INTER_CUBIC)
    for texture in (random.integers(0, 256, (480, 640, 3), np.uint8), clouds, gradient_image(640, 480)):
        assert detector.detect(texture) == []
    strict = detector._settings.model_copy(update={"detection_threshold": 0.99})
    assert create_detector(strict).detect(photo) == []


def test_images_on_a_gpu_are_padded_to_fixed_sizes_and_threads_share_a_run(
    detector: NetworkDetector, photo: Array, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detector_module, "_BATCHES", (1, 4))
    monkeypatch.setattr(detector_module, "_CANVASES_PX", (160, 640, 1024))
    on_gpu = create_detector(detector._settings, "cuda")
    images = [np.roll(photo, 20 * shift, axis=1)[: 500 - 30 * shift] for shift in range(4)]
    gpu.shapes.clear()
    with ThreadPoolExecutor(4) as pool:
        gpu.is_free.clear()
        found = [pool.submit(on_gpu.rows, images[0])]
        eventually(lambda: gpu.shapes)
        found += [pool.submit(on_gpu.rows, image) for image in images[1:]]
        eventually(lambda: len(on_gpu._canvases[640]._jobs) == 3)
        gpu.is_free.set()
    assert gpu.shapes == [(1, 3, 640, 640), (4, 3, 640, 640)]
    for image, future in zip(images, found, strict=True):
        (expected,), (row,) = detector.rows(image), future.result()
        assert row == pytest.approx(expected, abs=0.05 * float(expected[2]))
    for image, px in ((photo[:150, 180:330], 160), (cv2.resize(photo, (1000, 1000)), 1024)):
        assert len(on_gpu.rows(image)) == 1
        assert gpu.shapes[-1] == (1, 3, px, px)


def test_auto_without_yunet_is_the_builtin_detector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detector_files, "cache_dir", lambda: None)
    assert create_detector(load_settings(models_dir=tmp_path)).name == "builtin"
    with pytest.raises(SettingsError, match=r"'auto', 'builtin' or 'yunet'"):
        load_settings(detector="hog")


def test_rows_of_yunet_equal_those_of_opencv(photo: Array) -> None:
    folder = folder_from_environment("MIEN_MODELS_DIR")
    yunet = create_detector(load_settings(detector="yunet", models_dir=folder, device="cpu", threads=1))
    for size in ((97, 87), (320, 288), (641, 577)):
        image = cv2.resize(photo, size, interpolation=cv2.INTER_AREA)
        opencv = cv2.FaceDetectorYN.create(str(folder / YUNET_FILE), "", size, 0.6, NMS_IOU, TOP_K)
        ours, theirs = yunet.rows(image), opencv.detect(cv2.cvtColor(image, cv2.COLOR_RGB2BGR))[1]
        assert len(ours) == len(theirs) >= 1
        assert np.abs(ours - theirs).max() < 0.01
