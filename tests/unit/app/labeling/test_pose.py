"""Yaw and pitch from five landmarks: signs, sizes, and what a tilted head changes."""

import cv2
import numpy as np
import pytest

from mien.app.labeling.pose import _HEAD_MM, head_pose
from mien.data.contract import Array


def landmarks(yaw: float, pitch: float, roll: float = 0.0) -> Array:
    """An average head in a photo, turned by degrees: to the right of the image, upward, clockwise; (5, 2)."""
    turned = cv2.Rodrigues(np.radians([0.0, -yaw, 0.0]))[0] @ cv2.Rodrigues(np.radians([-pitch, 0.0, 0.0]))[0]
    rotation = cv2.Rodrigues(np.radians([0.0, 0.0, roll]))[0] @ turned
    camera = np.array([[1500.0, 0, 320], [0, 1500, 240], [0, 0, 1]])
    points, _ = cv2.projectPoints(_HEAD_MM, cv2.Rodrigues(rotation)[0], np.array([0.0, 0, 900]), camera, None)
    return points.reshape(5, 2).astype(np.float32)


@pytest.mark.parametrize(("yaw", "pitch"), [(0, 0), (25, 0), (-40, 0), (0, 20), (0, -15), (20, 10)])
@pytest.mark.parametrize("roll", [0, 30, -90, 180])
def test_the_pose_of_a_projected_head_is_found(yaw: float, pitch: float, roll: float) -> None:
    found_yaw, found_pitch = head_pose(landmarks(yaw, pitch, roll))
    assert found_yaw == pytest.approx(yaw, abs=6)
    assert found_pitch == pytest.approx(pitch, abs=6)


def test_points_without_a_pose_give_none() -> None:
    assert head_pose(np.zeros((5, 2), np.float32)) == (None, None)
    assert head_pose(np.full((5, 2), np.nan, np.float32)) == (None, None)
