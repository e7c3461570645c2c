"""Golden crops of the contract: a change of a pixel requires a new rule number in identity.py.

After an intended change, `python -m tests.data.test_contract` rewrites the golden images.
"""

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from mien.data.contract import Array, align, contract_id, decode, fit
from tests.support import encoded, grating, template_landmarks

GOLDEN = Path(__file__).parent / "golden"
# OpenCV's vector paths round differently from its scalar ones, by one level and rarely
LEVELS_OF_ROUNDING = 1
SHARE_OF_ROUNDING = 0.02
if cv2.__version__ >= "5":  # it interpolates at exact positions, and no longer at multiples of 1/32 px
    LEVELS_OF_ROUNDING = 2
    SHARE_OF_ROUNDING = 0.5


def _aligned(scale: float, roll_degrees: float, center: tuple[float, float]) -> Array:
    return align(grating(), template_landmarks(scale=scale, roll_degrees=roll_degrees, center=center))


CASES: dict[str, Callable[[], Array]] = {
    "align_same_size": lambda: _aligned(1.0, 0.0, (170.3, 130.6)),
    "align_enlarged_and_rolled": lambda: _aligned(0.37, 25.0, (150.0, 120.0)),
    "align_reduced": lambda: _aligned(1.9, -40.0, (170.0, 130.0)),
    "align_reduced_by_area": lambda: _aligned(2.7, 170.0, (170.0, 130.0)),
    "align_over_the_border": lambda: _aligned(1.2, 10.0, (325.0, 20.0)),
    "fit_enlarged": lambda: fit(grating(48, 48)),
    "fit_reduced": lambda: fit(grating(250, 250)),
    "fit_portrait": lambda: fit(grating(90, 60)),
    "decode_palette": lambda: fit(decode(encoded(grating(112, 112) // 64 * 64, "GIF"))),
    "decode_jpeg": lambda: fit(decode(encoded(grating(112, 112), "JPEG", quality=90))),
}


def _differs(crop: Array, golden: Array) -> bool:
    difference = cv2.absdiff(crop, golden)
    return bool(difference.max() > LEVELS_OF_ROUNDING or np.mean(difference > 0) > SHARE_OF_ROUNDING)


def _golden(name: str) -> Array:
    return decode((GOLDEN / f"{name}.webp").read_bytes())


@pytest.mark.parametrize("name", CASES)
def test_a_crop_equals_its_golden_image(name: str) -> None:
    assert not _differs(CASES[name](), _golden(name)), (
        f"{name} has changed: if intended, raise its rule in data/contract/identity.py and rewrite the golden images"
    )


def test_the_contract_has_the_id_of_released_artifacts() -> None:
    assert contract_id() == "91ab34f7502f"


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for case, make in CASES.items():
        (GOLDEN / f"{case}.webp").write_bytes(encoded(make(), "WEBP", lossless=True, quality=100, method=6))
