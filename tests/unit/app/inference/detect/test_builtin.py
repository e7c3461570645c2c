"""The released detector: its threshold, its verification, and images without a face."""

import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from mien.app.errors import DetectorUnavailable
from mien.app.inference.detect import builtin, create_detector, detector_source
from mien.app.settings import load_settings
from mien.data import contract
from mien.data.contract import Array
from mien.models.detector.manifest import default_detector_dir, load_detector
from tests.support import gradient_image, sample_photo

SETTINGS = load_settings(detector="builtin")


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


def test_plain_textures_have_no_face() -> None:
    detector = create_detector(SETTINGS)
    assert {name: detector.detect(image) for name, image in plain_textures().items()} == {
        name: [] for name in plain_textures()
    }


def test_the_threshold_is_that_of_the_artifact_unless_it_is_set() -> None:
    assert builtin.create(SETTINGS).threshold == load_detector(default_detector_dir()).score_threshold
    strict = load_settings(detector="builtin", detection_threshold=0.99)
    assert builtin.create(strict).detect(contract.decode(sample_photo().read_bytes())) == []


def test_a_damaged_artifact_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / default_detector_dir().name
    shutil.copytree(default_detector_dir(), folder)
    graph = folder / load_detector(folder).graph.file
    graph.write_bytes(graph.read_bytes() + b"\0")
    monkeypatch.setattr(builtin, "default_detector_dir", lambda: folder)
    with pytest.raises(DetectorUnavailable, match=f"{graph.name} has sha256"):
        builtin.create(SETTINGS)
    with pytest.raises(DetectorUnavailable, match="has sha256"):
        detector_source("builtin", SETTINGS)
