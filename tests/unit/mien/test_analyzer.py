"""Python API: paths, bytes and pixels as input, typed faces as output."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from mien import Analyzer, Face, MienError
from mien.app.inference.pipeline import build_pipeline
from mien.app.inference.runtime.sessions import cuda_obstacle
from mien.app.settings import load_settings
from mien.data.contract import LABELS, LANDMARKS, decode
from tests.support import encoded, gradient_image, sample_photo


@pytest.fixture(scope="module")
def analyzer(artifact: Path) -> Analyzer:
    return Analyzer(model=artifact, device="cpu", detector="builtin")


def test_a_path_bytes_and_pixels_of_one_photo_give_the_same_face(analyzer: Analyzer) -> None:
    payload = sample_photo().read_bytes()
    (from_path,) = analyzer.analyze(sample_photo())
    assert analyzer.analyze(str(sample_photo())) == analyzer.analyze(payload) == [from_path]
    (from_pixels,) = analyzer.analyze(decode(payload))
    assert (from_pixels.label, from_pixels.box) == (from_path.label, from_path.box)


def test_faces_equal_those_of_the_pipeline(analyzer: Analyzer, artifact: Path) -> None:
    (face,) = analyzer.analyze(sample_photo())
    settings = load_settings(model=artifact, device="cpu", detector="builtin")
    (expected,) = build_pipeline(settings).analyze(sample_photo().read_bytes()).faces
    assert (face.label, face.confidence, face.uncertain) == (expected.label, expected.confidence, expected.uncertain)
    assert tuple(face.probabilities) == LABELS
    assert list(face.probabilities.values()) == pytest.approx(expected.probabilities.tolist())
    assert tuple(face.landmarks) == LANDMARKS
    assert list(face.landmarks.values()) == [tuple(point) for point in expected.landmarks_px.tolist()]


def test_a_face_becomes_json(analyzer: Analyzer) -> None:
    (face,) = analyzer.analyze(sample_photo())
    assert isinstance(face, Face)
    assert json.loads(json.dumps(face.to_dict()))["box"]["width"] == face.box.width


def test_a_batch_keeps_its_order_and_a_photo_without_a_face_is_an_empty_list(analyzer: Analyzer) -> None:
    empty = encoded(gradient_image(64, 64))
    first, second, third = analyzer.analyze_batch([empty, sample_photo(), gradient_image(64, 64)])
    assert (first, len(second), third) == ([], 1, [])


@pytest.mark.parametrize("pixels", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3)), np.zeros((0, 4, 3), np.uint8)])
def test_pixels_of_another_shape_or_type_are_rejected(analyzer: Analyzer, pixels: np.ndarray) -> None:
    with pytest.raises(MienError, match=r"expected .H, W, 3. uint8"):
        analyzer.analyze(pixels)


def test_a_variable_counts_unless_an_argument_is_given(monkeypatch: pytest.MonkeyPatch, artifact: Path) -> None:
    if (obstacle := cuda_obstacle()) is None:
        pytest.skip("this machine has a GPU")
    monkeypatch.setenv("MIEN_DEVICE", "cuda")
    monkeypatch.setenv("MIEN_MODEL", str(artifact))
    monkeypatch.setenv("MIEN_DETECTOR", "builtin")
    with pytest.raises(MienError, match=rf"^device cuda: {re.escape(obstacle)}\..*MIEN_DEVICE=auto or cpu"):
        Analyzer()
    assert len(Analyzer(device="cpu").analyze(sample_photo())) == 1


def test_an_unreadable_file_and_an_unknown_model_are_errors(analyzer: Analyzer, tmp_path: Path) -> None:
    with pytest.raises(MienError):
        analyzer.analyze(b"no image")
    with pytest.raises(FileNotFoundError):
        analyzer.analyze(tmp_path / "missing.jpg")
    with pytest.raises(MienError, match=r"model 'accurat': not an artifact folder, and not one of fast, accurate, "):
        Analyzer(model="accurat")
