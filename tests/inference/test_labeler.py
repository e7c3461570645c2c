"""The labeler on one photo: detected and given faces, doubt, reduced decoding, and equality with training."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import cv2
import numpy as np
import pytest

from mien.app.errors import InvalidFace, InvalidRequest
from mien.app.inference.classifier import Classifier
from mien.app.inference.detector import Detection
from mien.app.inference.labeler import Labeler
from mien.app.inference.records import Box, flat
from mien.app.settings import load_settings
from mien.data.contract import LABELS, TEMPLATE_PX, Array, align, decode, fit
from mien.data.readers.base import Sample, frame
from mien.models.manifest import Agreement
from tests.support import encoded, gradient_image, sample_photo, tiny_artifact, upright_face


@pytest.fixture(scope="module")
def labeler(artifact: Path) -> Labeler:
    return Labeler.open(load_settings(detector="builtin", model=artifact, device="cpu", threads=1))


@pytest.fixture(scope="module")
def detected(labeler: Labeler, photo: Array) -> Detection:
    (face,) = labeler.prepare(photo).detections
    return face


def finding(model: Path, *faces: Detection, **settings: object) -> Labeler:
    """A labeler whose detector finds these faces."""
    chosen = load_settings(model=model, device="cpu", threads=1, **settings)
    return Labeler(Mock(detect=lambda *_, **__: list(faces)), Classifier(chosen), chosen)


def test_faces_below_the_minimum_size_are_dropped_and_those_beyond_the_limit_noted(artifact: Path) -> None:
    faces = [upright_face(60, 60, side) for side in (80, 60, 39)]
    for limit, sides, notes in ((2, [80, 60], ()), (1, [80], ("max_faces",))):
        labeled = finding(artifact, *faces, min_face_px=40, max_faces=limit).label(gradient_image())
        assert ([face.box.width for face in labeled.faces], labeled.notes) == (sides, notes)


def test_a_blurred_face_has_softened_probabilities_and_expected_votes_with_a_share_of_that(
    tmp_path: Path, photo: Array, detected: Detection
) -> None:
    blurred, zeros = cv2.GaussianBlur(photo, (0, 0), 9), (0.0,) * 7
    # without a correction, votes are the probabilities
    options = {"agreement": Agreement(temperature=1.0, offsets=zeros), "prior_correction": zeros}
    labeler = finding(tiny_artifact(tmp_path / "tiny.test", **options), detected)
    (soft,) = labeler.label(blurred).faces
    (row,), served = labeler.classifier.classify(soft.crop_rgb[None]), np.array([*soft.probabilities.values()])
    assert soft.label == LABELS[int(row.argmax())]
    assert soft.confidence == served.max() < 0.9 * row.max()
    assert served.sum() == pytest.approx(1)
    factor = np.log(row.max() / row.min()) / np.log(served.max() / served.min())
    votes = row ** (1 / (1 + 0.353 * (factor - 1)))
    assert factor > 1.2
    assert soft.agreement == pytest.approx(votes.max() / votes.sum(), abs=1e-3)
    assert flat(replace(soft, agreement=0.12345678))["agreement"] == 0.123457
    strict = tiny_artifact(tmp_path / "strict.test", confidence_threshold=float(row.max()) - 1e-3, **options)
    for threshold, is_uncertain in ((None, True), (soft.confidence, False)):
        (face,) = finding(strict, detected).label(blurred, threshold=threshold).faces
        assert face.uncertain is is_uncertain, "by softening alone"


def test_every_box_becomes_a_face_in_the_order_given_aligned_by_the_landmarks_in_it(
    labeler: Labeler, artifact: Path, photo: Array, detected: Detection
) -> None:
    x, y, width, height = detected.box
    nothing, whole_head = Box(5, 300, 40, 60), Box(x - 0.2 * width, y - 0.3 * height, 1.4 * width, 1.4 * height)
    boxes = [nothing, whole_head, Box(x + 0.2 * width, y + 0.2 * height, 0.6 * width, 0.6 * height)]
    labeled = labeler.label(photo, boxes=boxes)
    assert [face.box for face in labeled.faces] == boxes
    assert labeled.faces[0].detection_score == 0
    assert labeled.faces[0].landmarks_px.mean(axis=0) == pytest.approx((25.12, 333.99), abs=0.01), (
        "of a face in the middle of the box"
    )
    for face in labeled.faces[1:]:
        assert face.detection_score > 0
        assert np.abs(face.landmarks_px - detected.landmarks_px).max() < 0.05 * width
        assert np.array_equal(face.crop_rgb, align(photo, face.landmarks_px))
    (by_box,) = finding(artifact).prepare(photo, boxes=[detected.box]).detections
    assert np.abs(by_box.landmarks_px - detected.landmarks_px).max() < 0.12 * width, "as detectors do"
    assert labeler.label(photo, boxes=[]).faces == ()
    searching = finding(artifact)
    searching.detector.detect = searched = Mock(return_value=[])
    searching.prepare(photo, boxes=[Box(200, 210, 50, 100)])
    assert np.array_equal(searched.call_args.args[0], photo[170:350, 180:270])


def test_unusable_boxes_are_named_together_and_options_that_exclude_each_other(
    labeler: Labeler, artifact: Path, photo: Array, detected: Detection
) -> None:
    nan, outside = Box(float("nan"), 0, 10, 10), Box(600, 0, 10, 10)
    huge, thin = Box(0, 0, 5000, 5000), Box(0, 0, 10, -3)
    together = Detection(detected.box, np.zeros((5, 2), np.float32), 1.0)
    with pytest.raises(InvalidFace, match=r"boxes\[0\]: nan.*boxes\[2\]: 600, 0, 10, 10 is outside") as caught:
        labeler.prepare(photo, boxes=[nan, detected.box, outside, huge, thin, together])
    assert caught.value.indexes == (0, 2, 3, 4, 5)
    with pytest.raises(InvalidRequest, match="2, at most 1"):
        finding(artifact, max_faces=1).prepare(photo, boxes=[detected.box] * 2)
    with pytest.raises(InvalidRequest, match="choose one"):
        labeler.prepare(photo, whole=True, boxes=[detected.box])
    with pytest.raises(InvalidRequest, match="1x1 px, too small for a face"):
        labeler.prepare(photo[:1, :1], whole=True)


def test_an_image_that_is_one_face_is_classified_as_in_training_without_a_search(
    labeler: Labeler, photo: Array, detected: Detection
) -> None:
    detector = Mock(detect=Mock(side_effect=AssertionError("searched")))
    whole = Labeler(detector, labeler.classifier, labeler.settings)
    image, crop = gradient_image(90, 60), align(photo, detected.landmarks_px)
    (face,) = whole.label(image, whole=True).faces
    assert np.array_equal(face.crop_rgb, fit(image))
    assert tuple(face.box) == (0, 0, 90, 60)
    assert np.abs(align(image, face.landmarks_px).astype(int) - fit(image)).mean() < 6
    (same,) = whole.label(crop, whole=True).faces
    assert np.array_equal(same.crop_rgb, crop)
    assert np.allclose(same.landmarks_px, TEMPLATE_PX)


def test_crops_of_serving_equal_those_of_training_byte_for_byte(labeler: Labeler, photo: Array) -> None:
    """The same photo and landmarks, through the service and through a data reader."""
    payloads = {92: sample_photo().read_bytes()}
    for face_px in (250, 500):
        grown = cv2.resize(photo, None, fx=face_px / 92, fy=face_px / 92, interpolation=cv2.INTER_CUBIC)[:2400]
        edges = (50, 2450 - grown.shape[0], 300, 3000 - grown.shape[1])
        canvas = cv2.copyMakeBorder(grown, *edges, cv2.BORDER_CONSTANT, value=(90, 90, 90))
        payloads[face_px] = encoded(canvas, "JPEG", quality=95)
    for face_px, payload in payloads.items():
        is_reduced = face_px == 500
        labeled = labeler.prepare(payload, keep_pixels=True)
        pixels = decode(payload, reduce_to_px=1600 if is_reduced else None)
        share = pixels.shape[1] / labeled.width
        assert share == (0.5 if is_reduced else 1)
        assert labeled.pixels.shape == pixels.shape
        assert labeled.detections[0].box.width == pytest.approx(face_px, rel=0.2)
        for face, crop in zip(labeled.detections, labeled.crops, strict=True):
            points = tuple((float(x), float(y)) for x, y in face.landmarks_px * np.float32(share))
            sample = Sample(key="photo.jpg", split="train", label=None, landmarks_px=points)
            assert np.array_equal(crop, frame(pixels, sample))


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
    labeler = finding(artifact, detection_tiles=tiles)
    labeler.detector.detect = detected = Mock(return_value=[])
    assert labeler.label(photo).notes == notes
    side_px = max(size) / 2 if notes or tiles == "never" else max(size)
    assert max(detected.call_args.args[0].shape) == pytest.approx(side_px, abs=0.5)
