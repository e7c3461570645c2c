"""Crops of the contract: golden images, whose change requires a new rule number in data/contract, and any other face.

After an intended change, `python -m tests.data.test_contract` rewrites the golden images.
"""

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from mien.data.contract import CROP_PX, TEMPLATE_PX, Array, DegenerateLandmarks, align, contract_id, decode, fit
from tests.support import encoded

GOLDEN = Path(__file__).parent / "golden"
# OpenCV's vector paths round differently from its scalar ones, by one level and rarely
LEVELS_OF_ROUNDING = 1
SHARE_OF_ROUNDING = 0.02
if cv2.__version__ >= "5":  # it interpolates at exact positions, and no longer at multiples of 1/32 px
    LEVELS_OF_ROUNDING = 2
    SHARE_OF_ROUNDING = 0.5


def grating(height: int = 260, width: int = 340) -> Array:
    """Steep waves in three colors: a shift of 0.05 px changes thousands of values by more than one level."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    waves = [np.sin(x / 2.1 + y / 9), np.sin(y / 2.3 - x / 11), np.sin((x + y) / 3.7)]
    return np.rint(127.5 + 127.5 * np.stack(waves, axis=2)).astype(np.uint8)


def points_at(scale: float, roll_degrees: float, center: tuple[float, float]) -> Array:
    """The template, rotated, scaled and moved into an image, (5, 2) float32."""
    turn = cv2.getRotationMatrix2D((0, 0), -roll_degrees, scale)[:, :2]
    return ((np.asarray(TEMPLATE_PX) - 56) @ turn.T + center).astype(np.float32)


CASES: dict[str, Callable[[], Array]] = {
    "align_enlarged_and_rolled": lambda: align(grating(), points_at(0.37, 25.0, (150.0, 120.0))),
    "align_reduced": lambda: align(grating(), points_at(1.9, -40.0, (170.0, 130.0))),
    "align_reduced_by_area": lambda: align(grating(), points_at(2.7, 170.0, (170.0, 130.0))),
    "align_over_the_border": lambda: align(grating(), points_at(1.2, 10.0, (325.0, 20.0))),
    "fit_enlarged": lambda: fit(grating(48, 48)),
    "fit_reduced": lambda: fit(grating(250, 250)),
    "fit_portrait": lambda: fit(grating(90, 60)),
    "decode_palette": lambda: fit(decode(encoded(grating(112, 112) // 64 * 64, "GIF"))),
    "decode_jpeg": lambda: fit(decode(encoded(grating(112, 112), "JPEG", quality=90))),
}


@pytest.mark.parametrize("name", CASES)
def test_a_crop_equals_its_golden_image(name: str) -> None:
    difference = cv2.absdiff(CASES[name](), decode((GOLDEN / f"{name}.webp").read_bytes()))
    assert difference.max() <= LEVELS_OF_ROUNDING
    assert np.mean(difference > 0) <= SHARE_OF_ROUNDING


def test_the_contract_has_the_id_of_released_artifacts() -> None:
    assert contract_id() == "91ab34f7502f"


def test_tiny_images_and_faces_outside_give_crops_of_the_repeated_edge() -> None:
    for size, scale, center in (((1, 1), 30, (1, 1)), ((1, 500), 0.05, (1, 1)), ((260, 340), 1.5, (1e5, -1e5))):
        plain = np.full((*size, 3), (10, 200, 90), np.uint8)
        crop = align(plain, points_at(scale, 12, center))
        assert crop.shape == (CROP_PX, CROP_PX, 3)
        assert (crop == (10, 200, 90)).all()


def test_array_views_are_read_correctly() -> None:
    points = points_at(1.3, 8, (90, 70))
    for view in (grating()[:, :, ::-1], grating()[::2, ::2]):  # such as colors of OpenCV
        assert np.array_equal(align(view, points), align(np.ascontiguousarray(view), points))
        assert np.array_equal(fit(view), fit(np.ascontiguousarray(view)))


@pytest.mark.parametrize(
    "points", [np.full((5, 2), np.nan), np.full((5, 2), 1e9), np.ones((4, 2))], ids=["nan", "one place", "four points"]
)
def test_points_without_a_similarity_are_rejected(points: Array) -> None:
    with pytest.raises(DegenerateLandmarks):
        align(grating(), points)


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for case, make in CASES.items():
        (GOLDEN / f"{case}.webp").write_bytes(encoded(make(), "WEBP", lossless=True, quality=100, method=6))
