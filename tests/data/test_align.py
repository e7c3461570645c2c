"""Alignment of faces to the template, and resizing of face crops."""

import numpy as np
import pytest

from mien.data.contract import CROP_PX, Array, DegenerateLandmarks, align, fit, roll_degrees
from mien.data.contract.align import TEMPLATE_PX
from tests.support import grating, template_landmarks

CENTER = (170.0, 130.0)


def _marked(points: Array, spot_px: float) -> Array:
    """A black image with a bright soft spot at each point."""
    image = np.zeros((260, 340, 3), np.float32)
    y, x = np.mgrid[0:260, 0:340]
    for point_x, point_y in points:
        image += (255 * np.exp(-((x - point_x) ** 2 + (y - point_y) ** 2) / spot_px**2))[:, :, None]
    return np.clip(image, 0, 255).astype(np.uint8)


@pytest.mark.parametrize("roll", [0, 33, 90, 180, -120])
@pytest.mark.parametrize("scale", [0.6, 1.0, 1.7])
def test_landmarks_land_on_the_template_at_any_roll_and_size(scale: float, roll: float) -> None:
    points = template_landmarks(scale=scale, roll_degrees=roll, center=CENTER)
    crop = align(_marked(points, 2 * scale), points).astype(np.float64)[:, :, 0]
    for x, y in TEMPLATE_PX:
        left, top = round(x) - 4, round(y) - 4
        around = crop[top : top + 9, left : left + 9]
        rows, columns = np.mgrid[top : top + 9, left : left + 9]
        found = (np.average(columns, weights=around), np.average(rows, weights=around))
        assert found == pytest.approx((x, y), abs=0.2)


@pytest.mark.parametrize("center", [(0.0, 0.0), (340.0, 260.0), (-900.0, 130.0), (1e5, -1e5)])
def test_pixels_outside_the_image_repeat_its_edge(center: tuple[float, float]) -> None:
    plain = np.full((260, 340, 3), (10, 200, 90), np.uint8)
    crop = align(plain, template_landmarks(scale=1.5, roll_degrees=12, center=center))
    assert (crop == (10, 200, 90)).all()


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (2, 2), (7, 3)])
@pytest.mark.parametrize("scale", [0.05, 1.0, 30.0])
def test_tiny_images_give_whole_crops(size: tuple[int, int], scale: float) -> None:
    crop = align(grating(*size), template_landmarks(scale=scale, roll_degrees=5, center=(1, 1)))
    assert crop.shape == (CROP_PX, CROP_PX, 3)
    assert crop.dtype == np.uint8


@pytest.mark.parametrize(
    "view",
    [lambda a: a[:, :, ::-1], lambda a: a[:, ::-1], lambda a: a[::2, ::2], np.asfortranarray],
    ids=["reversed colors", "mirrored", "every other pixel", "column-major"],
)
def test_array_views_are_read_correctly(view: object) -> None:
    seen = view(grating())  # type: ignore[operator]
    points = template_landmarks(scale=1.3, roll_degrees=8, center=(90, 70))
    assert np.array_equal(align(seen, points), align(np.ascontiguousarray(seen), points))
    assert np.array_equal(fit(seen), fit(np.ascontiguousarray(seen)))


def test_the_photo_is_not_written_to() -> None:
    photo = grating()
    photo.setflags(write=False)
    align(photo, template_landmarks(scale=4, roll_degrees=0, center=CENTER))
    assert fit(photo[:112, :112]).flags.writeable


@pytest.mark.parametrize(
    "points",
    [np.full((5, 2), np.nan), np.full((5, 2), np.inf), np.zeros((5, 2)), np.full((5, 2), 1e9), np.ones((4, 2))],
    ids=["nan", "infinite", "all at zero", "all far away", "four points"],
)
def test_points_without_a_similarity_are_rejected(points: Array) -> None:
    with pytest.raises(DegenerateLandmarks):
        align(grating(), points)


@pytest.mark.parametrize("degrees", [0.0, 30.0, -75.0, 179.0])
def test_roll_is_the_clockwise_rotation_of_the_eyes(degrees: float) -> None:
    points = template_landmarks(scale=2, roll_degrees=degrees, center=CENTER)
    assert roll_degrees(points) == pytest.approx(degrees, abs=1e-4)
