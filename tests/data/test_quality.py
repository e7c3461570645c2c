"""Properties of faces: pose from landmarks; size, blur, light and covered parts of photos that are made so."""

from dataclasses import astuple, replace

import cv2
import numpy as np
import pytest

from mien.data import quality
from mien.data.contract import Array, align, decode
from mien.data.quality import Quality, head_pose, measure
from tests.support import ROOT

# Eyes, nose tip and mouth corners of an average head, millimeters; x to the right, y down, z away from the camera.
HEAD_MM = np.array([[-31.5, -34, 26], [31.5, -34, 26], [0, 0, 0], [-25, 36, 22], [25, 36, 22]], np.float64)
PHOTO = decode((ROOT / "samples" / "photos" / "astronaut.jpg").read_bytes())
POINTS = np.array([[204, 101], [246, 103], [222, 126], [206, 143], [241, 145]], np.float32)


def landmarks(yaw: float, pitch: float, roll: float = 0.0) -> Array:
    """An average head from afar, turned by degrees: to the right of the image, upward, clockwise; (5, 2)."""
    turns = (0, 0, roll), (0, -yaw, 0), (-pitch, 0, 0)
    rotation = np.linalg.multi_dot([cv2.Rodrigues(np.radians(turn, dtype=float))[0] for turn in turns])
    return (HEAD_MM @ rotation.T)[:, :2].astype(np.float32)


@pytest.mark.parametrize(("yaw", "pitch", "roll"), [(25, 0, 0), (-40, 0, 180), (0, 20, 30), (0, -15, 0), (20, 10, -90)])
def test_the_pose_of_a_projected_head_is_found(yaw: float, pitch: float, roll: float) -> None:
    assert head_pose(landmarks(yaw, pitch, roll)) == pytest.approx((yaw, pitch), abs=3)
    assert head_pose(np.full((5, 2), np.nan, np.float32)) == (None, None)


def of(photo: Array, points: Array = POINTS) -> Quality:
    return measure(align(photo, points), points)


def test_properties_of_a_turned_and_of_a_small_blurred_face_are_the_recorded_ones() -> None:
    turned = POINTS + np.array([(0, 0), (0, 0), (9, 2), (0, 0), (0, 0)], np.float32)
    assert astuple(of(PHOTO, turned)) == pytest.approx((91.259, 0.93964, 0.0, 23.1, 0.57021, -4.6649), rel=0.003)
    small = cv2.GaussianBlur(cv2.resize(PHOTO, None, fx=0.4, fy=0.4, interpolation=cv2.INTER_AREA), (0, 0), 1.5)
    assert astuple(of(small, POINTS * 0.4)) == pytest.approx((36.036, 3.042, 2.6703, -7.3, 0.57317, -1.9974), rel=0.003)


@pytest.mark.parametrize(("top", "bottom"), [(88, 116), (132, 160)], ids=["eyes", "mouth"])
def test_an_object_over_eyes_or_mouth_is_told_from_a_free_face(top: int, bottom: int) -> None:
    photo = PHOTO.copy()
    cv2.rectangle(photo, (180, top), (268, bottom), (120, 80, 60), -1)
    assert of(PHOTO).covered < quality.LIMITS["covered"] < of(photo).covered


USUAL = Quality(90.0, quality.USUAL_SOFTNESS_PX, 0.0, quality.USUAL_YAW, 0.5, 0.0)


@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        ({}, 1),
        ({"softness_px": quality.USUAL_SOFTNESS_PX + 2}, 1 + 0.8017 * 2),
        ({"softness_px": quality.USUAL_SOFTNESS_PX + 2, "blur_px": 3.0}, 1 + 0.8017 * 2 - 0.20362 * 3),
        ({"yaw_degrees": -quality.USUAL_YAW - 40}, 1 + 0.00479 * 40),
        ({"covered": 2.0}, 1 + 0.1 * 2),
        ({"blur_px": 3.0, "covered": -2.0}, 1),
    ],
)
def test_each_property_of_a_face_raises_its_temperature(changes: dict[str, float], factor: float) -> None:
    probabilities = np.array([0.02, 0.03, 0.05, 0.6, 0.1, 0.08, 0.12])
    for share in (1.0, 0.5):
        powers = probabilities ** (1 / (1 + share * (factor - 1)))
        found = quality.soften(probabilities, replace(USUAL, **changes), share)
        assert found == pytest.approx(powers / powers.sum())
    assert quality.softmax(np.float32([9e3, 0, 9e3])) == pytest.approx([0.5, 0, 0.5]), "of logits of any size"


@pytest.mark.parametrize(
    ("reason", "changes", "free"),
    [
        ("small", {"width_px": 24.2}, {"width_px": 24.5}),
        ("blurred", {"blur_px": 1.5}, {"blur_px": 1.4}),
        ("turned", {"yaw_degrees": -35.1}, {"yaw_degrees": -34.9}),
        ("dark", {"brightness": 0.05}, {"brightness": 0.06}),
        ("covered", {"covered": 2.1}, {"covered": 1.9}),
    ],
)
def test_a_face_beyond_a_limit_has_its_reason(reason: str, changes: dict[str, float], free: dict[str, float]) -> None:
    assert quality.reasons_of(replace(USUAL, **changes)) == (reason,)
    assert quality.reasons_of(replace(USUAL, **free)) == ()
    assert quality.with_ambiguity([reason], {"a": 0.1, "b": 0.6, "c": 0.3}) == (reason,)
