"""The labeler on one photo, and its equality with training."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest.mock import Mock

import cv2
import numpy as np
import pytest

from mien.app.inference.classifier import Classifier
from mien.app.inference.detector import Detection
from mien.app.inference.labeler import Labeler
from mien.app.inference.records import Face
from mien.app.settings import load_settings
from mien.data import contract
from mien.data.contract import Array
from mien.data.readers.base import Sample, frame
from tests.support import (
    encoded,
    gradient_image,
    sample_photo,
    tiny_artifact,
)
from tests.support.app import upright_face


@pytest.fixture(scope="module")
def labeler(artifact: Path) -> Labeler:
    return Labeler.open(load_settings(detector="builtin", model=artifact, device="cpu", threads=1))


def drawn(artifact: Path, *faces: Detection, **settings: object) -> Labeler:
    """A labeler whose detector finds these faces."""
    chosen = load_settings(model=artifact, device="cpu", threads=1, **settings)
    return Labeler(Mock(detect=lambda _: list(faces)), Classifier(chosen), chosen)


def test_faces_below_the_minimum_size_are_dropped(artifact: Path) -> None:
    labeler = drawn(artifact, upright_face(60, 60, 60), upright_face(60, 60, 39), min_face_px=40)
    assert [labeled.box.width for labeled in labeler.label(gradient_image()).faces] == [60]


def reasons(face: Face) -> tuple[str, ...]:
    """Those that pixels and landmarks give."""
    return tuple(reason for reason in face.reasons if reason != "ambiguous")


def test_pixels_and_landmarks_give_reasons_and_soften_the_probabilities(tmp_path: Path) -> None:
    folder = tiny_artifact(tmp_path / "tiny.test")
    photo = contract.decode(sample_photo().read_bytes())
    (sharp,) = Labeler.open(load_settings(detector="builtin", model=folder, device="cpu")).label(photo).faces
    face = Detection(sharp.box, sharp.landmarks_px, 0.9)
    turned = sharp.landmarks_px + np.array([(0, 0), (0, 0), (40, 0), (0, 0), (0, 0)], np.float32)

    def labeled(image: Array, points: Array = face.landmarks_px) -> Face:
        return drawn(folder, replace(face, landmarks_px=points)).label(image).faces[0]

    assert reasons(sharp) == ()
    assert reasons(labeled(photo // 20)) == ("dark",)
    assert "turned" in reasons(labeled(photo, turned))
    small = cv2.resize(photo, None, fx=0.15, fy=0.15, interpolation=cv2.INTER_AREA)
    assert reasons(labeled(small, face.landmarks_px * 0.15)) == ("small",)
    soft = labeled(cv2.GaussianBlur(photo, (0, 0), 9))
    (row,) = Classifier(load_settings(model=folder, device="cpu")).classify(soft.crop_rgb[None])
    assert (reasons(soft), soft.label) == (("blurred",), contract.LABELS[int(row.argmax())])
    assert soft.confidence < 0.9 * row.max()
    assert sum(soft.probabilities.values()) == pytest.approx(1)


def test_a_label_below_the_threshold_of_the_manifest_is_uncertain_also_by_softening(tmp_path: Path) -> None:
    photo = contract.decode(sample_photo().read_bytes())
    settings = load_settings(detector="builtin", model=tiny_artifact(tmp_path / "plain.test"), device="cpu")
    (detection,) = Labeler.open(settings).prepare(photo).detections
    blurred = cv2.GaussianBlur(photo, (0, 0), 9)
    plain = drawn(tmp_path / "plain.test", detection)
    (soft,) = plain.label(blurred).faces
    (at_threshold,) = plain.label(blurred, threshold=soft.confidence).faces
    assert not at_threshold.uncertain
    (row,) = plain.classifier.classify(soft.crop_rgb[None])
    labeler = drawn(tiny_artifact(tmp_path / "tiny.test", confidence_threshold=float(row.max()) - 1e-3), detection)
    assert labeler.label(blurred).faces[0].uncertain
    assert labeler.label(blurred, threshold=0.0).faces[0].uncertain is False


@cache
def large_photo(*, face_px: int) -> bytes:
    """A JPEG of 3300 pixels with the sample's face, about `face_px` wide."""
    image = contract.decode(sample_photo().read_bytes())
    side = round(512 * face_px / 92)
    canvas = np.full((2500, 3300, 3), 90, np.uint8)
    grown = cv2.resize(image, (side, side), interpolation=cv2.INTER_CUBIC)[:2400]
    canvas[50 : 50 + grown.shape[0], 300 : 300 + side] = grown
    return encoded(canvas, "JPEG", quality=95)


@pytest.mark.parametrize(
    ("payload", "reduce_to_px"),
    [(sample_photo().read_bytes(), None), (large_photo(face_px=250), None), (large_photo(face_px=500), 1600)],
    ids=["small photo", "large photo, small face", "large photo, large face"],
)
def test_crops_of_serving_equal_those_of_training_byte_for_byte(
    labeler: Labeler, payload: bytes, reduce_to_px: int | None
) -> None:
    """The same photo and landmarks, through the service and through a data reader."""
    analysis = labeler.label(payload)
    pixels = contract.decode(payload, reduce_to_px=reduce_to_px)
    share = pixels.shape[1] / analysis.width
    assert share == (0.5 if reduce_to_px else 1)
    assert len(analysis.faces) >= 1
    for labeled in analysis.faces:
        points = tuple((float(x), float(y)) for x, y in labeled.landmarks_px * np.float32(share))
        sample = Sample(key="photo.jpg", split="train", label=None, landmarks_px=points)
        assert np.array_equal(labeled.crop_rgb, frame(pixels, sample))


def test_a_large_photo_of_a_large_face_is_decoded_at_reduced_size(labeler: Labeler) -> None:
    payload = large_photo(face_px=500)
    photo = labeler.prepare(payload, keep_pixels=True)
    expected = labeler.prepare(contract.decode(payload))
    assert photo.pixels is not None
    assert photo.pixels.shape == (1250, 1650, 3)
    assert (photo.width, photo.height) == (expected.width, expected.height) == (3300, 2500)
    assert tuple(photo.detections[0].box) == pytest.approx(tuple(expected.detections[0].box), abs=24)
    same_landmarks = contract.align(contract.decode(payload), photo.detections[0].landmarks_px)
    assert np.abs(photo.crops[0].astype(int) - same_landmarks).mean() < 3


@pytest.mark.parametrize(
    ("size", "tiles", "notes"),
    [
        ((3200, 300), "never", ()), ((3201, 300), "never", ("reduced_search",)), ((300, 3201), "wide", ()),
        ((3201, 2000), "wide", ("reduced_search",)), ((3201, 2000), "always", ()),
    ],
)  # fmt: skip
def test_a_large_photo_is_searched_in_tiles_or_says_that_it_was_not(
    artifact: Path, size: tuple[int, int], tiles: str, notes: tuple[str, ...]
) -> None:
    photo = encoded(np.zeros((*size[::-1], 3), np.uint8), "JPEG")
    detected = Mock(return_value=[])
    labeler = drawn(artifact, detection_tiles=tiles)
    labeler.detector.detect = detected  # type: ignore[method-assign]
    assert labeler.label(photo).notes == notes
    side_px = max(size) / 2 if notes or tiles == "never" else max(size)
    assert max(detected.call_args.args[0].shape) == pytest.approx(side_px, abs=0.5)
