"""Hard negatives: what the released detector finds and the labels do not have."""

import numpy as np

from mien.models.detector.manifest import default_detector_dir
from mien.training.detector.hard import false_positives
from mien.training.detector.images import LabeledImage, LabeledImages
from mien.training.detector.teacher import FIELDS, box_iou
from tests.support import sample_photo


def test_detections_without_a_label_are_false_positives() -> None:
    unlabeled = LabeledImage("photos", sample_photo(), np.empty((0, len(FIELDS)), np.float32))
    found = false_positives(default_detector_dir(), LabeledImages((unlabeled,), "0" * 64))
    face = max((row for _, row in found), key=lambda row: float(row[0, 14]))
    assert face[0, 14] > 0.8
    doubtful = np.zeros((1, len(FIELDS)), np.float32)
    doubtful[:, :4] = face[:, :4]
    labeled = LabeledImage("photos", sample_photo(), doubtful)
    again = false_positives(default_detector_dir(), LabeledImages((labeled,), "0" * 64))
    assert not any(box_iou(row[:, :4], face[:, :4]).item() > 0.1 for _, row in again)
    assert len(again) < len(found)
