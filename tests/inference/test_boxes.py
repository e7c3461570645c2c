"""Faces that the caller gives: boxes, landmarks, and images that are one face each."""

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from mien.app.errors import InvalidFace, InvalidRequest
from mien.app.inference.detector import Detection
from mien.app.inference.labeler import Labeler
from mien.app.inference.records import Box
from mien.app.settings import InferenceSettings
from mien.data.contract import TEMPLATE_PX, Array, align, decode, fit
from tests.support import gradient_image, sample_photo


@pytest.fixture(scope="module")
def labeler(artifact: Path) -> Labeler:
    return Labeler.open(InferenceSettings(detector="builtin", model=artifact, device="cpu", threads=1))


@pytest.fixture(scope="module")
def photo() -> Array:
    return decode(sample_photo().read_bytes())


@pytest.fixture(scope="module")
def detected(labeler: Labeler, photo: Array) -> Detection:
    (face,) = labeler.prepare(photo).detections
    return face


def finding(labeler: Labeler, *faces: Detection, **settings: object) -> Labeler:
    """The labeler with a detector that finds these faces."""
    chosen = labeler.settings.model_copy(update=settings)
    return Labeler(Mock(detect=lambda _: list(faces)), labeler.classifier, chosen)


def test_a_box_is_aligned_by_the_landmarks_in_it_however_it_is_drawn(
    labeler: Labeler, photo: Array, detected: Detection
) -> None:
    x, y, width, height = detected.box
    whole_head = Box(x - 0.2 * width, y - 0.3 * height, 1.4 * width, 1.4 * height)
    prepared = labeler.prepare(photo, boxes=[whole_head])
    (face,) = prepared.detections
    assert face.box == whole_head
    assert np.abs(face.landmarks_px - detected.landmarks_px).max() < 0.05 * width
    assert np.array_equal(prepared.crops[0], align(photo, face.landmarks_px))


def test_every_box_becomes_a_face_in_the_order_given(labeler: Labeler, photo: Array, detected: Detection) -> None:
    nothing = Box(5, 300, 40, 60)
    labeled = labeler.label(photo, boxes=[nothing, detected.box])
    assert [face.box for face in labeled.faces] == [nothing, detected.box]
    assert labeled.faces[0].detection_score == 0 < labeled.faces[1].detection_score
    assert labeler.label(photo, boxes=[]).faces == ()
    (framed,) = finding(labeler).prepare(photo, boxes=[detected.box]).detections
    assert np.abs(framed.landmarks_px - detected.landmarks_px).max() < 0.12 * detected.box.width, "as detectors do"


def test_unusable_boxes_are_named_together(labeler: Labeler, photo: Array, detected: Detection) -> None:
    nan, outside = Box(float("nan"), 0, 10, 10), Box(600, 0, 10, 10)
    huge, thin = Box(0, 0, 5000, 5000), Box(0, 0, 10, -3)
    together = Detection(detected.box, np.zeros((5, 2), np.float32), 1.0)
    with pytest.raises(InvalidFace, match=r"boxes\[0\]: nan.*boxes\[2\]: 600, 0, 10, 10 is outside") as caught:
        labeler.prepare(photo, boxes=[nan, detected.box, outside, huge, thin, together])
    assert caught.value.indexes == (0, 2, 3, 4, 5)
    with pytest.raises(InvalidRequest, match="2, at most 1"):
        finding(labeler, max_faces=1).prepare(photo, boxes=[detected.box] * 2)


def test_an_image_that_is_one_face_is_classified_as_in_training(labeler: Labeler) -> None:
    image = gradient_image(90, 60)
    (face,) = finding(labeler).label(image, whole=True).faces
    assert np.array_equal(face.crop_rgb, fit(image))
    assert tuple(face.box) == (0, 0, 90, 60)
    assert np.abs(align(image, face.landmarks_px).astype(int) - fit(image)).mean() < 6


def test_a_crop_is_classified_as_it_is(labeler: Labeler, photo: Array, detected: Detection) -> None:
    crop = align(photo, detected.landmarks_px)
    prepared = finding(labeler, detected).prepare(crop, whole=True)
    assert np.array_equal(prepared.crops[0], crop)
    assert np.allclose(prepared.detections[0].landmarks_px, TEMPLATE_PX)
    for image, options, complaint in (
        (photo[:1, :1], {"whole": True}, "1x1 px, too small for a face"),
        (crop, {"whole": True, "boxes": [detected.box]}, "choose one"),
    ):
        with pytest.raises(InvalidRequest, match=complaint):
            labeler.prepare(image, **options)  # type: ignore[arg-type]


def test_an_image_that_is_one_face_is_not_searched(labeler: Labeler, photo: Array) -> None:
    detector = Mock(detect=Mock(side_effect=AssertionError("searched")))
    assert len(Labeler(detector, labeler.classifier, labeler.settings).label(photo, whole=True).faces) == 1


def test_more_faces_than_the_limit_are_noted(labeler: Labeler, photo: Array, detected: Detection) -> None:
    for count, notes in ((2, ()), (3, ("max_faces",))):
        assert finding(labeler, *[detected] * count, max_faces=2).label(photo).notes == notes
