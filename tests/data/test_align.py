"""Alignment of faces to the template, and resizing of face crops."""

import numpy as np
import pytest

from mien.data.contract import CROP_PX, TEMPLATE_PX, Array, DegenerateLandmarks, align, fit
from tests.support import grating, template_landmarks


@pytest.mark.parametrize(("scale", "roll"), [(0.6, 33), (1.0, 180), (1.7, -120)])
def test_landmarks_land_on_the_template_at_any_roll_and_size(scale: float, roll: float) -> None:
    points = template_landmarks(scale=scale, roll_degrees=roll, center=(170, 130))
    spots = np.zeros((260, 340), np.float32)
    y, x = np.mgrid[0:260, 0:340]
    for point_x, point_y in points:
        spots += 255 * np.exp(-((x - point_x) ** 2 + (y - point_y) ** 2) / (2 * scale) ** 2)
    image = np.repeat(spots.clip(0, 255).astype(np.uint8)[:, :, None], 3, axis=2)
    crop = align(image, points).astype(np.float64)[:, :, 0]
    for x, y in TEMPLATE_PX:
        left, top = round(x) - 4, round(y) - 4
        around = crop[top : top + 9, left : left + 9]
        rows, columns = np.mgrid[top : top + 9, left : left + 9]
        found = (np.average(columns, weights=around), np.average(rows, weights=around))
        assert found == pytest.approx((x, y), abs=0.2)


def test_tiny_images_and_faces_outside_give_crops_of_the_repeated_edge() -> None:
    for size, scale, center in (((1, 1), 30, (1, 1)), ((1, 500), 0.05, (1, 1)), ((260, 340), 1.5, (1e5, -1e5))):
        plain = np.full((*size, 3), (10, 200, 90), np.uint8)
        crop = align(plain, template_landmarks(scale=scale, roll_degrees=12, center=center))
        assert crop.shape == (CROP_PX, CROP_PX, 3)
        assert (crop == (10, 200, 90)).all()


def test_array_views_are_read_correctly() -> None:
    points = template_landmarks(scale=1.3, roll_degrees=8, center=(90, 70))
    for view in (grating()[:, :, ::-1], grating()[::2, ::2]):  # such as colors of OpenCV
        assert np.array_equal(align(view, points), align(np.ascontiguousarray(view), points))
        assert np.array_equal(fit(view), fit(np.ascontiguousarray(view)))


@pytest.mark.parametrize(
    "points", [np.full((5, 2), np.nan), np.full((5, 2), 1e9), np.ones((4, 2))], ids=["nan", "one place", "four points"]
)
def test_points_without_a_similarity_are_rejected(points: Array) -> None:
    with pytest.raises(DegenerateLandmarks):
        align(grating(), points)
