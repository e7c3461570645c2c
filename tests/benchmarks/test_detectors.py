"""The benchmark of detectors on held-out images."""

import numpy as np
import pytest

from benchmarks.detectors import compare_labels, score
from mien.app.inference.detect import create_detector
from mien.app.settings import load_settings
from mien.training.detector.images import LabeledImage, LabeledImages, read_bgr
from tests.support import folder_from_environment, sample_photo


def test_a_detector_agrees_with_its_own_faces_and_misses_what_it_does_not_see() -> None:
    detector = create_detector(load_settings(detector="builtin", threads=1))
    (face,) = detector.detect(read_bgr(sample_photo())[..., ::-1].copy())
    seen = np.array([[*face.box, *face.landmarks_px.ravel(), 0.9, 1.0]], np.float32)
    unseen = seen.copy()
    unseen[0, :2] += 3 * seen[0, 2]
    item = LabeledImage("samples", sample_photo(), np.concatenate([seen, unseen]))
    row = score(detector, LabeledImages((item,), ""))
    assert (row["faces"], row["recall"], row["false_per_100"]) == (2, 0.5, 0.0)
    assert 0 <= row["recall_small"] <= 1
    assert row["landmark_error"] == pytest.approx(0.0, abs=1e-5)


def test_both_detectors_lead_to_the_same_label_of_a_large_face() -> None:
    folder_from_environment("MIEN_MODELS_DIR")
    counts = compare_labels([sample_photo()])
    assert counts == {"faces": 1, "found": 1, "other faces": 0, "other labels": 0, "other labels, both certain": 0}
